package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The triggers of a run. Only a scheduled one says something about delays.
const (
	TriggerScheduled = "scheduled"
	TriggerManual    = "manual"
	TriggerBackfill  = "backfill"
)

// The outcomes of a run.
const (
	OutcomeOK       = "ok"
	OutcomeEmpty    = "empty"     // it looked and there was nothing to do
	OutcomeFailed   = "failed"    // Run.Error says why
	OutcomeTimedOut = "timed_out" // it never finished; the next run closed it
)

// Counts are rows that a run has looked at, changed, left out and could not do.
type Counts struct {
	Scanned, Changed, Skipped, Failed int64
}

// Run is one run of a job. ScheduledAt to PublishedAt (the start of the workflow) is the scheduler's delay, PublishedAt
// to StartedAt (the start of the first activity) is the queue's; all three are Temporal's clock. FinishedAt is zero and
// Outcome "" while it runs.
type Run struct {
	Job         string
	RunID       string
	Trigger     string
	ScheduledAt time.Time
	PublishedAt time.Time
	StartedAt   time.Time
	DeadlineAt  time.Time // the server has ended the run by then
	FinishedAt  time.Time
	Outcome     string
	Counts      Counts
	Error       string
}

// closeOverdueRuns closes what no one will finish any more.
const closeOverdueRuns = `UPDATE job_runs SET finished_at = clock_timestamp(), outcome = 'timed_out',
	error = 'it did not finish before its deadline: its worker died or hung, or no worker took it over'
WHERE job = $1 AND run_id <> $2 AND finished_at IS NULL AND deadline_at < clock_timestamp()`

// beginRun: a run that needs a second activity or a second attempt goes on in its row and keeps its first instants.
const beginRun = `INSERT INTO job_runs (job, run_id, trigger, scheduled_at, published_at, started_at, deadline_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (job, run_id) DO UPDATE SET finished_at = NULL, outcome = NULL, error = NULL`

// trimRuns and trimEmptyRuns take at most 500 rows each: a job of a 1-s cadence makes 3600 an hour and its runs can
// remove far more, so the table stays bounded without a run that takes long.
const trimRuns = `DELETE FROM job_runs WHERE ctid = ANY (ARRAY(SELECT ctid FROM job_runs
	WHERE job = $1 AND started_at < clock_timestamp() - interval '30 days' ORDER BY started_at LIMIT 500 FOR UPDATE SKIP LOCKED))`

const trimEmptyRuns = `DELETE FROM job_runs WHERE ctid = ANY (ARRAY(SELECT ctid FROM job_runs
	WHERE job = $1 AND outcome = 'empty' AND started_at < clock_timestamp() - interval '3 days' ORDER BY started_at LIMIT 500 FOR UPDATE SKIP LOCKED))`

// BeginRun writes the row of a run, closes those of the same job that never finished, and removes old ones. It returns
// how many it closed.
func (s *Store) BeginRun(ctx context.Context, r Run) (timedOut int64, err error) {
	batch := &pgx.Batch{}
	batch.Queue(beginRun, r.Job, r.RunID, r.Trigger, timestamptz(r.ScheduledAt), timestamptz(r.PublishedAt), timestamptz(r.StartedAt), timestamptz(r.DeadlineAt))
	batch.Queue(closeOverdueRuns, r.Job, r.RunID)
	batch.Queue(trimRuns, r.Job)
	batch.Queue(trimEmptyRuns, r.Job)
	results := s.pool.SendBatch(ctx, batch)
	if _, err = results.Exec(); err == nil {
		tag, closeErr := results.Exec()
		timedOut, err = tag.RowsAffected(), closeErr
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return 0, fmt.Errorf("writing the run of %s: %w", r.Job, err)
	}
	return timedOut, nil
}

const setRunTrigger = `UPDATE job_runs SET trigger = $3 WHERE job = $1 AND run_id = $2`

// SetRunTrigger corrects what started a run: the server tells that a little after the run has begun.
func (s *Store) SetRunTrigger(ctx context.Context, job, runID, trigger string) error {
	if _, err := s.pool.Exec(ctx, setRunTrigger, job, runID, trigger); err != nil {
		return fmt.Errorf("correcting the trigger of a run of %s: %w", job, err)
	}
	return nil
}

// finishRun adds to the counts, because an earlier activity of the run may have counted already.
const finishRun = `UPDATE job_runs SET finished_at = GREATEST(clock_timestamp(), started_at), error = $3,
	scanned = scanned + $4, changed = changed + $5, skipped = skipped + $6, failed = failed + $7,
	outcome = CASE WHEN $3::text IS NOT NULL THEN 'failed' WHEN scanned + changed + failed + $4 + $5 + $7 > 0 THEN 'ok' ELSE 'empty' END
WHERE job = $1 AND run_id = $2 RETURNING outcome`

