package payment

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/stripe/stripe-go/v76"

	"termkeeper/internal/subscription"
)

// SubscriptionPage is one page of all the provider's subscriptions, the newest first.
type SubscriptionPage struct {
	Subscriptions []subscription.Provider
	Asked         time.Time // the second in which the call began, by the provider's clock
	More          bool
}

// Subscriptions lists the provider's subscriptions of every status, with their latest invoices and customers, at most 100 after the
// one with the given id; "" begins with the newest. The error is ErrNoAnswer, a *RefusalError (above all that it does not
// know the id to go on from) or that of ctx.
func (c *Client) Subscriptions(ctx context.Context, after string) (SubscriptionPage, error) {
	params := &stripe.Params{}
	params.AddExtra("status", "all")
	for i, e := range expansions {
		params.AddExtra("expand["+strconv.Itoa(i)+"]", "data."+e) // AddExpand of plain Params makes every call fail
	}
	page := SubscriptionPage{}
	list, asked, more, err := c.page(ctx, "/v1/subscriptions", after, params)
	if err != nil {
		return page, err
	}
	page.Asked, page.More = asked, more
	for _, raw := range list {
		provider, err := Subscription(raw)
		if err != nil {
			return SubscriptionPage{}, &NoAnswerError{Why: "what came was not a list of subscriptions"}
		}
		page.Subscriptions = append(page.Subscriptions, provider)
	}
	return page, nil
}

// EventQuery narrows the list of events. Zero fields do not narrow.
type EventQuery struct {
	From, Until time.Time // created in these seconds, both included
	Undelivered bool      // not delivered to every webhook endpoint that wants it
	After       string    // the event to go on from
}

// ListedEvent is an event of the list: its envelope, and the JSON from which that was read.
type ListedEvent struct {
	Event
	Body []byte
}

// EventPage is one page of the provider's events, the newest first. The provider keeps them for 30 days.
type EventPage struct {
	Events []ListedEvent
	Asked  time.Time // the second in which the call began, by the provider's clock
	More   bool
}

// Events lists at most 100 events. The errors are those of Subscriptions.
func (c *Client) Events(ctx context.Context, q EventQuery) (EventPage, error) {
	params := &stripe.Params{}
	if !q.From.IsZero() {
		params.AddExtra("created[gte]", strconv.FormatInt(q.From.Unix(), 10))
	}
	if !q.Until.IsZero() {
		params.AddExtra("created[lte]", strconv.FormatInt(q.Until.Unix(), 10))
	}
	if q.Undelivered {
		params.AddExtra("delivery_success", "false")
	}
	list, asked, more, err := c.page(ctx, "/v1/events", q.After, params)
	if err != nil {
		return EventPage{}, err
	}
	page := EventPage{Asked: asked, More: more}
	for _, raw := range list {
		event, err := ParseEvent(raw)
		if err != nil {
			return EventPage{}, &NoAnswerError{Why: "what came was not a list of events"}
		}
		page.Events = append(page.Events, ListedEvent{event, raw})
	}
	return page, nil
}

// page asks for one page of a list, after the object with the given id.
func (c *Client) page(ctx context.Context, path, after string, params *stripe.Params) (list []json.RawMessage, asked time.Time, more bool, err error) {
	params.AddExtra("limit", maxPage)
	if after != "" {
		params.AddExtra("starting_after", after)
	}
	answer, err := c.ask(ctx, http.MethodGet, path, actionTimeout, params)
	if after == "" { // with one a refusal can be about the object to go on from, without it is no answer
		err = wholeListsOnly(unanswered(err))
	}
	if err != nil {
		return nil, time.Time{}, false, err
	}
	var page struct {
		Object  string            `json:"object"`
		Data    []json.RawMessage `json:"data"`
		HasMore *bool             `json:"has_more"`
	}
	if err := json.Unmarshal(answer.raw, &page); err != nil || page.Object != "list" || page.Data == nil || page.HasMore == nil || (*page.HasMore && len(page.Data) == 0) {
		return nil, time.Time{}, false, &NoAnswerError{Why: "what came was not the list that was asked for"}
	}
	return page.Data, answer.asked, *page.HasMore, nil
}
