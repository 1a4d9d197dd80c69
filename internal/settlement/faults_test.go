package settlement_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
)

// Each kind of no answer leaves an overdue order as it is, paid or not; when the provider answers, a paid one is fulfilled once and
// an unpaid one ends.
func TestNoAnswerEndsNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{
		simulator.Status500, simulator.Status429, simulator.Hang, simulator.HTML, simulator.Truncated, simulator.Status401, simulator.Reset,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			paid, unpaid := b.create(), b.create()
			b.pay(paid, simulator.PayOptions{})
			b.overdue(paid)
			b.overdue(unpaid)
			require.NoError(t, b.sim.AddRESTFault(simulator.RESTFault{Kind: kind, Count: -1, RetryAfter: 7 * time.Minute}))
			require.Equal(t, 2, b.work(store.OrdersToClose))
			for _, o := range []order.Order{paid, unpaid} {
				now := b.order(o)
				require.Equal(t, order.Pending, now.Status)
				require.Equal(t, 1, now.Attempts)
				require.NotZero(t, now.UnansweredSince)
				require.NotEmpty(t, now.LastError)
				require.Empty(t, now.LeaseOwner)
				wait := now.NextAttemptAt.Sub(now.AskedAt)
				if kind == simulator.Status429 {
					require.Equal(t, 7*time.Minute, wait, "Retry-After")
				} else {
					require.Equal(t, time.Minute, wait)
				}
			}
			require.Zero(t, b.work(store.OrdersToClose), "their pause holds")
			require.Zero(t, b.count(`SELECT count(*) FROM subscriptions`))

			b.sim.ClearRESTFaults()
			b.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
			require.Zero(t, b.work(store.OrdersToClose))
			require.Equal(t, order.Fulfilled, b.order(paid).Status)
			require.Equal(t, order.Expired, b.order(unpaid).Status)
			b.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
			require.Zero(t, b.work(store.OrdersToClose))
			require.Zero(t, b.work(store.OrdersToFinish))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM order_fulfilments`))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at - started_at = interval '720 hours'`))
			b.settled()
		})
	}
}

// A provider that fails between the question and the closing has not confirmed anything.
func TestUnpaidExpiresOnlyAfterTheProviderConfirmed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.overdue(o)
	require.NoError(t, b.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Method: "POST", Path: "/v1/checkout/sessions/", Count: 1}))
	require.Equal(t, 1, b.work(store.OrdersToClose))
	require.Equal(t, order.Pending, b.order(o).Status)
	b.pay(o, simulator.PayOptions{}) // in the last moment
	b.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
	require.Zero(t, b.work(store.OrdersToClose))
	require.Equal(t, order.Fulfilled, b.order(o).Status)

	// It was closed there, and the answer was lost: the next one says so.
	o = b.create()
	b.overdue(o)
	require.NoError(t, b.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Truncated, Method: "POST", Path: "/v1/checkout/sessions/"}))
	require.Equal(t, 1, b.work(store.OrdersToClose))
	require.Equal(t, order.Pending, b.order(o).Status)
	b.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
	require.Zero(t, b.work(store.OrdersToClose))
	require.Equal(t, order.Expired, b.order(o).Status)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'order.expired'`))
	b.settled()
}

// A row that an event holds is left out by the claim, and is not ended.
func TestRowThatAnEventHoldsIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	b.overdue(o)
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM payment_orders WHERE id = $1 FOR UPDATE`, o.ID)
	require.NoError(t, err)
	claimed, err := b.Store.ClaimOrders(t.Context(), store.OrdersToClose, "job", 10, settlement.Lease)
	require.NoError(t, err)
	require.Empty(t, claimed)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, b.work(store.OrdersToClose))
	require.Equal(t, order.Fulfilled, b.order(o).Status)
	b.settled()
}

// Everybody hears of the payment at the same moment: events, the job and a person.
func TestEverybodySettlesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const orders = 5
	for range orders {
		o := b.create()
		b.pay(o, simulator.PayOptions{})
		b.overdue(o)
		session, _, err := b.Provider.Checkout(t.Context(), o.SessionID)
		require.NoError(t, err)
		claimed, err := b.Store.ClaimOrders(t.Context(), store.OrdersToClose, "job", 1, settlement.Lease)
		require.NoError(t, err)
		require.Len(t, claimed, 1)
		begin := make(chan struct{})
		var together sync.WaitGroup
		for range 3 {
			together.Go(func() {
				<-begin
				_, _ = b.Take(t.Context(), settlement.Evidence{Session: &session})
			})
		}
		together.Go(func() {
			<-begin
			_, _ = b.Ask(t.Context(), claimed[0], true, "job")
		})
		together.Go(func() {
			<-begin
			_, _ = b.Verify(t.Context(), o.ID, "person")
		})
		close(begin)
		together.Wait()
		require.Equal(t, order.Fulfilled, b.order(o).Status)
	}
	require.Equal(t, orders, b.count(`SELECT count(*) FROM order_fulfilments`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at - started_at BETWEEN interval '3599 hours' AND interval '3600 hours'`), "five times thirty days")
	require.Equal(t, orders, b.count(`SELECT count(*) FROM outbox WHERE topic = 'order.fulfilled'`))
	b.settled()
}

// Orders of one user that are fulfilled at the same moment make one subscription, extended by each.
func TestOrdersOfOneUserAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var orders []order.Order
	for range 8 {
		o := b.create()
		b.pay(o, simulator.PayOptions{})
		orders = append(orders, o)
	}
	var together sync.WaitGroup
	for _, o := range orders {
		together.Go(func() { _, _ = b.Verify(t.Context(), o.ID, "person") })
	}
	together.Wait()
	for _, o := range orders {
		require.Equal(t, order.Fulfilled, b.order(o).Status)
	}
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at - started_at BETWEEN interval '5759 hours' AND interval '5760 hours'`))
	b.settled()
}

