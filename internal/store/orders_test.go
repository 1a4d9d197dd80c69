package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/order"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// Any number of workers share what is due: each order is claimed once.
func TestOrdersAreClaimedOnce(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO payment_orders (user_id, plan_key, amount, currency, status, expires_at)
		SELECT 'u_' || i, 'pro', 1000, 'USD', CASE WHEN i <= 300 THEN 'pending' ELSE 'paid' END,
			now() + CASE WHEN i <= 150 THEN interval '1 hour' ELSE interval '-1 hour' END FROM generate_series(1, 400) i`)
	require.NoError(t, err)
	for work, want := range map[store.OrderWork]int{store.OrdersToAsk: 150, store.OrdersToClose: 150, store.OrdersToFinish: 100} {
		var mu sync.Mutex
		claimed := map[string]int{}
		var together sync.WaitGroup
		for range 8 {
			together.Go(func() {
				for {
					list, err := s.ClaimOrders(t.Context(), work, "worker", 7, time.Minute)
					mu.Lock()
					for _, o := range list {
						claimed[o.ID]++
					}
					mu.Unlock()
					if err != nil || len(list) == 0 {
						return
					}
				}
			})
		}
		together.Wait()
		require.Len(t, claimed, want, work)
		for id, n := range claimed {
			require.Equal(t, 1, n, id)
		}
	}
	require.Equal(t, 100, count(t, pool, `SELECT count(*) FROM payment_orders WHERE status = 'fulfilling' AND leased_until > now()`))
}

// An order that has become overdue is due, whatever pause it had from before.
func TestOverdueOrderIsDueAtOnce(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO payment_orders (user_id, plan_key, amount, currency, expires_at, next_attempt_at, asked_at) VALUES
		('asked before', 'pro', 1, 'USD', now() - interval '1 minute', now() + interval '25 minutes', now() - interval '5 minutes'),
		('never asked', 'pro', 1, 'USD', now() - interval '1 minute', now() + interval '25 minutes', NULL),
		('asked since', 'pro', 1, 'USD', now() - interval '1 minute', now() + interval '25 minutes', now() - interval '1 second')`)
	require.NoError(t, err)
	list, err := s.ClaimOrders(t.Context(), store.OrdersToClose, "worker", 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, o := range list {
		require.NotEqual(t, "asked since", o.UserID)
	}
}

// What others hold back is told: a change of an order writes its facts and entries with it, or nothing at all.
func TestChangeOfAnOrderIsWhole(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	o, err := s.CreateOrder(t.Context(), order.New{UserID: "u", PlanKey: "pro", Amount: 1000, Currency: "USD", ExpiresIn: time.Hour, LatePayment: order.LateFulfil, Actor: "test"})
	require.NoError(t, err)
	_, err = s.CreateOrder(t.Context(), order.New{UserID: "u", PlanKey: "none", Amount: 1, Currency: "USD", ExpiresIn: time.Hour, LatePayment: order.LateFulfil})
	require.ErrorIs(t, err, store.ErrNoPlan)
	_, err = pool.Exec(t.Context(), `CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER broken BEFORE INSERT ON audit_log FOR EACH ROW EXECUTE FUNCTION broken()`)
	require.NoError(t, err)
	closed := func(o order.Order, p []order.Payment, at time.Time) (order.Outcome, error) {
		return o.Hear(p, order.Answer{Checkout: order.Closed}, at), nil
	}
	_, err = s.ChangeOrder(t.Context(), o.ID, "test", closed)
	require.Error(t, err)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM payment_orders WHERE status = 'pending'`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM outbox`))
	_, err = pool.Exec(t.Context(), `DROP TRIGGER broken ON audit_log`)
	require.NoError(t, err)
	for range 2 {
		after, err := s.ChangeOrder(t.Context(), o.ID, "test", closed)
		require.NoError(t, err)
		require.Equal(t, order.Expired, after.Status)
		require.Equal(t, o.Version+1, after.Version, "the second time nothing is written")
	}
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox WHERE topic = 'order.expired' AND user_id = 'u'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM audit_log WHERE action = 'order_expired' AND subject_type = 'order' AND actor = 'test'`))
	_, err = s.ChangeOrder(t.Context(), store.NewID(), "test", closed)
	require.ErrorIs(t, err, store.ErrNotFound)
}
