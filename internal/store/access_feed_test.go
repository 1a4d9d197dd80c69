package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// feedOf opens a feed and returns what tells the users and plans that one poll hands over.
func feedOf(t *testing.T, s *store.Store) func() (seen []string, lost bool) {
	t.Helper()
	feed, _, err := s.OpenAccessFeed(t.Context())
	require.NoError(t, err)
	t.Cleanup(feed.Close)
	return func() (seen []string, lost bool) {
		before, err := s.Now(t.Context())
		require.NoError(t, err)
		p, err := feed.Poll(t.Context(), func(c store.AccessChange) {
			switch {
			case c.PlanKey != "":
				seen = append(seen, "plan "+c.PlanKey)
			case len(c.UserIDs) == 0:
				seen = append(seen, "everybody")
			}
			seen = append(seen, c.UserIDs...)
		})
		require.NoError(t, err)
		require.False(t, p.At.Before(before))
		slices.Sort(seen)
		return slices.Compact(seen), p.Lost
	}
}

// must runs statements, each in its own transaction.
func must(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := pool.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

func TestTheFeedTellsOfEveryWrite(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	must(t, pool, `INSERT INTO plans (key, features) VALUES ('pro', '{a}'), ('max', '{a,b}')`)
	poll := feedOf(t, store.New(pool))
	const insert = `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) `
	for _, c := range []struct {
		statement string
		want      []string
	}{
		{`SELECT 1`, nil},
		{insert + `VALUES ('u_1', 'pro', 'active', now()), ('u_1', 'max', 'active', now()), ('u_2', 'pro', 'active', now())`, []string{"u_1", "u_2"}},
		{`UPDATE subscriptions SET held_at = now() WHERE user_id = 'u_1'`, []string{"u_1"}},
		{`UPDATE subscriptions SET held_at = now() WHERE user_id = 'nobody'`, nil},
		{`UPDATE subscriptions SET user_id = 'u_3' WHERE user_id = 'u_2'`, []string{"u_2", "u_3"}},
		{`UPDATE plans SET features = '{a,c}' WHERE key = 'pro'`, []string{"plan pro"}},
		{`UPDATE plans SET name = 'Pro', updated_at = now() WHERE key = 'pro'`, nil},
		{insert + `VALUES ('u_4', 'pro', 'active', now()) ON CONFLICT (external_id) DO UPDATE SET status = 'paused'`, []string{"u_4"}},
		{`DELETE FROM subscriptions WHERE user_id = 'u_3'`, []string{"u_3"}},
		{`SET session_replication_role = replica; UPDATE subscriptions SET status = 'canceled' WHERE user_id = 'u_4'; RESET session_replication_role`, []string{"u_4"}},
		{insert + `SELECT 'many_' || n, 'pro', 'active', now() FROM generate_series(1, 20001) AS n`, []string{"everybody"}},
		{`TRUNCATE subscriptions`, []string{"everybody"}},
	} {
		must(t, pool, c.statement)
		seen, lost := poll()
		require.Equal(t, c.want, seen, c.statement)
		require.False(t, lost)
		again, _ := poll()
		require.Empty(t, again, "each change comes once: %s", c.statement)
	}

	// COPY is a write like others.
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.CopyFrom(t.Context(), pgx.Identifier{"subscriptions"}, []string{"user_id", "plan_key", "status", "expires_at"},
		pgx.CopyFromRows([][]any{{"copied", "pro", "active", time.Now()}}))
	require.NoError(t, err)
	seen, _ := poll()
	require.Equal(t, []string{"copied"}, seen)
}

// TestTheFeedFindsWhatCommitsLate: transactions do not commit in the order of their numbers.
func TestTheFeedFindsWhatCommitsLate(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	must(t, pool, `INSERT INTO plans (key) VALUES ('pro')`)
	poll := feedOf(t, store.New(pool))
	write := func(tx pgx.Tx, user string) {
		_, err := tx.Exec(t.Context(), `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ($1, 'pro', 'active', now())`, user)
		require.NoError(t, err)
	}
	open := make([]pgx.Tx, 5)
	for i := range open {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		open[i] = tx
		write(tx, fmt.Sprintf("early_%d", i))
	}
	seen, _ := poll()
	require.Empty(t, seen)
	for i, tx := range slices.Backward(open) { // the last one first
		inner, err := tx.Begin(t.Context()) // a savepoint has a number of its own
		require.NoError(t, err)
		write(inner, fmt.Sprintf("late_%d", i))
		require.NoError(t, inner.Commit(t.Context()))
		must(t, pool, fmt.Sprintf(`INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('between_%d', 'pro', 'active', now())`, i))
		seen, _ = poll()
		require.Equal(t, []string{fmt.Sprintf("between_%d", i)}, seen)
		if i == 2 {
			require.NoError(t, tx.Rollback(t.Context()))
			seen, _ = poll()
			require.Empty(t, seen)
			continue
		}
		require.NoError(t, tx.Commit(t.Context()))
		seen, _ = poll()
		require.Equal(t, []string{fmt.Sprintf("early_%d", i), fmt.Sprintf("late_%d", i)}, seen)
	}
}

// TestTheFeedIsTrimmed: what is removed has been there for ten minutes, and a reader that was away longer is told.
func TestTheFeedIsTrimmed(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	must(t, pool, `INSERT INTO plans (key) VALUES ('pro')`, `UPDATE access_feed SET marked_at = now()`) // the database was copied from an older one
	rows := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM access_changes`).Scan(&n))
		return n
	}
	trim := func(now time.Time, limit int) int {
		n, err := s.TrimAccessChanges(t.Context(), now, limit)
		require.NoError(t, err)
		return n
	}
	away, busy := feedOf(t, s), feedOf(t, s)
	start, err := s.Now(t.Context())
	require.NoError(t, err)
	for range 3 {
		must(t, pool, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_1', 'pro', 'active', now())`)
	}
	require.Zero(t, trim(start.Add(9*time.Minute), 10))
	require.Zero(t, trim(start.Add(11*time.Minute), 10), "this makes the mark behind which they lie")
	require.Zero(t, trim(start.Add(20*time.Minute), 10), "the mark is nine minutes old")
	require.Equal(t, 3, rows())
	seen, lost := busy()
	require.Equal(t, []string{"u_1"}, seen)
	require.False(t, lost)

	// Transactions of other databases of the server hold the mark back while they run.
	round, gone := 2, 0
	require.Eventually(t, func() bool {
		defer func() { round++ }()
		_, lost := busy()
		require.False(t, lost)
		n := trim(start.Add(time.Duration(round)*11*time.Minute), 2)
		require.LessOrEqual(t, n, 2, "no more than it may")
		gone += n
		return gone == 3
	}, 30*time.Second, 10*time.Millisecond)
	require.Zero(t, rows())
	require.Zero(t, trim(start, 2))
	_, lost = busy()
	require.False(t, lost)
	seen, lost = away()
	require.True(t, lost)
	require.Empty(t, seen)
	_, lost = away()
	require.False(t, lost, "it is told once")
}

