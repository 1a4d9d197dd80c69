package activities

import (
	"context"
	"time"

	"termkeeper/internal/store"
	"termkeeper/internal/temporalclient"
)

// guess tells from the run's own instants what started it. The server writes the instant of a start on each run that a
// schedule starts, to the second, also when a person asked for it. So one by hand within the second of a tick looks
// like the tick; starts tells those two apart.
func (r Run) guess() string {
	switch {
	case r.ScheduledAt.IsZero() || !r.ticks(r.ScheduledAt):
		return store.TriggerManual
	case r.PublishedAt.Sub(r.ScheduledAt) > r.CatchUp.Std():
		return store.TriggerBackfill
	default:
		return store.TriggerScheduled
	}
}

// ticks reports whether the schedule has a tick at that second.
func (r Run) ticks(at time.Time) bool {
	if r.Calendar != nil {
		return r.Calendar.Matches(at)
	}
	return temporalclient.Aligned(at, r.Every.Std(), r.Offset.Std())
}

// startedByClock looks the run up among the schedule's latest starts, where a start by hand has a fraction of a second.
// A run that is not there copies the input and the instant of another one: somebody started it in the Web UI.
func startedByClock(schedule temporalclient.Schedule, runID string) (byClock, found bool) {
	for _, start := range schedule.Starts {
		if start.RunID == runID {
			return start.ScheduledAt.Nanosecond() == 0, true
		}
	}
	return false, false
}

// watchEvery is how often the schedule is looked at while a run waits: a pause ends the waiting within that time, and a
// start by hand is seen.
const watchEvery = 500 * time.Millisecond

// watch looks at the schedule of a run that the clock seems to have asked for: first to make sure of that, then, while
// the run waits, whether an operator has paused it or started a run that is kept behind this one.
type watch struct {
	describe func(context.Context, string) (temporalclient.Schedule, error)
	job      string
	runID    string

	known   chan struct{} // closed when trigger is final
	trigger string
	paused  chan struct{} // closed when the schedule was seen paused
	kept    chan struct{} // closed when a start was seen that waits for the end of this run
	done    chan struct{}
}

// startWatch looks on until ctx ends; a run that never waits needs only the first part.
func startWatch(ctx context.Context, w *watch, guess string, lingers bool) {
	w.known, w.paused, w.kept, w.done = make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.trigger = guess
	if guess != store.TriggerScheduled {
		close(w.known)
		close(w.done)
		return
	}
	go func() {
		defer close(w.done)
		w.identify(ctx)
		close(w.known)
		if lingers && w.trigger == store.TriggerScheduled {
			w.untilPaused(ctx)
		}
	}()
}

// identify looks twice, because the server may list a start a moment after it. A server that does not answer changes
// nothing about the guess.
func (w *watch) identify(ctx context.Context) {
	for look := 1; ; look++ {
		schedule, err := w.describe(ctx, w.job)
		if err != nil {
			return
		}
		byClock, found := startedByClock(schedule, w.runID)
		if found && byClock {
			return
		}
		if found || look == 2 {
			w.trigger = store.TriggerManual
			return
		}
		if !sleep(ctx, watchEvery) {
			return
		}
	}
}

func (w *watch) untilPaused(ctx context.Context) {
	for kept := false; sleep(ctx, watchEvery); {
		schedule, err := w.describe(ctx, w.job)
		switch {
		case err != nil:
		case schedule.Paused:
			close(w.paused)
			return
		case schedule.Kept > 0 && !kept:
			kept = true
			close(w.kept)
		}
	}
}

// sleep reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
