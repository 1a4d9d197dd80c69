package activities_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"termkeeper/activities"
	"termkeeper/internal/store"
	"termkeeper/internal/temporalclient"
)

// expiryCadence is short, so that a run that lingers ends by itself soon; long is one that the test ends.
const (
	shortCadence = 2 * time.Second
	longCadence  = time.Minute
)

func TestExpireDrainsAndAccounts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(1234)
	tally, err := b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.Equal(t, activities.Tally{Scanned: 1234, Changed: 1234}, tally)
	require.Equal(t, 1234, b.count(`SELECT count(*) FROM subscriptions s JOIN subscription_events e ON e.subscription_id = s.id
		JOIN outbox o ON o.subscription_id = s.id WHERE s.status = 'expired' AND e.boundary = s.access_until AND o.boundary = s.access_until`))
	run := b.lastRun()
	require.Equal(t, store.OutcomeOK, run.Outcome)
	require.Equal(t, store.TriggerManual, run.Trigger)
	require.Equal(t, store.Counts{Scanned: 1234, Changed: 1234}, run.Counts)
	require.Equal(t, run.PublishedAt, run.ScheduledAt)
	require.Contains(t, b.metrics(), `termkeeper_job_rows_total{action="changed",job="subscription-expiry"} 1234`)
	require.Contains(t, b.metrics(), `termkeeper_job_runs_total{job="subscription-expiry",outcome="ok"} 1`)

	b.exec(`DELETE FROM job_runs`) // the run id is always the same here
	tally, err = b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.Zero(t, tally, "what was done is not done again")
	require.Equal(t, store.OutcomeEmpty, b.lastRun().Outcome)
}

func TestPoisonRowIsSetAsideAndComesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(250)
	b.exec(`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.user_id IN ('u_7', 'u_200') THEN RAISE EXCEPTION 'canary-%@example.com', NEW.user_id; END IF; RETURN NEW; END $$`)
	b.exec(`CREATE TRIGGER poison BEFORE UPDATE ON subscriptions FOR EACH ROW EXECUTE FUNCTION poison()`)
	tally, err := b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.Equal(t, activities.Tally{Scanned: 250, Changed: 248, Failed: 2}, tally)
	require.Equal(t, 248, b.count(`SELECT count(*) FROM subscriptions WHERE status = 'expired'`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM set_aside_rows a JOIN subscriptions s ON s.id = a.row_id WHERE s.user_id IN ('u_7', 'u_200')`))
	require.Equal(t, "the database answered with SQLSTATE P0001", b.text(`SELECT DISTINCT last_error FROM set_aside_rows`), "what a trigger says may hold anything")

	tally, err = b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.Zero(t, tally, "they are not first in line again")

	b.exec(`UPDATE set_aside_rows SET next_attempt_at = now()`)
	tally, err = b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.Equal(t, activities.Tally{Scanned: 2, Failed: 2}, tally)
	require.Equal(t, 2, b.count(`SELECT count(*) FROM set_aside_rows WHERE attempts = 2 AND next_attempt_at > now() + interval '90 seconds'`))

	b.exec(`DROP TRIGGER poison ON subscriptions`)
	b.exec(`UPDATE set_aside_rows SET next_attempt_at = now()`)
	b.exec(`UPDATE subscriptions SET expires_at = now() + interval '1 day' WHERE user_id = 'u_7'`)
	tally, err = b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.Equal(t, activities.Tally{Scanned: 1, Changed: 1}, tally)
	require.Zero(t, b.count(`SELECT count(*) FROM set_aside_rows`), "the renewed one has nothing to be tried for")
}

func TestScheduledRunMarksWhatEndsWhileItWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_1', 'pro', 'active', now() + interval '300 ms'), ('u_2', 'pro', 'active', now() + interval '600 ms')`)
	done := make(chan activities.Tally, 1)
	go func() {
		tally, _ := b.expire(scheduled(store.JobExpiry, longCadence))
		done <- tally
	}()
	require.Eventually(t, func() bool { return b.count(`SELECT count(*) FROM outbox`) == 2 }, 10*time.Second, 5*time.Millisecond)
	// One that nobody knew of when the waiting began.
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_3', 'pro', 'active', now() + interval '200 ms')`)
	require.Eventually(t, func() bool { return b.count(`SELECT count(*) FROM outbox`) == 3 }, 10*time.Second, 5*time.Millisecond)
	require.Empty(t, b.lastRun().Outcome, "all by one run, which goes on")
	b.schedule.set(func(s *schedule) { s.paused = true })
	require.Equal(t, activities.Tally{Scanned: 3, Changed: 3}, <-done, "a pause ends the waiting")
	require.Equal(t, store.TriggerScheduled, b.lastRun().Trigger)
}

func TestRunThatWaitsEndsByItself(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.expire(scheduled(store.JobExpiry, shortCadence))
	require.NoError(t, err)
	require.Equal(t, store.OutcomeEmpty, b.lastRun().Outcome)
}

// Lines that are due and held by somebody else are looked at some ten times a second, not all the time.
func TestHeldRowDoesNotMakeARunSpin(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(1)
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM subscriptions FOR UPDATE`)
	require.NoError(t, err)
	scans := func() int {
		return b.count(`SELECT coalesce(idx_scan, 0) FROM pg_stat_user_indexes WHERE indexrelname = 'subscriptions_due'`)
	}
	before := scans()
	tally, err := b.expire(scheduled(store.JobExpiry, shortCadence))
	require.NoError(t, err)
	require.Zero(t, tally)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Less(t, scans()-before, 200, "a run of at most 2 s with two looks and one claim each tenth of a second")
	b.expired()
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox`))
}

