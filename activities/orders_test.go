package activities_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/worker"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
)

// shop is the jobs on orders with the simulated provider.
type shop struct {
	*bench
	sim     *simulator.Simulator
	settler *settlement.Settler
	orders  *activities.Orders
}

func newShop(t *testing.T) *shop {
	t.Helper()
	b := newBench(t)
	sim := b.sink()
	client := payment.NewClient(secret.NewText("sk_test_1"), sim.StripeURL())
	t.Cleanup(client.Close)
	settler := &settlement.Settler{Store: b.store, Provider: client, Owner: "test", Log: zap.NewNop()}
	return &shop{bench: b, sim: sim, settler: settler, orders: &activities.Orders{Settler: settler, Runs: b.runs}}
}

// sell makes n orders that are due to be asked about, of as many users.
func (s *shop) sell(n int) []order.Order {
	s.t.Helper()
	var list []order.Order
	for i := range n {
		o, err := s.settler.Create(s.t.Context(), order.New{
			UserID: fmt.Sprintf("buyer_%d", i), PlanKey: "pro", Amount: 1000, Currency: "USD", Duration: time.Hour, ExpiresIn: time.Hour,
			LatePayment: order.LateFulfil, SuccessURL: "https://example.com/done", Actor: "test",
		})
		require.NoError(s.t, err)
		list = append(list, o)
	}
	s.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
	return list
}

func (s *shop) pay(list ...order.Order) {
	s.t.Helper()
	for _, o := range list {
		_, err := s.sim.PayCheckout(o.SessionID, simulator.PayOptions{DropWebhook: true})
		require.NoError(s.t, err)
	}
}

func (s *shop) reconcile() activities.Tally {
	s.t.Helper()
	s.exec(`DELETE FROM job_runs`) // the run id is always the same here
	run := manual("order-reconcile")
	run.Batch = 16
	tally, err := s.run(s.environment(), s.orders.ReconcilePending, run)
	require.NoError(s.t, err)
	return tally
}

func (s *shop) expire() activities.Tally {
	s.t.Helper()
	s.exec(`DELETE FROM job_runs`)
	run := manual("order-expiry")
	run.Batch = 16
	tally, err := s.run(s.environment(), s.orders.ExpireOverdue, run)
	require.NoError(s.t, err)
	return tally
}

// questions are the calls about orders since n calls.
func (s *shop) questions(n int) int {
	asked := 0
	for _, c := range s.sim.Calls()[n:] {
		if strings.HasPrefix(c.Path, "/v1/checkout/sessions") {
			asked++
		}
	}
	return asked
}

func (s *shop) byStatus() string {
	s.t.Helper()
	return s.text(`SELECT coalesce(string_agg(status || ' ' || n, ', ' ORDER BY status), '') FROM (SELECT status, count(*) n FROM payment_orders GROUP BY 1) o`)
}

func TestReconcileSettlesWhatNoEventTold(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	list := s.sell(40)
	s.pay(list[:25]...)
	require.Equal(t, activities.Tally{Scanned: 40, Changed: 25, Skipped: 15}, s.reconcile())
	require.Equal(t, "fulfilled 25, pending 15", s.byStatus())
	require.Equal(t, 15, s.count(`SELECT count(*) FROM payment_orders WHERE status = 'pending' AND attempts = 1 AND leased_until IS NULL
		AND next_attempt_at - asked_at = interval '1 minute'`))
	require.Zero(t, s.reconcile(), "each has its own pause")
	require.Equal(t, 25, s.count(`SELECT count(*) FROM order_fulfilments`))
}

func TestOverdueOrdersAreClosedThereFirst(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	list := s.sell(30)
	s.pay(list[:10]...)
	s.exec(`UPDATE payment_orders SET expires_at = now() - interval '1 second', next_attempt_at = now() + interval '30 minutes'`)
	require.Zero(t, s.reconcile(), "overdue ones are the other job's")
	require.Equal(t, activities.Tally{Scanned: 30, Changed: 30}, s.expire())
	require.Equal(t, "expired 20, fulfilled 10", s.byStatus())
	for _, o := range list[10:] {
		session, _, err := s.settler.Provider.Checkout(t.Context(), o.SessionID)
		require.NoError(t, err)
		require.Equal(t, "expired", session.Status)
	}
	require.Zero(t, s.expire())
}

// A provider that is down costs three questions in a run, whatever is due, and no order its attempts but those that were asked about.
func TestOneCircuitForAProviderThatIsDown(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	list := s.sell(50)
	s.pay(list...)
	s.exec(`UPDATE payment_orders SET expires_at = now() - interval '1 second'`)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: -1}))
	before := len(s.sim.Calls())
	tally := s.expire()
	require.Equal(t, 3, s.questions(before))
	require.EqualValues(t, 3, tally.Failed)
	require.Zero(t, tally.Changed)
	require.Equal(t, "pending 50", s.byStatus())
	require.Equal(t, 47, s.count(`SELECT count(*) FROM payment_orders WHERE attempts = 0 AND leased_until IS NULL AND next_attempt_at <= now()`))
	require.Zero(t, s.expire(), "it is paused, for both jobs")
	require.Equal(t, 3, s.questions(before))

	s.sim.ClearRESTFaults()
	s.exec(`UPDATE provider_pauses SET paused_until = now()`)
	s.expire()
	s.expire() // those that had no answer before became due when it answered
	require.Equal(t, "fulfilled 50", s.byStatus())
	require.Equal(t, 1, s.count(`SELECT count(*) FROM provider_pauses WHERE failures = 0 AND paused_until IS NULL`))
}