// A lease that ran out makes the slow one harmless: it finds that the order is somebody else's.
func TestLateFulfilmentIsFenced(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	b.exec(`CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
	b.exec(`CREATE TRIGGER broken BEFORE INSERT ON subscriptions FOR EACH ROW EXECUTE FUNCTION broken()`)
	after, err := b.Verify(t.Context(), o.ID, "person")
	require.NoError(t, err)
	require.Equal(t, order.Paid, after.Status, "what was paid is kept although it cannot be fulfilled")
	require.Equal(t, 1, after.Attempts)
	require.NotEmpty(t, after.LastError)
	require.Zero(t, b.count(`SELECT count(*) FROM order_fulfilments`))
	b.exec(`DROP TRIGGER broken ON subscriptions`)

	slow, err := b.Store.ClaimOrder(t.Context(), o.ID, "slow", time.Millisecond)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		b.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
		b.work(store.OrdersToFinish)
		return b.order(o).Status == order.Fulfilled
	}, 10*time.Second, 5*time.Millisecond)
	_, err = b.Store.FulfilOrder(t.Context(), slow, "slow")
	require.ErrorIs(t, err, store.ErrConflict)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at - started_at = interval '720 hours'`))
	b.settled()
}

func TestCheckoutThatTheProviderDoesNotKnow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.exec(`UPDATE payment_orders SET provider_session_id = 'cs_of_another_account', expires_at = now() - interval '1 second'`)
	for range 3 {
		require.Equal(t, order.Pending, b.order(o).Status)
		require.Zero(t, b.work(store.OrdersToClose), "it answered, but not of the order")
		b.exec(`UPDATE payment_orders SET next_attempt_at = now(), not_found_since = not_found_since - interval '5 minutes'`)
	}
	now := b.order(o)
	require.Equal(t, order.Review, now.Status)
	require.Equal(t, order.ReasonNotFound, now.Reason)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.order_review'`))
}

func TestAnHourOfSilenceIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	require.NoError(t, b.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: -1}))
	for range 3 {
		b.exec(`UPDATE payment_orders SET next_attempt_at = now(), unanswered_since = unanswered_since - interval '40 minutes'`)
		require.Equal(t, 1, b.work(store.OrdersToAsk))
	}
	require.Equal(t, order.Pending, b.order(o).Status)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.order_unanswered'`))
}

// What was not answered may have been made: it is looked for before anything is made again.
func TestCheckoutWhoseMakingWasNotAnswered(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]simulator.RESTFault{
		"not made":             {Kind: simulator.Status500, Method: "POST"},
		"made, answer lost":    {Kind: simulator.Truncated, Method: "POST"},
		"made, answer a fault": {Kind: simulator.Status500, Method: "POST", After: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			in := order.New{
				ID: store.NewID(), UserID: "u_1", PlanKey: "pro", Amount: 1000, Currency: "USD", ExpiresIn: time.Hour, LatePayment: order.LateFulfil,
				SuccessURL: "https://example.com/done", Actor: "test",
			}
			require.NoError(t, b.sim.AddRESTFault(fault))
			o, err := b.Create(t.Context(), in)
			require.ErrorIs(t, err, payment.ErrNoAnswer)
			require.Equal(t, order.Pending, o.Status)
			require.Empty(t, o.SessionID)
			o, err = b.Create(t.Context(), in)
			require.NoError(t, err)
			require.NotEmpty(t, o.SessionID)
			again, err := b.Create(t.Context(), in)
			require.NoError(t, err)
			require.Equal(t, o, again, "a repeated request finds the first one's")
			require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_orders`))
			b.pay(o, simulator.PayOptions{})
			_, err = b.Verify(t.Context(), o.ID, "person")
			require.NoError(t, err)
			b.settled()
		})
	}
}

// The process died after the checkout was made, and nobody asks again: the job finds the checkout, whose payment counts.
func TestJobFindsTheCheckoutOfAnOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	b.exec(`UPDATE payment_orders SET provider_session_id = NULL, checkout_url = NULL, next_attempt_at = now()`)
	require.Zero(t, b.work(store.OrdersToAsk))
	now := b.order(o)
	require.Equal(t, order.Fulfilled, now.Status)
	require.Equal(t, o.SessionID, now.SessionID)

	// Without any checkout there it fails, once that is sure.
	b.exec(`UPDATE payment_orders SET id = gen_random_uuid()
		WHERE id NOT IN (SELECT order_id FROM order_fulfilments)`)
	lost, err := b.Store.CreateOrder(t.Context(), order.New{UserID: "u_2", PlanKey: "pro", Amount: 1, Currency: "USD", ExpiresIn: time.Hour, LatePayment: order.LateFulfil})
	require.NoError(t, err)
	b.overdue(lost)
	for range 3 {
		require.Equal(t, order.Pending, b.order(lost).Status)
		b.exec(`UPDATE payment_orders SET next_attempt_at = now(), not_found_since = not_found_since - interval '6 minutes'`)
		require.Zero(t, b.work(store.OrdersToClose))
	}
	require.Equal(t, order.Failed, b.order(lost).Status)
	b.settled()
}

func TestProviderRefusesTheCheckout(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.Create(t.Context(), order.New{
		UserID: "u_1", PlanKey: "pro", Amount: 1000, Currency: "USD", ExpiresIn: time.Hour, LatePayment: order.LateFulfil, Actor: "test",
	}) // no address to return to
	var refused *payment.RefusalError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_orders WHERE status = 'failed' AND reason = 'checkout_refused'`))
}
