package simulator

import "time"

// event is a fact that the simulator tells of. The object is a snapshot, kept as a function because each reader may ask
// for another shape.
type event struct {
	id, kind string
	created  time.Time
	livemode bool
	object   func(Shape) any
	previous map[string]any // previous_attributes, nil for none
}

func (e event) body(shape Shape) map[string]any {
	data := map[string]any{"object": e.object(shape)}
	if e.previous != nil {
		data["previous_attributes"] = e.previous
	}
	return map[string]any{
		"id": e.id, "object": "event", "api_version": shape.apiVersion(), "created": e.created.Unix(), "data": data,
		"livemode": e.livemode, "pending_webhooks": 1, "request": map[string]any{"id": nil, "idempotency_key": nil}, "type": e.kind,
	}
}
