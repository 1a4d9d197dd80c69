package reconcile_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
)

// simulated is a bench whose provider is the offline Stripe, with a webhook endpoint that hands events to the intake.
func simulated(t *testing.T, start time.Time) (*bench, *simulator.Simulator) {
	t.Helper()
	b := newBench(t)
	sim, err := simulator.Start(t.Context(), simulator.Options{ClockStart: start})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.WithoutCancel(t.Context()))) })
	client := payment.NewClient(secret.NewText("sk_test_1"), sim.StripeURL())
	t.Cleanup(client.Close)
	in := intake.New(b.Store, intake.Settings{Owner: "simulated", Leeway: time.Hour, Fetch: client.Subscription}, zap.NewNop())
	t.Cleanup(func() { require.NoError(t, in.Drain(context.WithoutCancel(t.Context()))) })
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			var event payment.Event
			if event, err = payment.ParseEvent(body); err == nil {
				_, err = in.Receive(r.Context(), event, body)
			}
		}
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(endpoint.Close)
	require.NoError(t, sim.SetEndpoint(simulator.Endpoint{URL: endpoint.URL, Secret: "whsec_test_aaaaaaaaaaaaaaaaaaaaaa", Shape: simulator.Shape2025}))
	b.Provider, b.Intake = client, in
	return b, sim
}

func ptr[T any](v T) *T { return &v }

// Faults W22: the webhook never comes.
func TestLostWebhookIsRepairedWithinARun(t *testing.T) {
	t.Parallel()
	b, sim := simulated(t, time.Time{})
	_, err := sim.AddSubscriptions(simulator.SubscriptionFixture{ID: "sub_1", PriceID: "price_pro", UserID: "u_1", PeriodStart: sim.Now().AddDate(0, 0, -3)})
	require.NoError(t, err)
	b.run()
	require.Equal(t, "active", b.text(`SELECT status FROM subscriptions WHERE external_id = 'sub_1' AND NOT cancel_at_period_end`))

	require.NoError(t, sim.AddFault(simulator.Fault{Type: "customer.subscription.*", Kind: simulator.Drop, Count: 1}))
	require.True(t, sim.ChangeSubscription("sub_1", simulator.SubscriptionChange{CancelAtPeriodEnd: ptr(true)}))
	b.run() // the sweep of today is over: it is the event that is found
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE external_id = 'sub_1' AND cancel_at_period_end AND leeway_until IS NULL`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE kind = 'event_missing' AND action = 'repaired' AND external_id = 'sub_1' AND subscription_id IS NOT NULL`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
	versions := b.versions()
	b.tomorrow()
	require.Zero(t, b.run().Changed)
	require.Equal(t, versions, b.versions())
}

func TestPaymentThatCameAfterTheEndRevivesOnce(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	b, sim := simulated(t, now.AddDate(0, 0, -40))
	_, err := sim.AddSubscriptions(simulator.SubscriptionFixture{ID: "sub_1", PriceID: "price_pro", UserID: "u_1"})
	require.NoError(t, err)
	b.run()
	require.NoError(t, sim.SetEndpoint(simulator.Endpoint{})) // nothing comes from now on, and nobody is told of it
	require.True(t, sim.ChangeSubscription("sub_1", simulator.SubscriptionChange{Fails: ptr(true)}))
	sim.AdvanceTo(now.Add(-time.Minute))
	expired, err := b.Store.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 10, false)
	require.NoError(t, err)
	require.Equal(t, 1, expired.Count)
	b.exec(`DELETE FROM outbox`)

	require.True(t, sim.ChangeSubscription("sub_1", simulator.SubscriptionChange{Fails: ptr(false), Pay: true, Silent: true}))
	b.exec(`UPDATE reconcile_state SET events_from = now()`) // the events of the failed renewal are not what this is about
	for range 3 {
		b.tomorrow()
		b.run()
	}
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE status = 'active' AND expired_at IS NULL AND gives_access(subscriptions, now())`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'access.started' AND kind = 'returned'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE kind = 'ended_here' AND action = 'repaired'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type IN ('renewed', 'recovered')`))
}

// The offline Stripe holds what a big account holds, and answers as it does.
func TestSweepOfTheOfflineStripe(t *testing.T) {
	t.Parallel()
	b, sim := simulated(t, time.Time{})
	fixtures := make([]simulator.SubscriptionFixture, 500)
	for n := range fixtures {
		fixtures[n] = simulator.SubscriptionFixture{
			ID: fmt.Sprintf("sub_%03d", n), PriceID: "price_pro", UserID: fmt.Sprintf("u_%03d", n), PeriodStart: sim.Now().AddDate(0, 0, -n%28-1),
			Status: []string{"active", "trialing", "past_due", "canceled", "paused"}[n%5],
		}
	}
	_, err := sim.AddSubscriptions(fixtures...)
	require.NoError(t, err)
	require.EqualValues(t, 500, b.run().Changed, "each has got a row")
	versions := b.versions()
	b.tomorrow()
	require.Zero(t, b.run().Changed, "and agrees with it")
	require.Equal(t, versions, b.versions())

	for n := 0; n < 500; n += 50 {
		require.True(t, sim.ChangeSubscription(fixtures[n].ID, simulator.SubscriptionChange{PriceID: ptr("price_team"), Silent: true}))
	}
	require.True(t, sim.RemoveSubscription("sub_001"))
	require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status429, Path: "/v1/subscriptions", RetryAfter: time.Minute}))
	b.tomorrow()
	require.Zero(t, b.run().Changed)
	require.Zero(t, b.run().Scanned, "not before the provider allows it")
	b.exec(`UPDATE reconcile_state SET not_before = NULL`)
	require.EqualValues(t, 10, b.run().Changed)
	require.Equal(t, 10, b.count(`SELECT count(*) FROM subscriptions WHERE plan_key = 'team'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE kind = 'unknown_there' AND external_id = 'sub_001' AND action = 'none'`))
}
