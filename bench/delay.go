package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"termkeeper/internal/devstack"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

const (
	ends = 800
	// endsBegin is when the first end comes: by then the worker's first runs are behind it.
	endsBegin = 8 * time.Second
	// endsSpread is eight ticks of the default cadence.
	endsSpread = 80 * time.Second
	// marksLate is how long after the last end all marks must be there.
	marksLate = 30 * time.Second

	delayTarget50 = 20 * time.Millisecond
	delayTarget99 = 250 * time.Millisecond
)

const fillEnds = `INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at)
SELECT 'u_' || n, 'plan_' || n % 3, 'active', now() - interval '30 days', clock_timestamp() + $2::interval + random() * $3::interval
FROM generate_series(1, $1::int) AS n`

// markDelays: a row was written once since it was filled in, by its mark; the instant is that of the mark's commit.
const markDelays = `SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - access_until)::float8 FROM subscriptions WHERE status = 'expired'`

// handovers are the times between the end of a run and the start of the next one, when nobody marks.
const handovers = `SELECT extract(epoch FROM started_at - lag(finished_at) OVER (ORDER BY started_at))::float8 FROM job_runs
WHERE job = $1 AND trigger = 'scheduled' ORDER BY started_at OFFSET 1`

// measureDelay runs a worker with the default cadence on a Temporal server, and takes the time from each end to the
// commit of its mark, the notice in the outbox included. It is measured once: it takes as long as the ends are spread.
func measureDelay(ctx context.Context, s *stack, _ int) (rows []row, err error) {
	const database, namespace = "ends", "bench"
	binary, err := devstack.FindTemporal(ctx, s.log)
	if err != nil {
		return nil, err
	}
	temporal, err := devstack.StartTemporal(ctx, devstack.TemporalOptions{
		Binary: binary, DBFile: filepath.Join(s.dir, "temporal.db"), Namespace: namespace, LogFile: filepath.Join(s.dir, "temporal.log"),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, temporal.Stop(context.WithoutCancel(ctx))) }()
	if err := s.prepare(ctx, database, func(conn *pgx.Conn) error { _, err := conn.Exec(ctx, fillPlans); return err }); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.drop(context.WithoutCancel(ctx), database)) }()
	environ := append(environment(), "DATABASE_URL="+s.postgres.URL(database), "TERMKEEPER_OPS_ADDR=127.0.0.1:0",
		"TEMPORAL_ADDRESS="+temporal.Address(), "TEMPORAL_NAMESPACE="+namespace)
	worker, _, err := startProcess(ctx, "workers poll", environ, s.program, "worker")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, worker.stop()) }()
	delays, err := s.delays(ctx, database)
	if err != nil {
		return nil, err
	}
	skipped, err := skippedOverlaps(ctx, temporal.Address(), namespace)
	if err != nil {
		return nil, err
	}
	took := percentiles(delays)
	s.say("delay: %d ends, the longest %s, overlaps skipped: %d", len(delays), delays[len(delays)-1], skipped)
	return []row{{
		path: fmt.Sprintf("from an end to its mark, %d ends in %.0f s, default cadence", ends, endsSpread.Seconds()), latency: []latencies{took},
		target: "p50 ≤ 20 ms, p99 ≤ 250 ms", met: took.p50 <= delayTarget50 && took.p99 <= delayTarget99,
	}}, nil
}

func (s *stack) delays(ctx context.Context, database string) (delays []time.Duration, err error) {
	s.say("delay: %d ends spread over %s", ends, endsSpread)
	err = s.on(ctx, database, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, fillEnds, ends, endsBegin, endsSpread); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, endsBegin+endsSpread+marksLate)
		defer cancel()
		err := poll(ctx, 500*time.Millisecond, func() (bool, error) {
			var left bool
			err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM subscriptions WHERE status <> 'expired')").Scan(&left)
			return !left, err
		})
		if err != nil {
			return fmt.Errorf("waiting for all marks: %w", err)
		}
		if delays, err = durations(ctx, conn, markDelays); err != nil {
			return err
		}
		between, err := durations(ctx, conn, handovers, workflows.JobSubscriptionExpiry)
		s.say("  from one run to the next: %v", between)
		return err
	})
	if err == nil && len(delays) != ends {
		err = fmt.Errorf("of %d subscriptions %d were marked", ends, len(delays))
	}
	return delays, err
}

// durations reads a column of seconds.
func durations(ctx context.Context, conn *pgx.Conn, query string, args ...any) ([]time.Duration, error) {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (time.Duration, error) {
		var seconds float64
		err := row.Scan(&seconds)
		return time.Duration(seconds * float64(time.Second)).Round(time.Microsecond), err
	})
}

// skippedOverlaps is how many starts of the expiry the server left out because a run was going on.
func skippedOverlaps(ctx context.Context, address, namespace string) (int64, error) {
	client, err := temporalclient.Lazy(temporalclient.Options{
		Environ: []string{"TEMPORAL_ADDRESS=" + address, "TEMPORAL_NAMESPACE=" + namespace}, Identity: "bench", Logger: zap.NewNop(),
	})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	schedule, err := temporalclient.NewSchedules(client, workflows.JobIDs()).Describe(ctx, workflows.JobSubscriptionExpiry)
	return schedule.SkippedOverlaps, err
}
