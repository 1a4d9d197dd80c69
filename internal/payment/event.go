package payment

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrMalformed says that the payload is not a JSON object with a usable id. A webhook is then answered 400 and not stored.
var ErrMalformed = errors.New("malformed payload")

// ObjectThinEvent is the `object` of Stripe's thin events. They carry no snapshot of what they are about.
const ObjectThinEvent = "v2.core.event"

// Event is the envelope of a Stripe event. It is decoded by ourselves: stripe-go refuses an event of another API
// version, and a thin event is a JSON error to it. Only the id is certain; whatever else is missing, of the wrong type,
// longer than 255 bytes or holds a control character (PostgreSQL's text cannot hold U+0000) is left at its zero value, which means unknown.
type Event struct {
	ID         string
	Object     string // "event" or ObjectThinEvent
	Type       string // for instance "customer.subscription.updated"
	APIVersion string // version of the endpoint that sent it, for instance "2023-10-16"; a thin event has none
	Account    string // the connected account it comes from, "" for our own
	Livemode   bool
	// Created has a resolution of one second. It is zero when Stripe's word is absent, not positive, not a number or
	// after the year 9999: such an event is as new as its receipt, and the caller puts that instant.
	Created  time.Time
	ObjectID string          // id of data.object, or of a thin event's related object
	Data     json.RawMessage // data.object as it was sent; nil when there is none or it is not a JSON object
}

// ParseEvent reads the envelope of a verified body. The only error is ErrMalformed: not JSON (nesting beyond 10,000
// levels counts as that), not an object, or an id that is absent, not a string, empty, over 255 bytes or holding a control character.
// Of a repeated key the last one counts.
func ParseEvent(body []byte) (Event, error) {
	var in struct {
		ID         text    `json:"id"`
		Object     text    `json:"object"`
		Type       text    `json:"type"`
		APIVersion text    `json:"api_version"`
		Account    text    `json:"account"`
		Livemode   flag    `json:"livemode"`
		Created    instant `json:"created"`
		Data       struct {
			Object json.RawMessage `json:"object"`
		} `json:"data"`
		RelatedObject struct {
			ID text `json:"id"`
		} `json:"related_object"`
	}
	// An UnmarshalTypeError (data is a number, the body is an array) does not stop the decoder: what fits is filled in.
	var wrongType *json.UnmarshalTypeError
	if err := json.Unmarshal(body, &in); err != nil && !errors.As(err, &wrongType) {
		return Event{}, fmt.Errorf("%w: not JSON", ErrMalformed)
	}
	if in.ID == "" {
		return Event{}, fmt.Errorf("%w: no usable id", ErrMalformed)
	}
	event := Event{
		ID: string(in.ID), Object: string(in.Object), Type: string(in.Type), APIVersion: string(in.APIVersion),
		Account: string(in.Account), Livemode: bool(in.Livemode), Created: in.Created.Time, ObjectID: string(in.RelatedObject.ID),
	}
	if len(in.Data.Object) == 0 || in.Data.Object[0] != '{' {
		return event, nil
	}
	event.Data = in.Data.Object
	var object struct {
		ID text `json:"id"`
	}
	if err := json.Unmarshal(event.Data, &object); err != nil {
		return Event{}, fmt.Errorf("%w: data.object", ErrMalformed)
	}
	if object.ID != "" {
		event.ObjectID = string(object.ID)
	}
	return event, nil
}

// IsThin tells whether this is a thin event, which is kept but never applied.
func (e Event) IsThin() bool { return e.Object == ObjectThinEvent }