// FinishRun records how a run ended: with the failure's text it failed, without one it is ok or empty by its counts.
func (s *Store) FinishRun(ctx context.Context, job, runID string, c Counts, failure string) (outcome string, err error) {
	err = s.pool.QueryRow(ctx, finishRun, job, runID, text(failure), c.Scanned, c.Changed, c.Skipped, c.Failed).Scan(&outcome)
	if err != nil {
		return "", fmt.Errorf("finishing the run of %s: %w", job, notFound(err))
	}
	return outcome, nil
}

const runColumns = `r.job, r.run_id, r.trigger, r.scheduled_at, r.published_at, r.started_at, r.deadline_at, r.finished_at, r.outcome,
	r.scanned, r.changed, r.skipped, r.failed, r.error`

func scanRun(row pgx.CollectableRow) (Run, error) {
	var r Run
	var finishedAt pgtype.Timestamptz
	var outcome, failure *string
	err := row.Scan(&r.Job, &r.RunID, &r.Trigger, &r.ScheduledAt, &r.PublishedAt, &r.StartedAt, &r.DeadlineAt, &finishedAt, &outcome,
		&r.Counts.Scanned, &r.Counts.Changed, &r.Counts.Skipped, &r.Counts.Failed, &failure)
	r.ScheduledAt, r.PublishedAt, r.StartedAt, r.DeadlineAt = r.ScheduledAt.UTC(), r.PublishedAt.UTC(), r.StartedAt.UTC(), r.DeadlineAt.UTC()
	r.FinishedAt, r.Outcome, r.Error = instant(finishedAt), value(outcome), value(failure)
	return r, err
}

// RunCursor is the last run of a page.
type RunCursor struct {
	StartedAt time.Time
	RunID     string
}

const recentRuns = `SELECT ` + runColumns + ` FROM job_runs r
WHERE r.job = $1 AND ($2::timestamptz IS NULL OR (r.started_at, r.run_id) < ($2, $3)) ORDER BY r.started_at DESC, r.run_id DESC LIMIT $4`

// RecentRuns is one page of at most limit runs of a job after the cursor, newest first.
func (s *Store) RecentRuns(ctx context.Context, job string, after RunCursor, limit int) ([]Run, error) {
	rows, err := s.pool.Query(ctx, recentRuns, job, timestamptz(after.StartedAt), after.RunID, limit)
	if err != nil {
		return nil, fmt.Errorf("listing the runs of %s: %w", job, err)
	}
	list, err := pgx.CollectRows(rows, scanRun)
	if err != nil {
		return nil, fmt.Errorf("listing the runs of %s: %w", job, err)
	}
	return list, nil
}

// lastRuns takes the newest run and the newest finished one of each job; an unfinished one is younger than the finished,
// so few rows are looked at.
const lastRuns = `SELECT ` + runColumns + ` FROM unnest($1::text[]) AS j(job) CROSS JOIN LATERAL (
	(SELECT ` + runColumns + ` FROM job_runs r WHERE r.job = j.job ORDER BY r.started_at DESC LIMIT 1)
	UNION
	(SELECT ` + runColumns + ` FROM job_runs r WHERE r.job = j.job AND r.finished_at IS NOT NULL ORDER BY r.started_at DESC LIMIT 1)) r
ORDER BY r.job, r.started_at DESC`

// LastRun is the newest run of a job, which may still be running, and the newest finished one, which has no RunID when
// there is none.
type LastRun struct {
	Latest   Run
	Finished Run
}

// LastRuns is the last run of each of the jobs. One that never ran is absent.
func (s *Store) LastRuns(ctx context.Context, jobs []string) (map[string]LastRun, error) {
	rows, err := s.pool.Query(ctx, lastRuns, jobs)
	if err != nil {
		return nil, fmt.Errorf("reading the last runs: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanRun)
	if err != nil {
		return nil, fmt.Errorf("reading the last runs: %w", err)
	}
	byJob := make(map[string]LastRun, len(jobs))
	for _, r := range list {
		last, seen := byJob[r.Job]
		if !seen {
			last.Latest = r
		}
		if !r.FinishedAt.IsZero() && last.Finished.RunID == "" {
			last.Finished = r
		}
		byJob[r.Job] = last
	}
	return byJob, nil
}
