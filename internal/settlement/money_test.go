package settlement_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
)

// hear takes the event that a checkout is paid, as intake does.
func (b *bench) hear(o order.Order) order.Order {
	b.t.Helper()
	session, _, err := b.Provider.Checkout(b.t.Context(), o.SessionID)
	require.NoError(b.t, err)
	after, err := b.Take(b.t.Context(), settlement.Evidence{Session: &session})
	require.NoError(b.t, err)
	return after
}

// hearOf takes the event that a payment succeeded.
func (b *bench) hearOf(o order.Order, paymentID string) order.Order {
	b.t.Helper()
	after, err := b.Take(b.t.Context(), settlement.Evidence{Payment: &payment.Payment{ID: paymentID, OrderID: o.ID}})
	require.NoError(b.t, err)
	return after
}

func (b *bench) refunds() int {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM refunds WHERE status = 'succeeded'`)
}

// A payment after the order expired: the policy decides, once, and is never silent about it.
func TestPaidAfterItExpired(t *testing.T) {
	t.Parallel()
	for policy, want := range map[order.Policy]order.Status{order.LateFulfil: order.Fulfilled, order.LateRefund: order.Refunded, order.LateReview: order.Review} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			o := b.create(func(in *order.New) { in.LatePayment = policy })
			b.overdue(o)
			require.Zero(t, b.work(store.OrdersToClose))
			require.Equal(t, order.Expired, b.order(o).Status)
			late, err := b.sim.ExtraPayment(o.SessionID, simulator.PayOptions{DropWebhook: true})
			require.NoError(t, err)
			require.Equal(t, want, b.hearOf(o, late.ID).Status)
			require.Equal(t, want, b.hearOf(o, late.ID).Status, "the second event of it")
			_, err = b.Verify(t.Context(), o.ID, "person")
			require.NoError(t, err)
			require.Equal(t, want, b.order(o).Status)
			require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.order_late_payment'`))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM audit_log WHERE action = 'order_paid_late'`))
			fulfilled, refunded := 0, 0
			switch policy {
			case order.LateFulfil:
				fulfilled = 1
			case order.LateRefund:
				refunded = 1
			case order.LateReview:
			}
			require.Equal(t, fulfilled, b.count(`SELECT count(*) FROM order_fulfilments`))
			require.Equal(t, refunded, b.refunds())
			b.settled()
		})
	}
}

func TestWrongMoneyIsNotFulfilled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		paid   simulator.PayOptions
		reason string
	}{
		"a tenth":        {simulator.PayOptions{Amount: 100}, order.ReasonAmount},
		"a cent more":    {simulator.PayOptions{Amount: 1001}, order.ReasonAmount},
		"euro":           {simulator.PayOptions{Currency: "eur"}, order.ReasonCurrency},
		"a thousand yen": {simulator.PayOptions{Currency: "jpy"}, order.ReasonCurrency},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			o := b.create()
			b.pay(o, c.paid)
			after := b.hear(o)
			require.Equal(t, order.Review, after.Status)
			require.Equal(t, c.reason, after.Reason)
			require.Zero(t, b.count(`SELECT count(*) FROM order_fulfilments`))
			require.Zero(t, b.count(`SELECT count(*) FROM subscriptions`))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.order_review'`))
			b.settled()

			refunded, err := b.Resolve(t.Context(), o.ID, order.AsRefunded, "person")
			require.NoError(t, err)
			require.Equal(t, order.Refunded, refunded.Status)
			require.Equal(t, 1, b.refunds())
			b.settled()
		})
	}
}

// A zero-decimal currency has no cents: 1000 JPY is 1000.
func TestYenAreCountedAsTheyAre(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create(func(in *order.New) { in.Amount, in.Currency = 1000, "JPY" })
	b.pay(o, simulator.PayOptions{})
	require.Equal(t, order.Fulfilled, b.hear(o).Status)
	b.settled()
}

func TestTwoPaymentsOfOneOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	first := b.pay(o, simulator.PayOptions{})
	require.Equal(t, order.Fulfilled, b.hear(o).Status)
	second, err := b.sim.ExtraPayment(o.SessionID, simulator.PayOptions{DropWebhook: true})
	require.NoError(t, err)
	require.Equal(t, order.Fulfilled, b.hearOf(o, second.ID).Status)
	require.Equal(t, order.Fulfilled, b.hearOf(o, second.ID).Status)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM order_fulfilments`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payments WHERE external_id = $1 AND state = 'fulfilled'`, first))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payments WHERE external_id = $1 AND state = 'review' AND reason = 'second_payment'`, second.ID))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.order_review'`))
	b.settled()

	after, err := b.Resolve(t.Context(), o.ID, order.AsRefunded, "person")
	require.NoError(t, err)
	require.Equal(t, order.Fulfilled, after.Status)
	require.Equal(t, 1, b.refunds())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payments WHERE external_id = $1 AND state = 'refunded'`, second.ID))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE status = 'active' AND expires_at > now()`))
	b.settled()
}

