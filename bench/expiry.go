package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/store"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

const dueSubscriptions = 200_000

// fillDue: the ends are spread over an hour, in no order.
const fillDue = `INSERT INTO subscriptions (id, user_id, plan_key, status, started_at, expires_at)
SELECT uuid_v7(now() - interval '30 days'), 'u_' || n, 'plan_' || n % 3, 'active', now() - interval '30 days', now() - interval '1 minute' - random() * interval '1 hour'
FROM generate_series(1, $1::int) AS n`

// expireAllAtOnce is the limit: what the job writes, as one statement, without the care that lets several do it at once.
const expireAllAtOnce = `WITH u AS (
	UPDATE subscriptions SET status = 'expired', expired_at = now(), version = version + 1, updated_at = now()
	WHERE status IN ('trialing', 'active', 'past_due') AND access_until <= now()
	RETURNING id, user_id, access_until, CASE WHEN cancel_at_period_end THEN 'ended' ELSE 'expired' END AS kind),
h AS (INSERT INTO subscription_events (id, subscription_id, event_type, boundary, at)
	SELECT uuid_v7(now()), id, kind, access_until, now() FROM u),
o AS (INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary, created_at)
	SELECT uuid_v7(now()), 'access.ended', 'end:' || id || ':' || (extract(epoch FROM access_until) * 1000000)::bigint,
		id, user_id, kind, access_until, now() FROM u)
SELECT count(*) FROM u`

// drained is what marking all rows has taken.
type drained struct {
	lasted time.Duration
	cpu    time.Duration // of PostgreSQL
}

func (d drained) perSecond() float64    { return dueSubscriptions / d.lasted.Seconds() }
func (d drained) perCPUSecond() float64 { return dueSubscriptions / d.cpu.Seconds() }

// measureExpiry compares the activity of the job with one plain UPDATE, and with itself while an old snapshot is open.
func measureExpiry(ctx context.Context, s *stack, rounds int) (rows []row, err error) {
	const full, used = "due", "due_now"
	err = s.prepare(ctx, full, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, fillPlans); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, fillDue, dueSubscriptions)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.drop(context.WithoutCancel(ctx), full, used)) }()
	drain := func(open bool, do func(context.Context, string) error) (drained, error) {
		if err := s.copy(ctx, full, used); err != nil {
			return drained{}, err
		}
		if open {
			close, err := s.openSnapshot(ctx, used)
			if err != nil {
				return drained{}, err
			}
			defer close()
		}
		return s.drain(ctx, used, do)
	}
	byCPU := row{path: "expiry with history and outbox, by PostgreSQL CPU, against one UPDATE", unit: "/s", least: 0.60}
	byWall := row{path: "expiry with history and outbox, by wall time, against one UPDATE", unit: "/s"}
	snapshotCPU := row{path: "expiry with an old snapshot open, by PostgreSQL CPU, against itself", unit: "/s", least: 0.80}
	snapshotWall := row{path: "expiry with an old snapshot open, by wall time, against itself", unit: "/s", least: 0.80}
	for i := range rounds {
		ours, err := drain(false, s.expireByActivity)
		if err != nil {
			return nil, err
		}
		limit, err := drain(false, s.expireByUpdate)
		if err != nil {
			return nil, err
		}
		held, err := drain(true, s.expireByActivity)
		if err != nil {
			return nil, err
		}
		s.say("expiry, round %d: %.1f s (CPU %.1f), one UPDATE %.1f s (CPU %.1f), with an old snapshot %.1f s (CPU %.1f)", i+1,
			ours.lasted.Seconds(), ours.cpu.Seconds(), limit.lasted.Seconds(), limit.cpu.Seconds(), held.lasted.Seconds(), held.cpu.Seconds())
		for _, pair := range []struct {
			row         *row
			ours, limit float64
		}{
			{&byCPU, ours.perCPUSecond(), limit.perCPUSecond()},
			{&byWall, ours.perSecond(), limit.perSecond()},
			{&snapshotCPU, held.perCPUSecond(), ours.perCPUSecond()},
			{&snapshotWall, held.perSecond(), ours.perSecond()},
		} {
			pair.row.ours, pair.row.limit = append(pair.row.ours, pair.ours), append(pair.row.limit, pair.limit)
		}
	}
	return []row{byCPU, byWall, snapshotCPU, snapshotWall}, nil
}

