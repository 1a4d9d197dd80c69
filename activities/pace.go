package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"termkeeper/internal/store"
	"termkeeper/internal/temporalclient"
)

const (
	// leaveEarly is how long before its next tick a run that lingers ends: about what the server takes to close it. Where
	// the tick comes first, the server keeps it and starts it right after. See docs/adr/0001-linger-to-the-next-tick.md.
	leaveEarly = 50 * time.Millisecond
	// makeRoom is how long before the tick it ends when a start by hand is kept behind it. The server keeps one: with the tick
	// on top it would skip one of them, and a run by hand waits for no row.
	makeRoom = time.Second
	// lookEvery is how often a waiting run looks for a row that was written meanwhile.
	lookEvery = 100 * time.Millisecond
	// heartbeatAfter is the part of the heartbeat time-out that passes before the first heartbeat: each one that reaches
	// the server is paid for, and most runs end before.
	heartbeatAfter = 3.0 / 4
)

// pace tells a run how long it may go on. All is measured from the server's instant of the activity's start, so that the
// worker's clock does not matter.
type pace struct {
	begun     time.Time // by this process's monotonic clock
	budget    time.Duration
	linger    time.Duration // until when it waits; not above budget
	withRoom  time.Duration // the same when a start is kept behind it
	stop      <-chan struct{}
	watch     *watch
	heartbeat func()
	beatAfter time.Duration
}

func newPace(ctx context.Context, in Run, w *watch) *pace {
	info := activity.GetInfo(ctx)
	p := &pace{
		begun: time.Now(), stop: activity.GetWorkerStopChannel(ctx), watch: w,
		budget:    in.PublishedAt.Add(in.Budget.Std()).Sub(info.StartedTime),
		heartbeat: func() { activity.RecordHeartbeat(ctx) },
		beatAfter: time.Duration(float64(info.HeartbeatTimeout) * heartbeatAfter),
	}
	if in.Lingers && !in.ScheduledAt.IsZero() {
		p.linger = waiting(in, info.StartedTime, p.budget, leaveEarly)
		p.withRoom = waiting(in, info.StartedTime, p.budget, min(makeRoom, in.Every.Std()/5))
	}
	return p
}

// waiting is how long a run that began at begun waits for the next due row, when it ends early before its next tick.
func waiting(in Run, begun time.Time, budget, early time.Duration) time.Duration {
	return min(nextTick(in, begun).Sub(begun)-early, budget)
}

// nextTick is the first instant of the schedule after at.
func nextTick(in Run, at time.Time) time.Time {
	every := in.Every.Std()
	if every < time.Second || !temporalclient.Aligned(in.ScheduledAt, every, in.Offset.Std()) {
		return at
	}
	passed := at.Sub(in.ScheduledAt) / every
	return in.ScheduledAt.Add((passed + 1) * every)
}

// mustLeave is asked between two batches: the run ends at the next boundary when the worker stops, when its attempt was
// given to somebody else, and when its budget is over. It also tells the server that the run is alive, which a batch that
// hangs does not.
func (p *pace) mustLeave(ctx context.Context) bool {
	p.beat()
	select {
	case <-ctx.Done():
		return true
	case <-p.stop:
		return true
	default:
		return time.Since(p.begun) >= p.budget
	}
}

func (p *pace) beat() {
	if time.Since(p.begun) >= p.beatAfter {
		p.heartbeat()
	}
}

// wait is for a run that found nothing to do: until the next look, at most a tenth of a second. due is how long it is
// until a row is known to become due, zero when one is due and cannot be had. It reports false when the run must not
// wait (any more); that is the end of the run, whose successor comes with the next tick.
func (p *pace) wait(ctx context.Context, due time.Duration) bool { return p.waitOr(ctx, due, nil) }

// waitOr is wait that ends early when woken.
func (p *pace) waitOr(ctx context.Context, due time.Duration, woken <-chan struct{}) bool {
	if p.linger <= 0 {
		return false
	}
	select {
	case <-p.watch.known:
	case <-ctx.Done():
		return false
	case <-p.stop:
		return false
	}
	until := p.linger
	select {
	case <-p.watch.kept:
		until = p.withRoom
	default:
	}
	left := until - time.Since(p.begun)
	if p.watch.trigger != store.TriggerScheduled || left <= 0 {
		return false
	}
	pause := min(lookEvery, left)
	if due > 0 {
		pause = min(pause, due)
	}
	p.beat()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-woken:
		return true
	case <-ctx.Done():
	case <-p.stop:
	case <-p.watch.paused:
	}
	return false
}
