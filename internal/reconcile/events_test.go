package reconcile_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
)

func TestLostEventsAreTakenFromTheProvidersList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1), active(2), active(3))
	b.run()
	now := time.Now().UTC().Truncate(time.Second)
	next := sub{"current_period_end": now.AddDate(0, 0, 60).Unix()}
	recent, old := active(1).with(next), active(2).with(next)
	var list []told
	list = append(list, told{id: "evt_recent", kind: "customer.subscription.updated", created: now.Add(-time.Minute), object: recent, delivered: true})
	for n := range 250 { // of no use here, and more than two pages
		list = append(list, told{id: fmt.Sprintf("evt_noise_%d", n), kind: "charge.succeeded", created: now.Add(-time.Minute), object: sub{"id": "ch_1", "object": "charge"}, delivered: true})
	}
	list = append(list, told{id: "evt_old", kind: "customer.subscription.updated", created: now.AddDate(0, 0, -20), object: old},
		told{id: "evt_too_old", kind: "customer.subscription.updated", created: now.AddDate(0, 0, -31), object: active(3).with(next)})
	b.do(func() {
		b.events = list
		b.subs[0], b.subs[1] = recent, old
	})
	b.run()
	require.Equal(t, 2, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM payment_webhook_events`), "what is of no use is not kept")
	require.Equal(t, 2, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at > now() + interval '59 days'`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM drift_findings WHERE kind = 'event_missing' AND action = 'repaired' AND cause LIKE 'event evt_%was not delivered'
		AND subscription_id IS NOT NULL AND event_id IN ('evt_recent', 'evt_old')`))
	require.Equal(t, map[string]int{"event_missing repaired": 2}, b.found)
	b.run()
	require.Equal(t, 2, b.count(`SELECT count(*) FROM drift_findings`), "once")

	// What an event that stays undone would have told is its cause.
	b.exec(`UPDATE payment_webhook_events SET status = 'failed', object_id = 'sub_00003' WHERE external_event_id = 'evt_old'`)
	b.change("sub_00003", sub{"cancel_at_period_end": true})
	b.tomorrow()
	b.run()
	require.Equal(t, "event evt_old could not be applied", b.text(`SELECT cause FROM drift_findings WHERE kind = 'set_to_end'`))
}

func TestEventsThatAreUnderWayAreNotMissing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1))
	b.run()
	now := time.Now().UTC().Truncate(time.Second)
	e := told{id: "evt_1", kind: "customer.subscription.updated", created: now, object: active(1).with(sub{"cancel_at_period_end": true})}
	b.do(func() { b.events = []told{e} })
	delivered := make(chan error, 1)
	asked := false
	b.do(func() {
		b.fail = func(_ int, path string, _ http.ResponseWriter) bool {
			if path == "/v1/events" && !asked {
				asked = true
				go func() { // the webhook comes while the list is read
					body := encoded(t, sub{"id": e.id, "object": "event", "type": e.kind, "created": e.created.Unix(), "livemode": false, "data": sub{"object": e.object}})
					event, err := payment.ParseEvent(body)
					if err == nil {
						_, err = b.Intake.Receive(t.Context(), event, body)
					}
					delivered <- err
				}()
			}
			return false
		}
	})
	b.run()
	require.NoError(t, <-delivered)
	require.Zero(t, b.count(`SELECT count(*) FROM drift_findings WHERE event_id IS NOT NULL`))
	require.Eventually(t, func() bool {
		return b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`) == 1
	}, 10*time.Second, 20*time.Millisecond)
}
