package settlement_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
)

// lives are random histories of orders at a provider that fails now and then.
type lives struct {
	*bench
	random *rand.Rand
	all    []order.Order
	onWay  []string // asynchronous payments that are not finished
}

// step does something that a customer, a person, an event or a job does. What is not possible now changes nothing.
func (l *lives) step(o order.Order) {
	ctx := l.t.Context()
	switch l.random.IntN(13) {
	case 0, 1, 2:
		options := simulator.PayOptions{DropWebhook: true}
		switch l.random.IntN(6) {
		case 0:
			options.Amount = 999
		case 1:
			options.Currency = "jpy"
		case 2:
			options.Async = true
		}
		if paid, err := l.sim.PayCheckout(o.SessionID, options); err == nil && options.Async {
			l.onWay = append(l.onWay, paid.ID)
		}
	case 3:
		_, err := l.sim.ExtraPayment(o.SessionID, simulator.PayOptions{DropWebhook: true})
		require.NoError(l.t, err)
	case 4:
		_, _ = l.Take(ctx, settlement.Evidence{Session: &payment.CheckoutSession{ID: o.SessionID, OrderID: o.ID}})
	case 5:
		_, _ = l.Take(ctx, settlement.Evidence{Payment: &payment.Payment{ID: "pi_of_the_event", OrderID: o.ID}})
	case 6:
		l.overdue(o)
		l.jobs()
	case 7:
		l.jobs()
	case 8:
		_, _ = l.Cancel(ctx, o.ID, "person")
	case 9:
		_, _ = l.Verify(ctx, o.ID, "person")
	case 10:
		_, _ = l.Refund(ctx, o.ID, "person")
	case 11:
		as := []string{order.AsFulfilled, order.AsRefunded, order.AsCanceled}[l.random.IntN(3)]
		_, _ = l.Resolve(ctx, o.ID, as, "person")
	case 12:
		for _, p := range l.payments(o) { // somebody refunds there; the event comes or is lost
			if given, err := l.Provider.Refund(ctx, p.ID, 0, store.NewID()); err == nil && l.random.IntN(2) == 0 {
				_, _ = l.Refunded(ctx, given)
			}
		}
	}
}

// jobs makes what is left due, and runs all three.
func (l *lives) jobs() {
	l.exec(`UPDATE payment_orders SET next_attempt_at = now(), leased_until = CASE WHEN leased_until IS NULL THEN NULL ELSE now() END WHERE status IN ('pending', 'paid', 'fulfilling', 'refunding')`)
	l.exec(`UPDATE payment_orders SET asked_at = asked_at - interval '1 minute'`)
	for _, work := range []store.OrderWork{store.OrdersToFinish, store.OrdersToAsk, store.OrdersToClose} {
		l.work(work)
	}
}

// Whatever happens to orders in whatever order, while the provider fails now and then: in the end no money is forgotten, each order was
// fulfilled once at most, and what is refunded here is refunded there.
func TestRandomLivesOfOrders(t *testing.T) {
	t.Parallel()
	const rounds, steps = 60, 9
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := &lives{bench: newBench(t), random: rand.New(rand.NewPCG(seed, 1))}
	l.exec(`UPDATE plans SET refund_policy = 'end'`)
	kinds := []string{simulator.Status500, simulator.HTML, simulator.Truncated, simulator.Status401, simulator.Reset, simulator.Status429}
	for n := range rounds {
		l.sim.ClearRESTFaults()
		o := l.create(func(in *order.New) {
			in.UserID = []string{"u_1", "u_2", "u_3"}[n%3]
			in.LatePayment = order.Policies()[l.random.IntN(3)]
		})
		l.all = append(l.all, o)
		for range steps {
			if l.random.IntN(3) == 0 {
				require.NoError(t, l.sim.AddRESTFault(simulator.RESTFault{Kind: kinds[l.random.IntN(len(kinds))], Count: 1}))
			}
			l.step(l.all[max(0, len(l.all)-1-l.random.IntN(3))])
		}
	}
	l.sim.ClearRESTFaults()
	for _, p := range l.onWay {
		_, _ = l.sim.FinishPayment(p, l.random.IntN(2) == 0, true)
	}
	for _, o := range l.all { // every event comes in the end
		l.overdue(o)
		all, err := l.Provider.OrderPayments(t.Context(), o.ID, o.CreatedAt)
		require.NoError(t, err)
		for _, p := range all {
			_, err := l.Take(t.Context(), settlement.Evidence{Payment: &p})
			require.NoError(t, err)
		}
		l.exec(`UPDATE payment_orders SET asked_at = NULL WHERE id = $1`, o.ID)
		_, err = l.Verify(t.Context(), o.ID, "person")
		require.NoError(t, err)
	}
	for range 3 {
		l.jobs()
	}
	l.settled()
	require.Zero(t, l.count(`SELECT count(*) FROM payment_orders WHERE status = 'pending'`))
	require.Zero(t, l.count(`SELECT count(*) FROM payment_orders WHERE leased_until IS NOT NULL`))
	require.Zero(t, l.count(`SELECT count(*) FROM payment_orders o WHERE (o.status = 'fulfilled') <> EXISTS (SELECT 1 FROM payments p WHERE p.order_id = o.id AND p.state = 'fulfilled')`))
	ends := map[order.Status]int{}
	for _, o := range l.all {
		ends[l.order(o).Status]++
		session, _, err := l.Provider.Checkout(t.Context(), o.SessionID)
		require.NoError(t, err)
		require.NotEqual(t, "open", session.Status, "%s", o.ID)
		there, err := l.Provider.OrderPayments(t.Context(), o.ID, o.CreatedAt)
		require.NoError(t, err)
		here := map[string]order.Payment{}
		for _, p := range l.payments(o) {
			here[p.ID] = p
		}
		for _, p := range there {
			if !p.Captured() {
				continue
			}
			require.Contains(t, here, p.ID)
			require.Equal(t, p.Refunded == p.Amount, here[p.ID].State == order.PaymentRefunded, "%+v %+v", p, here[p.ID])
			require.LessOrEqual(t, p.Refunded, p.Amount)
		}
	}
	t.Logf("%v after %d calls", ends, len(l.sim.Calls()))
	require.Greater(t, len(ends), 3, "the lives end in several ways")
	// The end of each subscription is what its orders gave and were not taken back.
	require.Zero(t, l.count(`SELECT count(*) FROM subscriptions s WHERE s.status = 'active' AND s.expires_at > s.started_at + $1::interval * (
		SELECT count(*) FROM order_fulfilments f WHERE f.subscription_id = s.id AND f.taken_back_at IS NULL) + interval '1 minute'`, 720*time.Hour))
}
