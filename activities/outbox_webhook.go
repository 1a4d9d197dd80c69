package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/secret"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
	"termkeeper/internal/webhook"
)

const (
	// callsAtOnce bounds the calls of this process that are under way at the same time.
	callsAtOnce = 64
	// callsOfOne bounds those to one endpoint, over all processes.
	callsOfOne = 4
	// callLease is longer than reading what to send, the sending and the mark together can take.
	callLease = 2*webhook.SendTimeout + 15*time.Second
	// keyPause is how long an endpoint rests whose secret cannot be opened: somebody must set the right key and restart.
	keyPause = time.Minute
)

// Webhooker is what calls to endpoints need.
type Webhooker struct {
	Sender *webhook.Sender
	Sealer *secret.Sealer
}

// launchCalls claims up to free calls and begins each by itself beside the loop.
func (d *delivering) launchCalls(ctx context.Context, now time.Time, free int) (int, error) {
	claimed, err := d.Store.ClaimWebhooks(ctx, now, d.Owner, free, callsOfOne, callLease)
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	d.calls += len(claimed)
	d.mu.Unlock()
	for _, one := range claimed {
		go func() {
			err := d.call(ctx, now, one)
			d.done(err, func() { d.calls-- })
		}()
	}
	return len(claimed), nil
}

// call makes one call and records what came of it. The error is the database's; what goes wrong with the call is written on
// its row.
func (d *delivering) call(ctx context.Context, claimedAt time.Time, one store.Delivery) error {
	n, err := d.Store.Notification(ctx, one, claimedAt, webhook.SendTimeout)
	switch {
	case errors.Is(err, store.ErrConflict):
		d.count(Tally{Scanned: 1, Skipped: 1}) // it was held up so long that the lease is over or nearly so, or nobody wants it any more
		return nil
	case err != nil:
		return err
	}
	body, err := notificationBody(n)
	if err != nil {
		return err
	}
	secrets, err := d.open(n)
	if err != nil {
		d.count(Tally{Scanned: 1, Failed: 1})
		const why = "the secret of the endpoint cannot be opened; TERMKEEPER_SECRET_KEY is not the one that it was sealed with"
		activity.GetLogger(ctx).Error(why, "endpoint_id", n.EndpointID)
		return d.lost(ctx, errors.Join(d.Store.PauseEndpoint(ctx, n.EndpointID, keyPause, why), d.Store.RetryDelivery(ctx, one, keyPause, why, true)))
	}
	failpoint.Hit("webhook_before_send")
	answer, sendErr := d.Webhooks.Sender.Send(ctx, webhook.Call{URL: n.URL, ID: n.MessageID, At: claimedAt, Body: body, Secrets: secrets})
	failpoint.Hit("webhook_sent_before_mark")
	// The mark must not be lost because the run is being stopped: the call may have arrived.
	marking, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	switch {
	case errors.Is(sendErr, context.Canceled):
		return d.lost(ctx, d.Store.RetryDelivery(marking, one, 0, "the sender was stopped; it may have arrived", true))
	case sendErr == nil && webhook.OK(answer.Status):
		d.count(Tally{Scanned: 1, Changed: 1})
		return d.lost(ctx, d.Store.WebhookSent(marking, one, n.EndpointID, answer.Status))
	}
	d.count(Tally{Scanned: 1, Failed: 1})
	why := ""
	if sendErr != nil {
		why = sendErr.Error()
	}
	failure, err := d.Store.WebhookFailed(marking, one, n.EndpointID, claimedAt, func(h store.WebhookHealth) store.WebhookFailure {
		a := webhook.Attempt{
			Status: answer.Status, RetryAfter: answer.RetryAfter, Attempts: one.Attempts, Refusals: h.Refusals, Failures: h.Failures, Failing: h.Failing,
		}
		v := webhook.Judge(a, why)
		return store.WebhookFailure{
			Status: answer.Status, Dead: v.Dead, Pause: v.Pause, Refused: v.Refused, EndpointPause: v.EndpointPause, Disable: v.Disable, Error: v.Error,
		}
	})
	if err == nil && failure.Disable != "" {
		activity.GetLogger(ctx).Warn("a webhook endpoint was disabled", "endpoint_id", n.EndpointID, "reason", failure.Disable, "error", failure.Error)
	}
	return d.lost(ctx, err)
}

// open opens the secrets of the endpoint. One before a rotation that cannot be opened is left out: a rotation is what follows
// a change of the key.
func (d *delivering) open(n store.Notification) ([]secret.Text, error) {
	var secrets []secret.Text
	for i, sealed := range n.Secrets {
		opened, err := d.Webhooks.Sealer.Open(sealed, webhook.Place(n.EndpointID))
		switch {
		case err == nil:
			secrets = append(secrets, opened)
		case i == 0:
			return nil, err
		}
	}
	return secrets, nil
}

// notificationJSON is the body of a call; docs/webhooks.md describes it. It says what happened and not what holds now, so it
// is the same at every attempt.
type notificationJSON struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      factJSON  `json:"data"`
}

type factJSON struct {
	FactID         string          `json:"fact_id"`
	SubscriptionID *string         `json:"subscription_id"`
	UserID         *string         `json:"user_id"`
	Kind           *string         `json:"kind"`
	Boundary       *time.Time      `json:"boundary"` // null where there is none, and for a lifetime
	Details        json.RawMessage `json:"details,omitempty"`
}

func notificationBody(n store.Notification) ([]byte, error) {
	fact := factJSON{FactID: n.FactID, SubscriptionID: some(n.SubscriptionID), UserID: some(n.UserID), Kind: some(n.Kind), Details: n.Payload}
	if !n.Boundary.IsZero() && !subscription.IsForever(n.Boundary) {
		fact.Boundary = &n.Boundary
	}
	body, err := json.Marshal(notificationJSON{Type: n.Topic, Timestamp: n.At, Data: fact})
	if err != nil {
		return nil, fmt.Errorf("writing a notification: %w", err)
	}
	return body, nil
}

// some is nil for an empty string.
func some(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
