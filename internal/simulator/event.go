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
	thin     bool           // it carries only the id of its object, in either shape
}

func (e event) body(shape Shape) map[string]any {
	if e.thin {
		return map[string]any{
			"id": e.id, "object": "v2.core.event", "type": e.kind, "livemode": e.livemode, "created": e.created.Format(time.RFC3339),
			"context": nil, "reason": nil, "related_object": e.object(shape),
		}
	}
	data := map[string]any{"object": e.object(shape)}
	if e.previous != nil {
		data["previous_attributes"] = e.previous
	}
	return map[string]any{
		"id": e.id, "object": "event", "api_version": shape.apiVersion(), "created": e.created.Unix(), "data": data,
		"livemode": e.livemode, "pending_webhooks": 1, "request": map[string]any{"id": nil, "idempotency_key": nil}, "type": e.kind,
	}
}

// ThinEventBody writes an event of the newer kind, which carries no object but only the id of one, as the body of a webhook.
// Its api_version is missing, and created is no number.
func ThinEventBody(id, eventType string, created time.Time, objectID string) []byte {
	return encode(thin(id, eventType, created, objectID).body(Shape2025))
}

func thin(id, eventType string, created time.Time, objectID string) event {
	return event{id: id, kind: eventType, created: created, thin: true, object: func(Shape) any {
		return map[string]any{"id": objectID, "type": "object", "url": "/v2/objects/" + objectID}
	}}
}

// publishThin sends a thin event about an object of any kind.
func (s *stripe) publishThin(eventType, objectID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(thin(NewID("evt"), eventType, s.now(), objectID))
}
