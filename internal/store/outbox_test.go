package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

const lease = time.Minute

// ended makes n users with an address whose subscription has ended and was marked.
func ended(t *testing.T, pool *pgxpool.Pool, n int) *store.Store {
	t.Helper()
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO users (id, email) SELECT 'u_' || i, 'u' || i || '@example.com' FROM generate_series(1, $1) i`, n)
	require.NoError(t, err)
	subscriptionsDue(t, pool, n, time.Now().Add(-time.Minute))
	marked, err := drainDue(t.Context(), s, 1000)
	require.NoError(t, err)
	require.Equal(t, n, marked)
	return s
}

func dbNow(t *testing.T, s *store.Store) time.Time {
	t.Helper()
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	return now
}

func dispatchAll(t *testing.T, s *store.Store) (facts, deliveries int) {
	t.Helper()
	var cursor string
	for {
		d, err := s.DispatchFacts(t.Context(), dbNow(t, s), true, cursor, 100)
		require.NoError(t, err)
		if d.Facts == 0 {
			return facts, deliveries
		}
		facts, deliveries, cursor = facts+d.Facts, deliveries+d.Deliveries, d.Cursor
	}
}

func TestFactBecomesAMailOnlyWhereItMay(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := ended(t, pool, 5)
	exec := func(query string) {
		_, err := pool.Exec(t.Context(), query)
		require.NoError(t, err)
	}
	exec(`UPDATE users SET email = NULL WHERE id = 'u_1'`)
	exec(`DELETE FROM users WHERE id = 'u_2'`)
	exec(`INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_3', 'pro', 'active', 'infinity')`)
	exec(`INSERT INTO subscriptions (user_id, plan_key, status, expires_at, held_at) VALUES ('u_4', 'pro', 'active', 'infinity', now())`)
	facts, deliveries := dispatchAll(t, s)
	require.Equal(t, 5, facts)
	require.Equal(t, 2, deliveries)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM deliveries WHERE target IN ('u4@example.com', 'u5@example.com') AND status = 'pending' AND message_id LIKE id || '@%'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox WHERE payload = '{"still_has_access": true}' AND user_id = 'u_3'`))
	require.Equal(t, 4, count(t, pool, `SELECT count(*) FROM outbox WHERE payload = '{"still_has_access": false}' AND dispatched_at IS NOT NULL`))
}

func TestFactsAreDispatchedOnceByTwo(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := ended(t, pool, 1000)
	var group errgroup.Group
	done := make([]int, 2)
	for i := range done {
		group.Go(func() error {
			var cursor string
			for {
				d, err := s.DispatchFacts(t.Context(), time.Now(), true, cursor, 50)
				if err != nil || d.Facts == 0 {
					return err
				}
				done[i], cursor = done[i]+d.Facts, d.Cursor
			}
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, 1000, done[0]+done[1])
	require.Equal(t, 1000, count(t, pool, `SELECT count(DISTINCT outbox_id) FROM deliveries`))
	require.Equal(t, 1000, count(t, pool, `SELECT count(*) FROM deliveries`))
}

// A transaction that is slow to commit holds a fact with a lower id than those that were dispatched before it.
func TestFactOfASlowTransactionIsNotLost(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := ended(t, pool, 2)
	slow, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = slow.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = slow.Exec(t.Context(), `INSERT INTO outbox (id, topic, dedupe_key) VALUES ('00000000-0000-7000-8000-000000000000', 'access.ended', 'slow')`)
	require.NoError(t, err)
	facts, _ := dispatchAll(t, s)
	require.Equal(t, 2, facts)
	require.NoError(t, slow.Commit(t.Context()))
	facts, _ = dispatchAll(t, s)
	require.Equal(t, 1, facts)
}

func TestDeferredFactComesAloneAndLater(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := ended(t, pool, 2)
	first, err := s.FirstFact(t.Context(), "")
	require.NoError(t, err)
	require.NoError(t, s.DeferFact(t.Context(), first, "why"))
	facts, _ := dispatchAll(t, s)
	require.Equal(t, 1, facts)
	next, now, err := s.NextOutboxWork(t.Context())
	require.NoError(t, err)
	require.False(t, next.IsZero())
	require.True(t, next.Before(now), "the other one's mail is due")
	due, err := s.DeferredFacts(t.Context(), now, 10)
	require.NoError(t, err)
	require.Empty(t, due)
	due, err = s.DeferredFacts(t.Context(), now.Add(31*time.Second), 10)
	require.NoError(t, err)
	require.Equal(t, []string{first}, due)
	d, err := s.DispatchFact(t.Context(), now, true, first)
	require.NoError(t, err)
	require.Equal(t, 1, d.Facts)
}

func claim(t *testing.T, s *store.Store, at time.Time, owner string) []store.Delivery {
	t.Helper()
	require.NoError(t, s.TakeOverDeliveries(t.Context(), at))
	list, err := s.ClaimMails(t.Context(), at, owner, 10, lease)
	require.NoError(t, err)
	return list
}

func TestClaimedDeliveryBelongsToOneUntilItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := ended(t, pool, 1)
	dispatchAll(t, s)
	at := dbNow(t, s)
	first := claim(t, s, at, "a")
	require.Len(t, first, 1)
	require.Empty(t, claim(t, s, at, "b"))
	_, err := s.Letter(t.Context(), first[0], dbNow(t, s), 2*lease)
	require.ErrorIs(t, err, store.ErrConflict, "a sending that may outlive the lease must not begin")
	_, err = s.Letter(t.Context(), first[0], dbNow(t, s), lease/2)
	require.NoError(t, err)

	second := claim(t, s, at.Add(lease+time.Second), "b")
	require.Len(t, second, 1)
	require.Equal(t, first[0].ID, second[0].ID)
	require.Equal(t, 2, second[0].Attempts)
	require.ErrorIs(t, s.FinishDelivery(t.Context(), first[0], store.DeliverySent, ""), store.ErrConflict, "the fence")
	require.ErrorIs(t, s.RetryDelivery(t.Context(), first[0], 0, "", false), store.ErrConflict)
	_, err = s.Letter(t.Context(), first[0], dbNow(t, s), time.Second)
	require.ErrorIs(t, err, store.ErrConflict)
	require.NoError(t, s.FinishDelivery(t.Context(), second[0], store.DeliverySent, ""))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM deliveries WHERE status = 'sent' AND finished_at IS NOT NULL AND lease_owner IS NULL`))
}

