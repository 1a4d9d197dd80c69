package activities_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/intake"
	"termkeeper/internal/simulator"
)

func TestApplyTakesWhatIntakeLeftBehind(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`UPDATE plans SET stripe_price_ids = '{price_1}'`)
	now := time.Now().UTC().Truncate(time.Second)
	event := func(external, user string, price string) {
		body := simulator.EventBody(simulator.Shape2025, external, "customer.subscription.updated", now, simulator.SubscriptionFixture{
			ID: "sub_" + external, CustomerID: "cus_" + external, PriceID: price, UserID: user, Status: "active",
			PeriodStart: now.AddDate(0, 0, -1), PeriodEnd: now.AddDate(0, 1, 0),
		})
		b.exec(`INSERT INTO payment_webhook_events (external_event_id, type, payload) VALUES ($1, 'customer.subscription.updated', $2)`, external, body)
	}
	event("evt_1", "u_1", "price_1")
	event("evt_2", "u_2", "price_1")
	event("evt_3", "u_3", "price_unknown")
	event("evt_4", "u_4", "price_1")
	b.exec(`UPDATE payment_webhook_events SET payload = 'no json' WHERE external_event_id = 'evt_4'`)
	in := intake.New(b.store, intake.Settings{Owner: "test", Leeway: time.Hour}, zap.NewNop())
	t.Cleanup(func() { require.NoError(t, in.Drain(context.WithoutCancel(t.Context()))) })
	webhooks := &activities.Webhooks{Intake: in, Runs: b.runs}
	run := manual("webhook-apply")
	run.Batch = 2
	tally, err := b.run(b.environment(), webhooks.Apply, run)
	require.NoError(t, err)
	require.Equal(t, activities.Tally{Scanned: 4, Changed: 2, Skipped: 1, Failed: 1}, tally)
	require.Equal(t, 2, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'quarantined'`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM subscriptions WHERE status = 'active'`))

	b.exec(`UPDATE plans SET stripe_price_ids = '{price_1,price_unknown}'`)
	tally, err = b.run(b.environment(), webhooks.Apply, run)
	require.NoError(t, err)
	require.EqualValues(t, 1, tally.Changed, "the mapping exists now")
}
