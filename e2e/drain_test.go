package e2e

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
)

// dueAt makes n subscriptions that all end at one instant.
func (s *system) dueAt(t *testing.T, n int, end time.Time) {
	t.Helper()
	s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at)
		SELECT 'u_' || i, 'pro', (ARRAY['active', 'trialing', 'past_due'])[1 + i % 3], $2::timestamptz - interval '30 days', $2 FROM generate_series(1, $1) i`, n, end)
	s.exec(t, `ANALYZE subscriptions`)
}

func (s *system) expired(t *testing.T) int {
	t.Helper()
	return s.count(t, `SELECT count(*) FROM subscription_events WHERE event_type IN ('expired', 'ended')`)
}

// awaitExpired waits until at least n are marked, while the process runs.
func (s *system) awaitExpired(t *testing.T, n int) {
	t.Helper()
	awaitEvery(t, lookSeldom, fmt.Sprintf("%d are marked", n), func() error {
		if have := s.expired(t); have < n {
			return fmt.Errorf("%d are", have)
		}
		return nil
	})
}

// requireExpired demands that n subscriptions are marked, each once, with one fact each, and that no other ones are.
func (s *system) requireExpired(t *testing.T, n int) {
	t.Helper()
	require.Equal(t, n, s.expired(t), "entries in the history")
	require.Equal(t, n, s.count(t, `SELECT count(*) FROM subscriptions WHERE status = 'expired' AND expired_at >= access_until AND version = 2`), "marked rows")
	require.Equal(t, n, s.count(t, `SELECT count(*) FROM outbox WHERE topic = 'access.ended'`), "facts")
	require.Equal(t, n, s.count(t, `SELECT count(DISTINCT (subscription_id, boundary)) FROM outbox WHERE topic = 'access.ended'`), "different facts")
	s.requireInvariants(t)
}

// A hundred thousand subscriptions end at one instant. Two workers serve; the one that is at work is killed in the middle,
// and somebody renews one of them while the scan goes by.
func TestHundredThousandEndAtOnce(t *testing.T) {
	t.Parallel()
	const n = 100_000
	s := newSystem(t)
	temporal := s.useTemporal(t)
	s.environ = append(s.environ, "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s")
	s.plan(t)
	s.dueAt(t, n+1, now())
	const renewed = "u_50000"
	renewal := s.lockSubscription(t, renewed)
	workers := map[string]*process{}
	for _, name := range []string{"first", "second"} {
		workers[name] = s.startWorker(t, "TERMKEEPER_INSTANCE_ID="+name)
	}
	s.awaitExpired(t, n/20)
	killed := atWork(t, temporal)
	require.Contains(t, workers, killed)
	workers[killed].kill(t)
	after := s.expired(t)
	t.Logf("%s was killed after %d of %d", killed, after, n)
	require.Less(t, after, n)

	s.awaitExpired(t, n)
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscriptions WHERE status <> 'expired'`), "the one that is locked is left for now")
	_, err := renewal.Exec(t.Context(), `UPDATE subscriptions SET expires_at = expires_at + interval '30 days', version = version + 1 WHERE user_id = $1`, renewed)
	require.NoError(t, err)
	require.NoError(t, renewal.Commit(t.Context()))
	s.awaitWholeRun(t, "subscription-expiry")
	require.Equal(t, "active", s.text(t, `SELECT CASE WHEN gives_access(s, now()) THEN 'active' ELSE status END FROM subscriptions s WHERE user_id = $1`, renewed))
	s.awaitDispatched(t)
	s.requireExpired(t, n)
	for name, w := range workers {
		if name != killed {
			w.stops(t, syscall.SIGTERM)
		}
	}
}

// lockSubscription begins what a renewal does: it holds the lock of the user's row until it commits.
func (s *system) lockSubscription(t *testing.T, user string) pgx.Tx {
	t.Helper()
	tx, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // it is committed already in a test that went well
	var id string
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT id FROM subscriptions WHERE user_id = $1 FOR UPDATE`, user).Scan(&id))
	return tx
}

// atWork is the identity of the worker that runs the scan.
func atWork(t *testing.T, temporal client.Client) string {
	t.Helper()
	var identity string
	await(t, "a worker is at work", func() error {
		schedule, err := temporal.ScheduleClient().GetHandle(t.Context(), "subscription-expiry").Describe(t.Context())
		if err != nil {
			return err
		}
		for _, running := range schedule.Info.RunningWorkflows {
			described, err := temporal.DescribeWorkflow(t.Context(), running.WorkflowID, running.FirstExecutionRunID)
			if err != nil {
				return err
			}
			for _, activity := range described.RawResponse.PendingActivities {
				if identity = activity.LastWorkerIdentity; identity != "" {
					return nil
				}
			}
		}
		return errors.New("no activity is running")
	})
	return identity
}

// awaitWholeRun waits for a run of a job that begins from now on and ends.
func (s *system) awaitWholeRun(t *testing.T, job string) {
	t.Helper()
	var from time.Time
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&from))
	await(t, "a whole run of "+job, func() error {
		if s.count(t, `SELECT count(*) FROM job_runs WHERE job = $1 AND started_at > $2 AND outcome IN ('ok', 'empty')`, job, from) == 0 {
			return errors.New("none has ended")
		}
		return nil
	})
}

func (s *system) text(t *testing.T, query string, args ...any) string {
	t.Helper()
	var text string
	require.NoError(t, s.pool.QueryRow(t.Context(), query, args...).Scan(&text))
	return text
}

// awaitDispatched waits until every fact has been told to whoever wants it.
func (s *system) awaitDispatched(t *testing.T) {
	t.Helper()
	awaitEvery(t, lookSeldom, "every fact is dispatched", func() error {
		if n := s.count(t, `SELECT count(*) FROM outbox WHERE status = 'pending'`); n > 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
}

// Somebody reads from an old snapshot, as a backup does, while twenty thousand subscriptions end. All are marked, and the
// reader sees the world as it was.
func TestDrainUnderAHeldSnapshot(t *testing.T) {
	t.Parallel()
	const n = 20_000
	s := newSystemWithJobs(t)
	s.environ = append(s.environ, "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=2s")
	s.plan(t)
	s.dueAt(t, n, now())
	snapshot, err := s.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	t.Cleanup(func() { _ = snapshot.Rollback(context.WithoutCancel(t.Context())) }) // it is done already in a test that went well
	live := func() (rows int) {
		require.NoError(t, snapshot.QueryRow(t.Context(), `SELECT count(*) FROM subscriptions WHERE status <> 'expired'`).Scan(&rows))
		return rows
	}
	require.Equal(t, n, live())
	worker := s.startWorker(t)
	s.awaitExpired(t, n)
	s.awaitWholeRun(t, "subscription-expiry")
	s.awaitDispatched(t)
	require.Equal(t, n, live())
	require.NoError(t, snapshot.Commit(t.Context()))
	s.requireExpired(t, n)
	worker.stops(t, syscall.SIGTERM)
}