// Both payments are heard of at the same time, before anything was fulfilled.
func TestTwoPaymentsHeardOfTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	_, err := b.sim.ExtraPayment(o.SessionID, simulator.PayOptions{DropWebhook: true})
	require.NoError(t, err)
	after, err := b.Verify(t.Context(), o.ID, "person")
	require.NoError(t, err)
	require.Equal(t, order.Fulfilled, after.Status)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM order_fulfilments`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payments WHERE state = 'review'`))
	b.settled()
}

func TestRefundTakesBackWhatThePlanSays(t *testing.T) {
	t.Parallel()
	for policy, after := range map[string]string{
		"keep": `status = 'active' AND expires_at - started_at = interval '720 hours'`,
		"end":  `status = 'canceled' AND expires_at <= now()`,
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.exec(`UPDATE plans SET refund_policy = $1`, policy)
			o := b.create()
			b.pay(o, simulator.PayOptions{})
			b.hear(o)
			refunded, err := b.Refund(t.Context(), o.ID, "person")
			require.NoError(t, err)
			require.Equal(t, order.Refunded, refunded.Status)
			require.Equal(t, 1, b.refunds())
			require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE `+after))
			_, err = b.Refund(t.Context(), o.ID, "person")
			require.ErrorIs(t, err, order.ErrConflict)
			require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'order.refunded'`))
		})
	}
}

// Only the time that this order gave, and that lies ahead, is taken back.
func TestRefundLeavesWhatOtherOrdersGave(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`UPDATE plans SET refund_policy = 'end'`)
	var orders []order.Order
	for range 2 {
		o := b.create()
		b.pay(o, simulator.PayOptions{})
		orders = append(orders, b.hear(o))
	}
	// Ten days have passed since.
	b.exec(`UPDATE subscriptions SET started_at = started_at - interval '240 hours', expires_at = expires_at - interval '240 hours'`)
	b.exec(`UPDATE order_fulfilments SET from_at = from_at - interval '240 hours', until_at = until_at - interval '240 hours'`)
	_, err := b.Refund(t.Context(), orders[0].ID, "person")
	require.NoError(t, err)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE status = 'active' AND expires_at - now() BETWEEN interval '719 hours' AND interval '720 hours'`), "twenty days are taken back of fifty")
	b.settled()
}

// A refund that was asked for and not answered is looked for before it is asked for again.
func TestRefundIsGivenOnce(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]simulator.RESTFault{
		"made, answer lost":    {Kind: simulator.Truncated, Method: "POST", Path: "/v1/refunds"},
		"made, answer a fault": {Kind: simulator.Status500, Method: "POST", Path: "/v1/refunds", After: true},
		"not made":             {Kind: simulator.Status500, Method: "POST", Path: "/v1/refunds"},
		"list not read":        {Kind: simulator.Status429, Method: "GET", Path: "/v1/refunds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			o := b.create()
			b.pay(o, simulator.PayOptions{})
			b.hear(o)
			require.NoError(t, b.sim.AddRESTFault(fault))
			refunding, err := b.Refund(t.Context(), o.ID, "person")
			require.NoError(t, err)
			require.Equal(t, order.Refunding, refunding.Status)
			require.Equal(t, 1, refunding.Attempts)
			b.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
			require.Zero(t, b.work(store.OrdersToFinish))
			require.Equal(t, order.Refunded, b.order(o).Status)
			given, err := b.Provider.Refunds(t.Context(), b.payments(o)[0].ID)
			require.NoError(t, err)
			require.Len(t, given, 1)
			b.settledRefund()
		})
	}
}

func (b *bench) payments(o order.Order) []order.Payment {
	b.t.Helper()
	list, err := b.Store.OrderPayments(b.t.Context(), o.ID)
	require.NoError(b.t, err)
	return list
}

func (b *bench) settledRefund() {
	b.t.Helper()
	n, err := b.Store.UnsettledMoney(b.t.Context())
	require.NoError(b.t, err)
	require.Zero(b.t, n)
}

// Somebody refunds at the provider: the order follows, by the event.
func TestRefundAtTheProvider(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`UPDATE plans SET refund_policy = 'end'`)
	o := b.create()
	paid := b.pay(o, simulator.PayOptions{})
	b.hear(o)
	part, err := b.Provider.Refund(t.Context(), paid, 400, "part")
	require.NoError(t, err)
	after, err := b.Refunded(t.Context(), part)
	require.NoError(t, err)
	require.Equal(t, order.Fulfilled, after.Status, "a part takes no time")
	require.Equal(t, int64(400), b.payments(o)[0].Refunded)
	rest, err := b.Provider.Refund(t.Context(), paid, 600, "rest")
	require.NoError(t, err)
	for range 2 {
		after, err = b.Refunded(t.Context(), rest)
		require.NoError(t, err)
		require.Equal(t, order.Refunded, after.Status)
	}
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE status = 'canceled'`))

	// And without any event, once somebody looks.
	other := b.create()
	paid = b.pay(other, simulator.PayOptions{})
	b.hear(other)
	_, err = b.Provider.Refund(t.Context(), paid, 0, "all")
	require.NoError(t, err)
	after, err = b.Verify(t.Context(), other.ID, "person")
	require.NoError(t, err)
	require.Equal(t, order.Refunded, after.Status)
	_, err = b.Refunded(t.Context(), payment.Refund{PaymentID: "pi_of_somebody_else"})
	require.ErrorIs(t, err, store.ErrNotFound)
	b.settledRefund()
}