func TestDeliveriesOfOneSubscriptionComeInOrder(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := ended(t, pool, 1)
	_, err := pool.Exec(t.Context(), `INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary, created_at)
		SELECT uuid_v7(now() + interval '5 ms'), topic, 'later', subscription_id, user_id, kind, boundary + interval '1 second', now() + interval '5 ms' FROM outbox`)
	require.NoError(t, err)
	facts, deliveries := dispatchAll(t, s)
	require.Equal(t, []int{2, 2}, []int{facts, deliveries})
	at := dbNow(t, s)
	first := claim(t, s, at, "a")
	require.Len(t, first, 1, "the later one waits for the earlier")
	require.Empty(t, claim(t, s, at, "b"))
	require.NoError(t, s.RetryDelivery(t.Context(), first[0], time.Hour, "put off", false))
	require.Empty(t, claim(t, s, dbNow(t, s), "b"), "also while the earlier one is put off")
	again := claim(t, s, dbNow(t, s).Add(2*time.Hour), "a")
	require.Len(t, again, 1)
	require.Equal(t, first[0].ID, again[0].ID)
	require.NoError(t, s.FinishDelivery(t.Context(), again[0], store.DeliveryDead, "refused"))
	require.Len(t, claim(t, s, dbNow(t, s), "a"), 1)
}

func TestPausedChannelWaitsAsAWhole(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := ended(t, pool, 3)
	dispatchAll(t, s)
	at := dbNow(t, s)
	claimed := claim(t, s, at, "a")
	require.Len(t, claimed, 3)
	for _, d := range claimed {
		require.NoError(t, s.PauseChannel(t.Context(), store.ChannelEmail, at, "connection refused"))
		require.NoError(t, s.RetryDelivery(t.Context(), d, 0, "connection refused", true))
	}
	require.Equal(t, 1, count(t, pool, `SELECT failures FROM delivery_channels WHERE channel = 'email'`), "messages of one claim count once")
	require.Equal(t, 3, count(t, pool, `SELECT count(*) FROM deliveries WHERE attempts = 0 AND status = 'pending'`), "an outage uses no attempts up")
	require.Empty(t, claim(t, s, dbNow(t, s), "a"))
	next, now, err := s.NextOutboxWork(t.Context())
	require.NoError(t, err)
	require.WithinRange(t, next, now.Add(-time.Second), now.Add(2*time.Second), "due when the pause is over")
	probe := claim(t, s, now.Add(2*time.Second), "a")
	require.Len(t, probe, 1, "one message finds out whether the channel is back")
	require.NoError(t, s.FinishDelivery(t.Context(), probe[0], store.DeliverySent, ""))
	require.NoError(t, s.ReviveChannel(t.Context(), store.ChannelEmail))
	require.Len(t, claim(t, s, dbNow(t, s), "a"), 2)

	for range 30 {
		require.NoError(t, s.PauseChannel(t.Context(), store.ChannelEmail, dbNow(t, s).Add(24*time.Hour), "down"))
	}
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM delivery_channels WHERE channel = 'email' AND paused_until BETWEEN now() + interval '4 minutes' AND now() + interval '5 minutes'`))
}

func TestLetterIsStaleWhenTheUserHasAccessAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"renewed":          `UPDATE subscriptions SET status = 'active', expired_at = NULL, expires_at = now() + interval '30 days'`,
		"renewed and over": `UPDATE subscriptions SET expires_at = access_until + interval '1 millisecond'`,
		"another one":      `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_1', 'pro', 'active', 'infinity')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := storetest.New(t)
			s := ended(t, pool, 1)
			dispatchAll(t, s)
			d := claim(t, s, dbNow(t, s), "a")
			require.Len(t, d, 1)
			l, err := s.Letter(t.Context(), d[0], dbNow(t, s), time.Second)
			require.NoError(t, err)
			require.False(t, l.Stale)
			require.Equal(t, "u1@example.com", l.Target)
			_, err = pool.Exec(t.Context(), change)
			require.NoError(t, err)
			l, err = s.Letter(t.Context(), d[0], dbNow(t, s), time.Second)
			require.NoError(t, err)
			require.True(t, l.Stale)
		})
	}
}

func TestNothingWaitsInAnEmptyOutbox(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `UPDATE delivery_channels SET paused_until = now() - interval '1 minute', failures = 3`)
	require.NoError(t, err)
	next, _, err := s.NextOutboxWork(t.Context())
	require.NoError(t, err)
	require.Zero(t, next)
}
