package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// subscriptionsDue makes n live subscriptions that all ended at the same instant, and a plan for them.
func subscriptionsDue(t *testing.T, pool *pgxpool.Pool, n int, end time.Time) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro') ON CONFLICT DO NOTHING`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO subscriptions (user_id, plan_key, status, expires_at)
		SELECT 'u_' || i, 'pro', (ARRAY['active', 'trialing', 'past_due'])[1 + i % 3], $2 FROM generate_series(1, $1) i`, n, end)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `ANALYZE subscriptions`)
	require.NoError(t, err)
}

func count(t *testing.T, pool *pgxpool.Pool, query string) int {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), query).Scan(&n))
	return n
}

// drainDue marks in batches until one finds nothing.
func drainDue(ctx context.Context, s *store.Store, batch int) (int, error) {
	total := 0
	var cursor store.ExpiryCursor
	for {
		now, aside, err := s.BeginScan(ctx, store.JobExpiry)
		if err != nil {
			return total, err
		}
		e, err := s.ExpireDue(ctx, now, cursor, batch, aside)
		if err != nil || e.Count == 0 {
			return total, err
		}
		total, cursor = total+e.Count, e.Cursor
	}
}

// requireEachMarkedOnce holds the history and the facts against the marks.
func requireEachMarkedOnce(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	require.Equal(t, n, count(t, pool, `SELECT count(*) FROM subscriptions WHERE status = 'expired' AND expired_at >= access_until AND version = 2`))
	require.Equal(t, n, count(t, pool, `SELECT count(DISTINCT (subscription_id, boundary)) FROM subscription_events WHERE event_type = 'expired'`))
	require.Equal(t, n, count(t, pool, `SELECT count(*) FROM subscription_events`))
	require.Equal(t, n, count(t, pool, `SELECT count(DISTINCT (subscription_id, boundary)) FROM outbox WHERE topic = 'access.ended' AND kind = 'expired' AND status = 'pending'`))
	require.Equal(t, n, count(t, pool, `SELECT count(*) FROM outbox`))
}

func TestTwoScannersMarkEachOnce(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	subscriptionsDue(t, pool, 4000, time.Now().Add(-time.Second)) // all at one instant: the cursor must tell them apart by id
	done := make([]int, 2)
	var group errgroup.Group
	for i := range done {
		group.Go(func() (err error) {
			done[i], err = drainDue(t.Context(), s, 250)
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, 4000, done[0]+done[1])
	requireEachMarkedOnce(t, pool, 4000)
}

func TestExpiryMarksOnlyWhatHasEnded(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	add := func(user, columns, values string) {
		_, err := pool.Exec(t.Context(), `INSERT INTO subscriptions (user_id, plan_key, `+columns+`) VALUES ($1, 'pro', `+values+`)`, user)
		require.NoError(t, err, user)
	}
	const past, future = `now() - interval '1 hour'`, `now() + interval '1 hour'`
	add("active", `status, expires_at`, `'active', `+past)
	add("trialing", `status, expires_at`, `'trialing', `+past)
	add("past_due", `status, expires_at, grace_period_ends_at`, `'past_due', now() - interval '2 hours', `+past)
	add("held", `status, expires_at, held_at`, `'active', `+past+`, now() - interval '2 hours'`)
	add("to_end", `status, expires_at, cancel_at_period_end`, `'active', `+past+`, true`)
	add("leeway", `status, expires_at, leeway_until`, `'active', `+past+`, `+future)
	add("grace", `status, expires_at, grace_period_ends_at`, `'past_due', `+past+`, `+future)
	add("comp", `status, expires_at, comp_until`, `'active', `+past+`, `+future)
	add("running", `status, expires_at`, `'active', `+future)
	add("lifetime", `status, expires_at`, `'active', 'infinity'`)
	add("canceled", `status, expires_at`, `'canceled', `+past)
	add("paused", `status, expires_at`, `'paused', `+past)

	n, err := drainDue(t.Context(), s, 3)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	rows, err := pool.Query(t.Context(), `SELECT s.user_id || ' ' || e.event_type || ' ' || o.kind FROM subscriptions s
		JOIN subscription_events e ON e.subscription_id = s.id AND e.boundary = s.access_until
		JOIN outbox o ON o.subscription_id = s.id AND o.boundary = s.access_until WHERE s.status = 'expired' ORDER BY 1`)
	require.NoError(t, err)
	told, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"active expired expired", "held expired expired", "past_due expired expired", "to_end ended ended", "trialing expired expired"}, told)

	end, now, err := s.NextEnd(t.Context())
	require.NoError(t, err)
	require.WithinRange(t, end, now.Add(59*time.Minute), now.Add(time.Hour))
}

func TestRenewalThatHoldsTheRowWins(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	subscriptionsDue(t, pool, 3, time.Now().Add(-time.Minute))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `UPDATE subscriptions SET expires_at = now() + interval '30 days' WHERE user_id = 'u_2'`)
	require.NoError(t, err)

	n, err := drainDue(t.Context(), s, 10)
	require.NoError(t, err)
	require.Equal(t, 2, n, "the locked row is left out and nobody waits for it")
	require.NoError(t, tx.Commit(t.Context()))
	n, err = drainDue(t.Context(), s, 10)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM subscriptions WHERE user_id = 'u_2' AND status <> 'expired'`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM outbox o JOIN subscriptions s ON s.id = o.subscription_id WHERE s.user_id = 'u_2'`))
}

// Somebody gives grace to subscriptions that are due, while scans go on: whoever has a grace by then is left alone until it
// ends, with its end as it was.
func TestGraceGivenWhileScansGoOn(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	const n = 300
	subscriptionsDue(t, pool, n, time.Now().Add(-time.Minute))
	var group errgroup.Group
	given := 0
	group.Go(func() error {
		for k := n; k > 0; k-- { // scans come from the other side
			tag, err := pool.Exec(t.Context(), `UPDATE subscriptions SET grace_period_ends_at = clock_timestamp() + interval '1 day', version = version + 1
				WHERE user_id = 'u_' || $1::int AND status <> 'expired'`, k)
			if err != nil {
				return err
			}
			given += int(tag.RowsAffected())
		}
		return nil
	})
	for range 2 {
		group.Go(func() error {
			_, err := drainDue(t.Context(), s, 5)
			return err
		})
	}
	require.NoError(t, group.Wait())
	_, err := drainDue(t.Context(), s, 100)
	require.NoError(t, err)
	live := count(t, pool, `SELECT count(*) FROM subscriptions WHERE status <> 'expired' AND access_until = grace_period_ends_at AND expires_at < now()`)
	require.Equal(t, given, live)
	requireEachMarkedOnce(t, pool, n-live)

	_, err = pool.Exec(t.Context(), `UPDATE subscriptions SET grace_period_ends_at = clock_timestamp() WHERE status <> 'expired'`)
	require.NoError(t, err)
	ended, err := drainDue(t.Context(), s, 100)
	require.NoError(t, err)
	require.Equal(t, live, ended, "a grace that ends is an end")
}

// Renewals that commit while scans choose and mark their rows: whoever was renewed is not marked, and nobody is both.
func TestRenewalsRacingWithScans(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	const n = 600
	subscriptionsDue(t, pool, n, time.Now().Add(-time.Minute))
	var renewed [3]int
	var group errgroup.Group
	for i := range renewed {
		group.Go(func() error {
			for k := i + 1; k <= n; k += len(renewed) {
				tag, err := pool.Exec(t.Context(), `UPDATE subscriptions SET expires_at = clock_timestamp() + interval '1 day', version = version + 1
					WHERE user_id = 'u_' || $1::int AND status <> 'expired'`, n+1-k)
				if err != nil {
					return err
				}
				renewed[i] += int(tag.RowsAffected())
			}
			return nil
		})
	}
	for range 2 {
		group.Go(func() error {
			_, err := drainDue(t.Context(), s, 5)
			return err
		})
	}
	require.NoError(t, group.Wait())
	_, err := drainDue(t.Context(), s, 100)
	require.NoError(t, err)
	live := count(t, pool, `SELECT count(*) FROM subscriptions WHERE status <> 'expired' AND access_until > now()`)
	require.Equal(t, renewed[0]+renewed[1]+renewed[2], live)
	requireEachMarkedOnce(t, pool, n-live)
}

func TestSecondExpiryOfOneSubscriptionIsASecondFact(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	subscriptionsDue(t, pool, 1, time.Now().Add(-time.Hour))
	for range 2 {
		n, err := drainDue(t.Context(), s, 10)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = pool.Exec(t.Context(), `UPDATE subscriptions SET status = 'active', expired_at = NULL, expires_at = clock_timestamp()`)
		require.NoError(t, err)
	}
	require.Equal(t, 2, count(t, pool, `SELECT count(DISTINCT dedupe_key) FROM outbox`))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM subscription_events WHERE event_type = 'expired'`))
}