// Somebody refunds at the provider between the payment and the fulfilment: nothing is given for it.
func TestRefundWhileItIsFulfilled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	paid := b.pay(o, simulator.PayOptions{})
	b.exec(`CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
	b.exec(`CREATE TRIGGER broken BEFORE INSERT ON subscriptions FOR EACH ROW EXECUTE FUNCTION broken()`)
	require.Equal(t, order.Paid, b.hear(o).Status)
	b.exec(`DROP TRIGGER broken ON subscriptions`)
	claimed, err := b.Store.ClaimOrder(t.Context(), o.ID, "slow", time.Minute)
	require.NoError(t, err)
	refund, err := b.Provider.Refund(t.Context(), paid, 0, "by hand")
	require.NoError(t, err)
	after, err := b.Refunded(t.Context(), refund)
	require.NoError(t, err)
	require.Equal(t, order.Refunded, after.Status)
	_, err = b.Store.FulfilOrder(t.Context(), claimed, "slow")
	require.ErrorIs(t, err, store.ErrConflict)
	require.Zero(t, b.count(`SELECT count(*) FROM subscriptions`))
	require.Equal(t, order.Refunded, b.hear(o).Status, "the late event of the payment")
	b.settled()
}

// A refund that was on its way and came back is a person's business.
func TestRefundThatCameBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	b.hear(o)
	b.sim.HoldRefunds(true)
	after, err := b.Refund(t.Context(), o.ID, "person")
	require.NoError(t, err)
	require.Equal(t, order.Refunded, after.Status, "it is on its way")
	given, err := b.Provider.Refunds(t.Context(), b.payments(o)[0].ID)
	require.NoError(t, err)
	_, err = b.sim.FinishRefund(given[0].ID, false)
	require.NoError(t, err)
	given, err = b.Provider.Refunds(t.Context(), b.payments(o)[0].ID)
	require.NoError(t, err)
	after, err = b.Refunded(t.Context(), given[0])
	require.NoError(t, err)
	require.Equal(t, order.Review, after.Status)
	require.Equal(t, order.ReasonRefundFailed, after.Reason)
	b.settledRefund()
}

func TestCancelClosesAtTheProviderFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	canceled, err := b.Cancel(t.Context(), o.ID, "person")
	require.NoError(t, err)
	require.Equal(t, order.Canceled, canceled.Status)
	_, err = b.sim.PayCheckout(o.SessionID, simulator.PayOptions{})
	require.Error(t, err, "nobody can pay any more")

	o = b.create()
	b.pay(o, simulator.PayOptions{})
	after, err := b.Cancel(t.Context(), o.ID, "person")
	require.ErrorIs(t, err, order.ErrConflict)
	require.Equal(t, order.Fulfilled, after.Status, "a payment that was faster wins")

	o = b.create()
	require.NoError(t, b.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: 1}))
	after, err = b.Cancel(t.Context(), o.ID, "person")
	require.ErrorIs(t, err, payment.ErrNoAnswer)
	require.Equal(t, order.Pending, after.Status)
	b.exec(`UPDATE payment_orders SET next_attempt_at = now()`)
	require.Zero(t, b.work(store.OrdersToAsk))
	require.Equal(t, order.Canceled, b.order(o).Status, "what was asked for is done when it answers")
	b.settled()
}

// Money on its way is neither paid nor can it be stopped.
func TestAsynchronousPayment(t *testing.T) {
	t.Parallel()
	for name, succeeds := range map[string]bool{"comes": true, "does not come": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			o := b.create()
			paid := b.pay(o, simulator.PayOptions{Async: true})
			b.overdue(o)
			require.Zero(t, b.work(store.OrdersToClose))
			require.Equal(t, order.Pending, b.order(o).Status)
			require.Equal(t, order.Pending, b.hear(o).Status)
			_, err := b.Cancel(t.Context(), o.ID, "person")
			require.ErrorIs(t, err, order.ErrConflict)
			b.exec(`UPDATE payment_orders SET reason = NULL`)
			_, err = b.sim.FinishPayment(paid, succeeds, true)
			require.NoError(t, err)
			want := order.Expired
			if succeeds {
				want = order.Fulfilled
			}
			require.Equal(t, want, b.hear(o).Status)
			b.settled()
		})
	}
}

// An attempt that was declined leaves the checkout open, and the next one pays.
func TestDeclinedAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{Fail: true})
	require.Equal(t, order.Pending, b.hear(o).Status)
	b.pay(o, simulator.PayOptions{})
	require.Equal(t, order.Fulfilled, b.hear(o).Status)
	b.settled()
}

func TestVerifyAsksOnceInAWhile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	_, err := b.Verify(t.Context(), o.ID, "person")
	require.NoError(t, err)
	calls := len(b.sim.Calls())
	b.pay(o, simulator.PayOptions{})
	after, err := b.Verify(t.Context(), o.ID, "person")
	require.NoError(t, err)
	require.Equal(t, order.Pending, after.Status)
	require.Len(t, b.sim.Calls(), calls, "within three seconds nobody is asked again")
	b.exec(`UPDATE payment_orders SET asked_at = asked_at - interval '4 seconds'`)
	after, err = b.Verify(t.Context(), o.ID, "person")
	require.NoError(t, err)
	require.Equal(t, order.Fulfilled, after.Status)
	_, err = b.Verify(t.Context(), store.NewID(), "person")
	require.ErrorIs(t, err, store.ErrNotFound)
}

// What cannot be given is not kept: a lifetime cannot be extended.
func TestOrderOfALifetimeThatIsThere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`UPDATE plans SET duration = NULL, lifetime = true`)
	var orders []order.Order
	for range 2 {
		o := b.create(func(in *order.New) { in.Duration = 0 })
		b.pay(o, simulator.PayOptions{})
		orders = append(orders, b.hear(o))
	}
	require.Equal(t, order.Fulfilled, orders[0].Status)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at = 'infinity' AND status = 'active'`))
	require.Equal(t, order.Review, orders[1].Status)
	require.Equal(t, order.ReasonNoTerm, orders[1].Reason)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.order_review'`))
	b.settled()
}