// With one order alone, too, the provider is left alone for a moment, and is tried again before the order's own pause is over.
func TestProviderIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pay(s.sell(1)...)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: -1}))
	before := len(s.sim.Calls())
	s.reconcile()
	require.Equal(t, 1, s.questions(before))
	require.Equal(t, 1, s.count(`SELECT count(*) FROM provider_pauses WHERE failures = 1 AND paused_until > now()`))
	s.reconcile()
	require.Equal(t, 1, s.questions(before))
	s.exec(`UPDATE provider_pauses SET paused_until = now()`)
	s.reconcile()
	require.Equal(t, 2, s.questions(before), "when its pause is over it is tried")
	require.Equal(t, 1, s.count(`SELECT count(*) FROM provider_pauses WHERE failures = 2 AND paused_until > now() + interval '7 seconds'`))
	s.sim.ClearRESTFaults()
	s.exec(`UPDATE provider_pauses SET paused_until = now()`)
	s.reconcile()
	require.Equal(t, "fulfilled 1", s.byStatus())
	require.Equal(t, 1, s.count(`SELECT count(*) FROM provider_pauses WHERE failures = 0`))
}

func TestTooManyRequestsStopsTheRunAtOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sell(20)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status429, Count: -1, RetryAfter: 10 * time.Minute}))
	before := len(s.sim.Calls())
	s.reconcile()
	require.Equal(t, 1, s.questions(before))
	require.Equal(t, 1, s.count(`SELECT count(*) FROM provider_pauses WHERE paused_until BETWEEN now() + interval '9 minutes' AND now() + interval '10 minutes'`))
	require.Equal(t, "pending 20", s.byStatus())
}

// One order that the provider always fails on stops none of the others.
func TestPoisonOrderStopsNoOther(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	list := s.sell(20)
	s.pay(list...)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: -1, Path: "/v1/checkout/sessions/" + list[0].SessionID}))
	s.exec(`UPDATE payment_orders SET next_attempt_at = now() - interval '1 hour' WHERE id = $1`, list[0].ID)
	require.Equal(t, activities.Tally{Scanned: 20, Changed: 19, Failed: 1}, s.reconcile())
	require.Equal(t, "fulfilled 19, pending 1", s.byStatus())

	// Nor does one whose fulfilment fails.
	list = s.sell(3)
	s.pay(list...)
	s.exec(`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.user_id = 'buyer_1' THEN RAISE EXCEPTION 'canary'; END IF; RETURN NEW; END $$`)
	s.exec(`CREATE TRIGGER poison BEFORE INSERT OR UPDATE ON subscriptions FOR EACH ROW EXECUTE FUNCTION poison()`)
	s.reconcile()
	require.Equal(t, "fulfilled 21, paid 1, pending 1", s.byStatus())
	require.Zero(t, s.count(`SELECT count(*) FROM payment_orders WHERE last_error LIKE '%canary%'`))
	s.exec(`DROP TRIGGER poison ON subscriptions`)
	s.exec(`UPDATE payment_orders SET next_attempt_at = now() WHERE status = 'paid'`)
	require.Equal(t, activities.Tally{Scanned: 1, Changed: 1}, s.expire())
	require.Equal(t, "fulfilled 22, pending 1", s.byStatus())
}

// What a dead process left in the middle is completed when its lease has passed, and not before.
func TestWhatWasLeftBehindIsCompleted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	list := s.sell(4)
	s.pay(list...)
	s.reconcile()
	_, err := s.settler.Store.ChangeOrder(t.Context(), list[0].ID, "test", func(o order.Order, p []order.Payment, at time.Time) (order.Outcome, error) { return o.Refund(p, at) })
	require.NoError(t, err)
	second := s.sell(1)[0]
	s.pay(second)
	session, _, err := s.settler.Provider.Checkout(t.Context(), second.SessionID)
	require.NoError(t, err)
	_, err = s.settler.Store.ChangeOrder(t.Context(), second.ID, "test", func(o order.Order, p []order.Payment, at time.Time) (order.Outcome, error) {
		paid := session.Payments[0]
		return o.Hear(p, order.Answer{Checkout: order.Done, Payments: []order.Payment{{ID: paid.ID, Amount: paid.Amount, Currency: paid.Currency, CapturedAt: paid.Created}}}, at), nil
	})
	require.NoError(t, err)
	held, err := s.settler.Store.ClaimOrders(t.Context(), store.OrdersToFinish, "dead", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, held, 2)
	require.Equal(t, "fulfilled 3, fulfilling 1, refunding 1", s.byStatus())
	require.Zero(t, s.expire(), "their lease holds")
	s.exec(`UPDATE payment_orders SET leased_until = now(), next_attempt_at = now() WHERE lease_owner LIKE 'dead/%'`)
	require.Equal(t, activities.Tally{Scanned: 2, Changed: 2}, s.expire())
	require.Equal(t, "fulfilled 4, refunded 1", s.byStatus())
	n, err := s.store.UnsettledMoney(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
}

// A run that is stopped gives its orders back, and counts no attempt.
func TestStoppedRunGivesOrdersBack(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sell(5)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Hang, Count: -1}))
	env := s.environment()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	env.SetWorkerOptions(worker.Options{BackgroundActivityContext: ctx})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.run(env, s.orders.ReconcilePending, manual("order-reconcile"))
	}()
	require.Eventually(t, func() bool { return s.count(`SELECT count(*) FROM payment_orders WHERE leased_until IS NOT NULL`) == 5 }, 10*time.Second, 5*time.Millisecond)
	stop()
	<-done
	require.Equal(t, 5, s.count(`SELECT count(*) FROM payment_orders WHERE status = 'pending' AND attempts = 0 AND leased_until IS NULL AND next_attempt_at <= now()`))
}