// TestTheFeedAfterARestore: a dump brings along rows and marks of a server that has counted further.
func TestTheFeedAfterARestore(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	must(t, pool, `INSERT INTO plans (key) VALUES ('pro')`,
		`INSERT INTO access_changes (xid, user_ids) VALUES ('9000000000', '{of_another_server}')`,
		`UPDATE access_feed SET trimmed = '8000000000', marked = '8500000000'`)
	poll := feedOf(t, s)
	must(t, pool, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_1', 'pro', 'active', now())`)
	trim := func() int {
		now, err := s.Now(t.Context())
		require.NoError(t, err)
		n, err := s.TrimAccessChanges(t.Context(), now, 10)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 1, trim(), "the one of the other server")
	require.Zero(t, trim())
	seen, lost := poll()
	require.Equal(t, []string{"u_1"}, seen)
	require.False(t, lost)
}

// TestTheFeedReadsByItsIndex: the table holds minutes of changes, a poll wants those of some milliseconds.
func TestTheFeedReadsByItsIndex(t *testing.T) {
	t.Parallel()
	pool, err := store.Open(t.Context(), storetest.NewURL(t), store.PoolOptions{Name: "test", MaxConns: 1, GenericPlans: true, IndexScans: true})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for query, args := range map[string][]any{store.ChangesSince: {"900000:900010:900000,900005"}, store.TrimAccessChanges: {1000}} {
		rows, err := pool.Query(t.Context(), `EXPLAIN `+query, args...)
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		text := strings.Join(plan, "\n")
		require.Contains(t, text, "access_changes_xid")
		require.NotContains(t, text, "Seq Scan")
	}
}