// An order extends the user's own subscription of its plan, also an expired one, and never the provider's.
func TestWhatAnOrderExtends(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, expires_at, provider, external_id) VALUES ('u_1', 'pro', 'active', now() + interval '1 day', 'stripe', 'sub_1')`)
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at) VALUES ('u_1', 'pro', 'canceled', now() - interval '9 days', now() - interval '8 days')`)
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at, expired_at) VALUES ('u_1', 'pro', 'expired', now() - interval '9 days', now() - interval '8 days', now())`)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	require.Equal(t, order.Fulfilled, b.hear(o).Status)
	require.Equal(t, 3, b.count(`SELECT count(*) FROM subscriptions`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE status = 'active' AND provider IS NULL AND expires_at - now() BETWEEN interval '719 hours' AND interval '720 hours'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE provider = 'stripe' AND expires_at - now() < interval '1 day'`))
	b.settled()
}

// Without a key the signed event is all there is.
func TestEventIsTakenAtItsWordWithoutAKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	session, _, err := b.Provider.Checkout(t.Context(), o.SessionID)
	require.NoError(t, err)
	session.Payments = nil // as in an event
	alone := &settlement.Settler{Store: b.Store, Owner: "keyless", Log: b.Log}
	after, err := alone.Take(t.Context(), settlement.Evidence{Session: &session})
	require.NoError(t, err)
	require.Equal(t, order.Fulfilled, after.Status)
	_, err = alone.Take(t.Context(), settlement.Evidence{Payment: &payment.Payment{
		ID: session.PaymentIntentID, OrderID: o.ID, Status: "succeeded", Amount: 1000, Currency: "USD", Created: time.Now(),
	}})
	require.NoError(t, err)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payments`))
	_, err = alone.Take(t.Context(), settlement.Evidence{Payment: &payment.Payment{ID: "pi_1", OrderID: store.NewID()}})
	require.ErrorIs(t, err, store.ErrNotFound)
	b.settled()
}