// openSnapshot keeps what a backup or a report keeps: a snapshot from before the drain.
func (s *stack) openSnapshot(ctx context.Context, database string) (closeIt func(), err error) {
	conn, err := pgx.Connect(ctx, s.postgres.URL(database))
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM plans"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			conn.Close(ctx)
			return nil, err
		}
	}
	return func() { conn.Close(context.WithoutCancel(ctx)) }, nil
}

func (s *stack) drain(ctx context.Context, database string, do func(context.Context, string) error) (drained, error) {
	before, err := s.cpu.used()
	if err != nil {
		return drained{}, err
	}
	begun := time.Now()
	if err := do(ctx, database); err != nil {
		return drained{}, err
	}
	d := drained{lasted: time.Since(begun)}
	after, err := s.cpu.used()
	if err != nil {
		return drained{}, err
	}
	d.cpu = after - before
	return d, s.on(ctx, database, func(conn *pgx.Conn) error {
		var marked, entries, facts int
		err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM subscriptions WHERE status = 'expired'),
			(SELECT count(*) FROM subscription_events WHERE event_type = 'expired'), (SELECT count(*) FROM outbox WHERE topic = 'access.ended')`).
			Scan(&marked, &entries, &facts)
		if err == nil && (marked != dueSubscriptions || entries != dueSubscriptions || facts != dueSubscriptions) {
			err = fmt.Errorf("of %d subscriptions %d were marked, with %d entries and %d facts", dueSubscriptions, marked, entries, facts)
		}
		return err
	})
}

func (s *stack) expireByUpdate(ctx context.Context, database string) error {
	return s.on(ctx, database, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, expireAllAtOnce)
		return err
	})
}

// expireByActivity runs the job's activity as a worker does, with the limits of the table of jobs.
func (s *stack) expireByActivity(ctx context.Context, database string) error {
	return s.withRuns(ctx, database, func(keeper *store.Store, runs *activities.Runs) error {
		expiry := &activities.Subscriptions{Store: keeper, Runs: runs}
		return runActivity(workflows.JobSubscriptionExpiry, expiry.Expire)
	})
}

// withRuns opens what an activity needs, with the pool of a worker.
func (s *stack) withRuns(ctx context.Context, database string, do func(*store.Store, *activities.Runs) error) error {
	pool, err := store.Open(ctx, s.postgres.URL(database), store.PoolOptions{
		Name: "termkeeper bench", MaxConns: 24, StatementTimeout: 30 * time.Second, LockTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	defer pool.Close()
	keeper := store.New(pool)
	// The run counts as one by hand, which asks for no schedule and never waits.
	noSchedule := func(context.Context, string) (temporalclient.Schedule, error) {
		return temporalclient.Schedule{}, temporalclient.ErrNoSchedule
	}
	return do(keeper, &activities.Runs{Store: keeper, Metrics: telemetry.NewMetrics(), Describe: noSchedule})
}

// runActivity runs one activity of a job in the SDK's environment for single activities.
func runActivity(job string, activity any) error {
	all := workflows.Catalog()
	for _, one := range all {
		if one.ID != job {
			continue
		}
		var suite testsuite.WorkflowTestSuite
		suite.SetLogger(temporalclient.NewLogger(zap.NewNop()))
		env := suite.NewTestActivityEnvironment()
		env.SetTestTimeout(one.Budget)
		env.RegisterActivity(activity)
		now := time.Now()
		_, err := env.ExecuteActivity(activity, activities.Run{Scan: one.Scan(), PublishedAt: now, DeadlineAt: now.Add(one.Timeout)})
		return err
	}
	return fmt.Errorf("there is no job %s", job)
}