func TestOnlyAScheduledRunWaits(t *testing.T) {
	t.Parallel()
	tick := time.Now().Truncate(time.Second)
	for name, c := range map[string]struct {
		starts  []temporalclient.Start
		change  func(*activities.Run)
		trigger string
	}{
		"no schedule started it": {nil, func(r *activities.Run) { r.ScheduledAt = time.Time{} }, store.TriggerManual},
		"by hand, between two ticks": {nil, func(r *activities.Run) {
			r.Offset = activities.Duration((r.Offset.Std() + time.Second) % longCadence)
		}, store.TriggerManual},
		"by hand, in the second of a tick": {[]temporalclient.Start{{RunID: testRunID, ScheduledAt: tick.Add(300 * time.Millisecond)}}, nil, store.TriggerManual},
		"a copy of a scheduled one":        {[]temporalclient.Start{{RunID: "another", ScheduledAt: tick}}, nil, store.TriggerManual},
		"backfill":                         {nil, func(r *activities.Run) { r.ScheduledAt = r.ScheduledAt.Add(-time.Hour) }, store.TriggerBackfill},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.schedule.starts = c.starts
			b.due(1)
			in := scheduled(store.JobExpiry, longCadence)
			if c.change != nil {
				c.change(&in)
			}
			tally, err := b.expire(in)
			require.NoError(t, err)
			require.EqualValues(t, 1, tally.Changed)
			run := b.lastRun()
			require.Equal(t, c.trigger, run.Trigger)
			require.True(t, run.FinishedAt.Before(in.PublishedAt.Add(longCadence/2)), "it did not wait")
			require.NotContains(t, b.metrics(), "termkeeper_job_schedule_delay_seconds_count", "only a scheduled run counts for delays")
		})
	}
}

func TestServerThatDoesNotAnswerChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.schedule.down = true
	b.due(1)
	tally, err := b.expire(scheduled(store.JobExpiry, shortCadence))
	require.NoError(t, err)
	require.EqualValues(t, 1, tally.Changed)
	require.Equal(t, store.TriggerScheduled, b.lastRun().Trigger)
	require.Contains(t, b.metrics(), `termkeeper_job_schedule_delay_seconds_count{job="subscription-expiry"} 1`)
}

func TestRunLeavesWhenItsWorkerStops(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(5)
	stop := make(chan struct{})
	close(stop)
	env := b.environment()
	env.SetWorkerStopChannel(stop)
	subscriptions := &activities.Subscriptions{Store: b.store, Runs: b.runs}
	tally, err := b.run(env, subscriptions.Expire, scheduled(store.JobExpiry, longCadence))
	require.NoError(t, err)
	require.Equal(t, activities.Tally{More: true}, tally, "the workflow gives the rest to another worker")
	tally, err = b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.Equal(t, activities.Tally{Scanned: 5, Changed: 5}, tally)
	require.Equal(t, store.Counts{Scanned: 5, Changed: 5}, b.lastRun().Counts, "both parts are one run")
	require.Equal(t, 1, b.count(`SELECT count(*) FROM job_runs`))
}

func TestRunLeavesWhenItsBudgetIsOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(5)
	in := manual(store.JobExpiry)
	in.PublishedAt = in.PublishedAt.Add(-2 * in.Budget.Std())
	tally, err := b.expire(in)
	require.NoError(t, err)
	require.Equal(t, activities.Tally{More: true}, tally)
}

func TestDatabaseThatGoesAwayFailsTheRunAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(10)
	blocker, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = blocker.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = blocker.Exec(t.Context(), `LOCK TABLE outbox IN EXCLUSIVE MODE`)
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := b.expire(manual(store.JobExpiry))
		failed <- err
	}()
	require.Eventually(t, func() bool {
		return b.count(`SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'WITH u AS%') k`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	err = <-failed
	var application *temporal.ApplicationError
	require.ErrorAs(t, err, &application)
	require.Equal(t, activities.FailureDatabase, application.Type())
	require.False(t, application.NonRetryable(), "the next attempt may work")
	require.NoError(t, errors.Unwrap(application), "the cause can hold rows and is not handed to Temporal")
	require.Equal(t, store.OutcomeFailed, b.lastRun().Outcome)
	require.NotEmpty(t, b.lastRun().Error)
	require.NoError(t, blocker.Rollback(t.Context()))
	tally, err := b.expire(manual(store.JobExpiry))
	require.NoError(t, err)
	require.EqualValues(t, 10, tally.Changed)
	require.Empty(t, b.lastRun().Error)
}

func TestWrongInputIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, change := range map[string]func(*activities.Run){
		"no job":          func(r *activities.Run) { r.Job = "" },
		"no batch":        func(r *activities.Run) { r.Batch = 0 },
		"giant batch":     func(r *activities.Run) { r.MaxBatch = 1_000_000 },
		"no budget":       func(r *activities.Run) { r.Budget = 0 },
		"endless budget":  func(r *activities.Run) { r.Budget = activities.Duration(time.Hour) },
		"no published_at": func(r *activities.Run) { r.PublishedAt = time.Time{} },
	} {
		in := manual(store.JobExpiry)
		change(&in)
		_, err := b.expire(in)
		var application *temporal.ApplicationError
		require.ErrorAs(t, err, &application, name)
		require.Equal(t, activities.FailureInvalidInput, application.Type(), name)
		require.True(t, application.NonRetryable(), name)
	}
}
