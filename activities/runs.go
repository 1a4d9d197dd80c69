package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"termkeeper/internal/store"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
)

// Runs accounts for the runs of jobs: a row each in job_runs, and their metrics.
type Runs struct {
	Store   *store.Store
	Metrics *telemetry.Metrics
	// Describe reads the state of a job's schedule.
	Describe func(ctx context.Context, job string) (temporalclient.Schedule, error)
}

// finishTimeout bounds the last write of a run whose own context may have ended.
const finishTimeout = 5 * time.Second

// account runs the work of one activity between the first and the last write of its run's row. A second activity and a
// second attempt of the same run go on in the same row.
func (r *Runs) account(ctx context.Context, in Run, work func(context.Context, *pace) (Tally, error)) (Tally, error) {
	if err := in.check(); err != nil {
		return Tally{}, invalidInput(err)
	}
	info := activity.GetInfo(ctx)
	runID := info.WorkflowExecution.RunID
	guess := in.guess()
	row := store.Run{
		Job: in.Job, RunID: runID, Trigger: guess, ScheduledAt: in.ScheduledAt, PublishedAt: in.PublishedAt,
		StartedAt: info.StartedTime, DeadlineAt: in.DeadlineAt,
	}
	if guess == store.TriggerManual && (row.ScheduledAt.IsZero() || row.ScheduledAt.After(in.PublishedAt)) {
		row.ScheduledAt = in.PublishedAt // asked for by a person: it was due when it came
	}
	timedOut, err := r.Store.BeginRun(ctx, row)
	if err != nil {
		return Tally{}, failure(err)
	}
	r.Metrics.JobRuns.WithLabelValues(in.Job, store.OutcomeTimedOut).Add(float64(timedOut))

	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	w := &watch{describe: r.Describe, job: in.Job, runID: runID}
	startWatch(watching, w, guess, in.Lingers)
	tally, err := work(ctx, newPace(ctx, in, w))
	r.finish(ctx, in, row, w, tally, err)
	if err != nil {
		activity.GetLogger(ctx).Warn("a run failed", "job", in.Job, "error", plain(err))
		return tally, failure(err)
	}
	return tally, nil
}

func (r *Runs) finish(ctx context.Context, in Run, row store.Run, w *watch, tally Tally, failed error) {
	select {
	case <-w.known:
	case <-ctx.Done():
		<-w.done // it ends with ctx, then its guess stands
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if w.trigger != row.Trigger {
		if err := r.Store.SetRunTrigger(ctx, row.Job, row.RunID, w.trigger); err != nil {
			activity.GetLogger(ctx).Warn("the trigger of a run could not be corrected", "job", in.Job, "error", plain(err))
		}
	}
	counts := store.Counts{Scanned: tally.Scanned, Changed: tally.Changed, Skipped: tally.Skipped, Failed: tally.Failed}
	outcome, err := r.Store.FinishRun(ctx, row.Job, row.RunID, counts, plain(failed))
	if err != nil {
		// The next run closes the row as timed out; what this one changed is committed.
		activity.GetLogger(ctx).Warn("the end of a run could not be recorded", "job", in.Job, "error", plain(err))
		return
	}
	r.count(in, row, w.trigger, outcome, counts, activity.GetInfo(ctx).Attempt == 1)
}

func (r *Runs) count(in Run, row store.Run, trigger, outcome string, c store.Counts, firstAttempt bool) {
	m := r.Metrics
	m.JobRuns.WithLabelValues(in.Job, outcome).Inc()
	for action, n := range map[string]int64{"scanned": c.Scanned, "changed": c.Changed, "skipped": c.Skipped, "failed": c.Failed} {
		m.JobRows.WithLabelValues(in.Job, action).Add(float64(n))
	}
	if outcome != store.OutcomeFailed {
		m.JobLastSuccess.WithLabelValues(in.Job).SetToCurrentTime()
	}
	if trigger == store.TriggerScheduled && in.Part == 0 && firstAttempt {
		m.JobScheduleDelay.WithLabelValues(in.Job).Observe(row.PublishedAt.Sub(row.ScheduledAt).Seconds())
		m.JobQueueDelay.WithLabelValues(in.Job).Observe(row.StartedAt.Sub(row.PublishedAt).Seconds())
	}
}