func TestKilledBatchIsDoneOnceLater(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	subscriptionsDue(t, pool, 2000, time.Now().Add(-time.Minute))
	// The batch stops at the facts, after its marks, until its connection is killed.
	blocker, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = blocker.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = blocker.Exec(t.Context(), `LOCK TABLE outbox IN EXCLUSIVE MODE`)
	require.NoError(t, err)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := s.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 1000, false)
		failed <- err
	}()
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'WITH u AS%') k`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	require.Error(t, <-failed)
	require.NoError(t, blocker.Rollback(t.Context()))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM subscriptions WHERE status = 'expired'`))

	n, err := drainDue(t.Context(), s, 1000)
	require.NoError(t, err)
	require.Equal(t, 2000, n)
	requireEachMarkedOnce(t, pool, 2000)
}

func TestBatchNeverTakesMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	// Statistics of an empty table and a nested loop are what makes the plain form of the claim take too much.
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `ANALYZE subscriptions`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO subscriptions (user_id, plan_key, status, expires_at)
		SELECT 'u_' || i, 'pro', 'active', now() - interval '1 minute' FROM generate_series(1, 500) i`)
	require.NoError(t, err)
	config := pool.Config()
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["enable_hashjoin"] = "off"
	config.ConnConfig.RuntimeParams["enable_mergejoin"] = "off"
	config.ConnConfig.RuntimeParams["enable_material"] = "off"
	nested, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(nested.Close)
	s := store.New(nested)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	e, err := s.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 7, false)
	require.NoError(t, err)
	require.Equal(t, 7, e.Count)
	require.Equal(t, 7, count(t, pool, `SELECT count(*) FROM subscriptions WHERE status = 'expired'`))
}

// The plan of every scan, as the server would run it with a table full of rows that have ended long ago.
func TestScansUseTheirPartialIndexes(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	subscriptionsDue(t, pool, 20000, time.Now().Add(-time.Hour))
	_, err := pool.Exec(t.Context(), `UPDATE subscriptions SET expires_at = now() + interval '1 day' WHERE user_id > 'u_11'`)
	require.NoError(t, err)
	for _, query := range []string{
		`INSERT INTO outbox (topic, dedupe_key, status) SELECT 'access.ended', i::text, CASE WHEN i % 100 = 0 THEN 'pending' ELSE 'dispatched' END
			FROM generate_series(1, 20000) i`,
		`INSERT INTO deliveries (outbox_id, channel, target, topic, subscription_id, message_id, status, finished_at, leased_until, lease_owner)
			SELECT o.id, 'email', 'u@example.com', o.topic, gen_random_uuid(), o.id, n.status, CASE WHEN n.status = 'sent' THEN now() END,
				CASE WHEN n.status = 'sending' THEN now() END, CASE WHEN n.status = 'sending' THEN 'owner' END
			FROM outbox o CROSS JOIN LATERAL (SELECT CASE dedupe_key::int % 100 WHEN 0 THEN 'pending' WHEN 1 THEN 'sending' ELSE 'sent' END) n(status)`,
		`INSERT INTO webhook_endpoints (url, topics, secret) SELECT 'https://example.com/' || i, '{*}', 's' FROM generate_series(1, 5) i`,
		`INSERT INTO deliveries (outbox_id, channel, target, topic, subscription_id, message_id, status, finished_at)
			SELECT o.id, 'webhook', e.id, o.topic, gen_random_uuid(), o.id, n.status, CASE WHEN n.status = 'sent' THEN now() END
			FROM outbox o CROSS JOIN webhook_endpoints e CROSS JOIN LATERAL (SELECT CASE dedupe_key::int % 20 WHEN 0 THEN 'pending' ELSE 'sent' END) n(status)
			WHERE dedupe_key::int <= 4000`,
		`INSERT INTO job_runs (job, run_id, trigger, scheduled_at, published_at, started_at, deadline_at, finished_at, outcome)
			SELECT 'job', i::text, 'scheduled', at, at, at, at, at, CASE WHEN i % 4 = 0 THEN 'empty' ELSE 'ok' END
			FROM generate_series(1, 20000) i CROSS JOIN LATERAL (SELECT now() - i * interval '2 minutes') n(at)`,
		`INSERT INTO idempotency_keys (id, api_key_id, method, path, key, body_hash, claim, leased_until, created_at)
			SELECT sha256(i::text::bytea), gen_random_uuid(), 'POST', '/', i::text, sha256(''), gen_random_uuid(), now(), now() - i * interval '5 seconds'
			FROM generate_series(1, 20000) i`,
		`INSERT INTO subscription_events (subscription_id, event_type, at, detail)
			SELECT s.id, 'extended', now() - i * interval '1 day', jsonb_build_object('terms', jsonb_build_object('user_id', s.user_id))
			FROM subscriptions s CROSS JOIN generate_series(1, 2) i`,
		`INSERT INTO payment_webhook_events (external_event_id, type, status, payload, received_at)
			SELECT i::text, 'x', 'processed', CASE WHEN i < 1600 THEN '{}'::bytea ELSE '' END, now() - i * interval '27 minutes' FROM generate_series(1, 20000) i`,
		`INSERT INTO payment_orders (user_id, plan_key, amount, currency, status, expires_at, next_attempt_at)
			SELECT 'u_' || i, 'pro', 1, 'USD', CASE i % 100 WHEN 0 THEN 'pending' WHEN 1 THEN 'refunding' ELSE 'fulfilled' END,
				now() + (i % 200 - 100) * interval '1 minute', now() + (i % 7 - 3) * interval '1 hour' FROM generate_series(1, 20000) i`,
		`INSERT INTO payments (external_id, order_id, amount, currency, captured_at, state)
			SELECT 'pi_' || id, id, 1, 'USD', now(), CASE status WHEN 'pending' THEN NULL ELSE replace(status, 'fulfilling', 'fulfilled') END FROM payment_orders`,
		`INSERT INTO refunds (external_id, payment_id, amount, currency, status, refunded_at)
			SELECT 're_' || i, 'pi_' || i, 1, 'USD', 'succeeded', now() FROM generate_series(1, 20000) i`,
		`INSERT INTO drift_findings (kind, action, external_id, alerted_at) SELECT 'period', 'repaired', 'sub_' || i, now() FROM generate_series(1, 20000) i`,
		`ANALYZE`,
	} {
		_, err = pool.Exec(t.Context(), query)
		require.NoError(t, err)
	}
	for _, scan := range store.Scans() {
		t.Run(scan.Name, func(t *testing.T) {
			t.Parallel()
			rows, err := pool.Query(t.Context(), `EXPLAIN `+scan.Query, scan.Args...)
			require.NoError(t, err)
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			plan := strings.Join(lines, "\n")
			require.Contains(t, plan, scan.Index, plan)
			for _, line := range lines {
				require.NotContains(t, line, fmt.Sprintf("Seq Scan on %s", scan.Table), plan)
			}
		})
	}
}

func TestRowThatWasSetAsideIsLeftOutUntilItIsGivenBack(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	subscriptionsDue(t, pool, 3, time.Now().Add(-time.Minute))
	now, aside, err := s.BeginScan(t.Context(), store.JobExpiry)
	require.NoError(t, err)
	require.False(t, aside)
	first, err := s.FirstDue(t.Context(), now, store.ExpiryCursor{})
	require.NoError(t, err)
	require.NoError(t, s.SetAside(t.Context(), store.JobExpiry, first, "why"))
	n, err := drainDue(t.Context(), s, 10)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	end, _, err := s.NextEnd(t.Context())
	require.NoError(t, err)
	require.Zero(t, end, "a run that waits is not kept awake by it")

	taken, err := s.TakeSetAside(t.Context(), store.JobExpiry, now.Add(59*time.Second), 10)
	require.NoError(t, err)
	require.Empty(t, taken, "the first pause is a minute")
	taken, err = s.TakeSetAside(t.Context(), store.JobExpiry, now.Add(61*time.Second), 10)
	require.NoError(t, err)
	require.Equal(t, []string{first}, taken)
	e, err := s.ExpireOne(t.Context(), now, first)
	require.NoError(t, err)
	require.Equal(t, 1, e.Count)
	require.NoError(t, s.DropSetAside(t.Context(), store.JobExpiry, first))
	requireEachMarkedOnce(t, pool, 3)
}
