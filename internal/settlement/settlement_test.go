package settlement_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// bench is a database, the simulated provider and a settler between them. No webhook goes anywhere.
type bench struct {
	*settlement.Settler
	t    *testing.T
	pool *pgxpool.Pool
	sim  *simulator.Simulator
}

func newBench(t *testing.T) *bench {
	t.Helper()
	pool := storetest.New(t)
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.WithoutCancel(t.Context()))) })
	client := payment.NewClient(secret.NewText("sk_test_1"), sim.StripeURL())
	t.Cleanup(client.Close)
	b := &bench{t: t, pool: pool, sim: sim, Settler: &settlement.Settler{Store: store.New(pool), Provider: client, Owner: t.Name(), Log: zap.NewNop()}}
	b.exec(`INSERT INTO plans (key, name, price_amount, price_currency, duration) VALUES ('pro', 'Pro', 1000, 'USD', '720 hours')`)
	return b
}

func (b *bench) exec(query string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), query, args...)
	require.NoError(b.t, err)
}

func (b *bench) count(query string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), query, args...).Scan(&n))
	return n
}

// create makes an order of ten dollars that may be paid for an hour.
func (b *bench) create(change ...func(*order.New)) order.Order {
	b.t.Helper()
	in := order.New{
		UserID: "u_1", PlanKey: "pro", Amount: 1000, Currency: "USD", Duration: 720 * time.Hour, ExpiresIn: time.Hour, LatePayment: order.LateFulfil,
		SuccessURL: "https://example.com/done", Actor: "test",
	}
	for _, c := range change {
		c(&in)
	}
	o, err := b.Create(b.t.Context(), in)
	require.NoError(b.t, err)
	require.Equal(b.t, order.Pending, o.Status)
	require.NotEmpty(b.t, o.SessionID)
	require.NotEmpty(b.t, o.CheckoutURL)
	return o
}

func (b *bench) pay(o order.Order, options simulator.PayOptions) string {
	b.t.Helper()
	options.DropWebhook = true
	paid, err := b.sim.PayCheckout(o.SessionID, options)
	require.NoError(b.t, err)
	return paid.ID
}

// overdue moves the deadline of an order into the past.
func (b *bench) overdue(o order.Order) {
	b.t.Helper()
	b.exec(`UPDATE payment_orders SET expires_at = now() - interval '1 second' WHERE id = $1`, o.ID)
}

// work does what a job does with everything that is due for it.
func (b *bench) work(work store.OrderWork) (silent int) {
	b.t.Helper()
	claimed, err := b.Store.ClaimOrders(b.t.Context(), work, b.Owner, 100, settlement.Lease)
	require.NoError(b.t, err)
	for _, o := range claimed {
		var err error
		if work == store.OrdersToFinish {
			_, err = b.Finish(b.t.Context(), o, "job")
		} else {
			_, err = b.Ask(b.t.Context(), o, work == store.OrdersToClose, "job")
		}
		if err != nil {
			require.ErrorIs(b.t, err, payment.ErrNoAnswer)
			silent++
		}
	}
	return silent
}

func (b *bench) order(o order.Order) order.Order {
	b.t.Helper()
	now, err := b.Store.Order(b.t.Context(), o.ID)
	require.NoError(b.t, err)
	return now
}

// settled demands what must hold at rest.
func (b *bench) settled() {
	b.t.Helper()
	n, err := b.Store.UnsettledMoney(b.t.Context())
	require.NoError(b.t, err)
	require.Zero(b.t, n, "captured money that is neither fulfilled nor refunded nor under review")
	require.Zero(b.t, b.count(`SELECT count(*) FROM payments p WHERE p.state = 'fulfilled'
		AND NOT EXISTS (SELECT 1 FROM order_fulfilments f WHERE f.order_id = p.order_id AND f.taken_back_at IS NULL)`), "fulfilled payments without what they gave")
	require.Zero(b.t, b.count(`SELECT count(*) FROM (SELECT order_id FROM payments WHERE state = 'fulfilled' GROUP BY 1 HAVING count(*) > 1) x`))
	require.Zero(b.t, b.count(`SELECT count(*) FROM payment_orders WHERE status IN ('paid', 'fulfilling', 'refunding')`))
}

// Paid one second before the deadline with the webhook dropped: the job asks first, and fulfils.
func TestPaidInTimeWithoutWebhookIsFulfilledByTheJob(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.create()
	b.pay(o, simulator.PayOptions{})
	b.overdue(o)
	require.Zero(t, b.work(store.OrdersToClose))
	done := b.order(o)
	require.Equal(t, order.Fulfilled, done.Status)
	require.NotEmpty(t, done.SubscriptionID)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE user_id = 'u_1' AND plan_key = 'pro' AND status = 'active' AND provider IS NULL
		AND expires_at - started_at = interval '720 hours'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM order_fulfilments f JOIN subscriptions s ON s.id = f.subscription_id WHERE f.order_id = $1 AND f.until_at = s.expires_at`, o.ID))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'order.fulfilled'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'access.started'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM audit_log WHERE action = 'order_fulfilled' AND actor = 'job'`))
	b.settled()
}
