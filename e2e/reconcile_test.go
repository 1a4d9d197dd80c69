package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// A worker is killed in the middle of a sweep, twice. The next one goes on where it was, and every difference is found and repaired
// once.
func TestWorkerIsKilledInTheMiddleOfASweep(t *testing.T) {
	t.Parallel()
	const subscriptions, changed = 600, 30
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.WithoutCancel(t.Context()))) })
	fixtures := make([]simulator.SubscriptionFixture, subscriptions)
	for n := range fixtures {
		fixtures[n] = simulator.SubscriptionFixture{
			ID: fmt.Sprintf("sub_%04d", n), PriceID: "price_pro", UserID: fmt.Sprintf("u_%04d", n), PeriodStart: sim.Now().AddDate(0, 0, -3),
		}
	}
	_, err = sim.AddSubscriptions(fixtures...)
	require.NoError(t, err)
	s := newSystemWithJobs(t)
	s.plan(t)
	s.environ = append(s.environ, "STRIPE_API_KEY="+stripeKey, "STRIPE_API_BASE="+sim.StripeURL(), "TERMKEEPER_JOB_SUBSCRIPTION_RECONCILE_EVERY=2s")

	rows := 0
	for _, killAt := range []int{120, 330} {
		worker := s.startWorker(t)
		await(t, fmt.Sprintf("the sweep has made %d rows", killAt), func() error {
			if rows = s.count(t, `SELECT count(*) FROM subscriptions`); rows < killAt {
				return fmt.Errorf("%d rows", rows)
			}
			return nil
		})
		worker.kill(t)
		require.Equal(t, "sweep", s.text(t, `SELECT phase FROM reconcile_state`), "it was killed in the middle")
	}
	require.Less(t, rows, subscriptions)
	s.startWorker(t)
	s.awaitSweep(t)
	first := 0
	for _, call := range sim.Calls() {
		if call.Method == http.MethodGet && call.Path == "/v1/subscriptions" && !strings.Contains(call.Body, "starting_after") {
			first++
		}
	}
	require.Equal(t, 1, first, "the list is not begun again")
	require.Equal(t, subscriptions, s.count(t, `SELECT count(*) FROM subscriptions WHERE status = 'active' AND version = 1 AND gives_access(subscriptions, now())`))
	require.Equal(t, subscriptions, s.count(t, `SELECT count(DISTINCT external_id) FROM drift_findings WHERE kind = 'missing' AND action = 'repaired'`))
	require.Equal(t, subscriptions, s.count(t, `SELECT count(*) FROM drift_findings`), "each difference is found once")
	require.Equal(t, subscriptions, s.count(t, `SELECT count(*) FROM outbox WHERE topic = 'access.started'`))

	yes := true
	for n := range changed {
		require.True(t, sim.ChangeSubscription(fixtures[n*subscriptions/changed].ID, simulator.SubscriptionChange{CancelAtPeriodEnd: &yes, Silent: true}))
	}
	s.exec(t, `UPDATE reconcile_state SET swept_on = swept_on - 1`)
	s.awaitSweep(t)
	require.Equal(t, changed, s.count(t, `SELECT count(*) FROM subscriptions WHERE cancel_at_period_end AND version = 2`))
	require.Equal(t, subscriptions-changed, s.count(t, `SELECT count(*) FROM subscriptions WHERE version = 1`), "no other row is touched")
	await(t, "operators are told", func() error {
		if told := s.count(t, `SELECT coalesce(sum((payload ->> 'repaired')::int), 0) FROM outbox WHERE topic = 'alert.drift'`); told != subscriptions+changed {
			return fmt.Errorf("of %d repairs", told)
		}
		return nil
	})
	s.requireInvariants(t)
}

// awaitSweep waits until today's sweep is over.
func (s *system) awaitSweep(t *testing.T) {
	t.Helper()
	await(t, "the sweep is over", func() error {
		if s.count(t, `SELECT count(*) FROM reconcile_state WHERE phase IS NULL AND swept_on = (now() AT TIME ZONE 'UTC')::date`) != 1 {
			return fmt.Errorf("%d rows", s.count(t, `SELECT count(*) FROM subscriptions`))
		}
		return nil
	})
}
