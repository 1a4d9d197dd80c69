package activities

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"termkeeper/internal/mail"
	"termkeeper/internal/store"
)

const (
	// sendStretch is how long a backlog is sent before the next look at the facts: an urgent one does not wait for its end.
	sendStretch = 200 * time.Millisecond
	// deferredFactsAtOnce bounds the facts that failed before and are tried again, alone, in one round.
	deferredFactsAtOnce = 100
)

// Outbox is the job that turns facts into deliveries and delivers them.
type Outbox struct {
	Store    *store.Store
	Mail     *mail.Sender // nil where no mail server is configured: then nobody is told by mail
	Webhooks *Webhooker   // nil where no key for the secrets of endpoints is configured: then calls wait
	Owner    string       // names this process in leases
	Runs     *Runs
}

// Deliver dispatches facts and sends what is due. A fact becomes a delivery once per receiver, by a unique key. A delivery
// is sent under a lease with a fence and marked after it: at least once, and every attempt carries the same id.
//
// The loop itself sends nothing, so that neither a slow mail server nor an endpoint that hangs holds up the facts or the
// other channel. What is under way when the run could end is waited for, and the loop goes on meanwhile.
func (a *Outbox) Deliver(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		d := &delivering{Outbox: a, in: in, landed: make(chan struct{}, 1)}
		early, err := d.loop(ctx, p)
		d.land(p)
		if err = errors.Join(err, d.failure()); err != nil || !early {
			return d.tally, err
		}
		return d.tally, d.askMore(ctx)
	})
}

// delivering is one activity's work.
type delivering struct {
	*Outbox
	in      Run
	closing bool // the run is about to end: it begins no more calls
	landed  chan struct{}

	mu      sync.Mutex // messages are sent side by side
	tally   Tally
	mailing bool // a batch of mails is under way
	calls   int  // under way
	ended   int  // batches and calls
	failed  error
}

func (d *delivering) count(t Tally) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally = d.tally.Plus(t)
}

// underway is what was begun and not recorded yet, and how much was recorded before.
func (d *delivering) underway() (mailing bool, calls, ended int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mailing, d.calls, d.ended
}

// failure is the first error of the database that a sender met.
func (d *delivering) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// done records the end of a batch of mails or of a call, and wakes the loop.
func (d *delivering) done(err error, end func()) {
	d.mu.Lock()
	end()
	d.ended++
	if d.failed == nil {
		d.failed = err
	}
	d.mu.Unlock()
	select {
	case d.landed <- struct{}{}:
	default: // it is about to look anyway
	}
}

// await waits until something lands, at most for a while. The run says meanwhile that it is alive: each message has its own
// deadline, which may be longer than a heartbeat's time-out.
func (d *delivering) await(p *pace, most time.Duration) {
	timer := time.NewTimer(min(most, time.Second))
	defer timer.Stop()
	select {
	case <-d.landed:
	case <-timer.C:
	}
	p.beat()
}

// land waits for all that is under way.
func (d *delivering) land(p *pace) {
	for {
		if mailing, calls, _ := d.underway(); !mailing && calls == 0 {
			return
		}
		d.await(p, time.Second)
	}
}

// loop reports early when it left although something may be due.
func (d *delivering) loop(ctx context.Context, p *pace) (early bool, err error) {
	for {
		_, _, before := d.underway()
		worked, early, err := d.round(ctx, p)
		if err != nil || early {
			return early, err
		}
		next, now, err := d.Store.NextOutboxWork(ctx)
		if err != nil {
			return false, err
		}
		due := until(next, now)
		if due <= 0 && worked {
			continue
		}
		// What is due and not to be had (locked, behind an earlier one, or no place is free) is looked at again after a tenth of
		// a second, and as soon as something has landed.
		if p.waitOr(ctx, max(due, 0), d.landed) {
			continue
		}
		mailing, calls, ended := d.underway()
		if !mailing && calls == 0 && ended == before { // what has ended meanwhile may have made room
			return false, nil
		}
		d.closing = p.linger > 0 // a run that never waits goes on until nothing is left
		d.await(p, lookEvery)
	}
}

// round goes once over the facts, and then sends for a while. The two take turns, so that a backlog of the one does not hold
// up the other.
func (d *delivering) round(ctx context.Context, p *pace) (worked, early bool, err error) {
	now, err := d.Store.Now(ctx)
	if err != nil {
		return false, false, err
	}
	if err := d.retryDeferred(ctx, now); err != nil {
		return false, false, err
	}
	var cursor string
	b := batches{first: d.in.Batch, most: d.in.MaxBatch}
	b.take = func(limit int) (int, error) {
		at, err := d.Store.Now(ctx)
		if err != nil {
			return 0, err
		}
		batch, err := d.Store.DispatchFacts(ctx, at, d.Mail != nil, cursor, limit)
		if err != nil || batch.Facts == 0 {
			return 0, err
		}
		cursor = batch.Cursor
		d.count(Tally{Scanned: int64(batch.Facts), Changed: int64(batch.Facts)})
		_, err = d.launch(ctx)
		return batch.Facts, err
	}
	b.isolate = func() (bool, error) {
		id, err := d.Store.FirstFact(ctx, cursor)
		if err != nil || id == "" {
			return false, err
		}
		return d.tryFact(ctx, now, id)
	}
	done, isolated, early, err := b.pass(ctx, p)
	d.count(Tally{Scanned: int64(isolated), Failed: int64(isolated)})
	if err != nil || early {
		return done+isolated > 0, early, err
	}
	for begun := time.Now(); ; {
		if p.mustLeave(ctx) {
			return true, true, nil
		}
		n, err := d.launch(ctx)
		if err != nil {
			return false, false, err
		}
		done += n
		left := sendStretch - time.Since(begun)
		if n == 0 || left <= 0 {
			return done+isolated > 0, false, nil
		}
		d.await(p, left)
	}
}

// launch begins to send what is due and for which there is a place, and returns how much.
func (d *delivering) launch(ctx context.Context) (int, error) {
	if err := d.failure(); err != nil {
		return 0, err
	}
	now, err := d.Store.Now(ctx)
	if err != nil {
		return 0, err
	}
	if err := d.Store.TakeOverDeliveries(ctx, now); err != nil {
		return 0, err
	}
	mailing, calls, _ := d.underway()
	mails := 0
	if d.Mail != nil && !mailing {
		if mails, err = d.launchMails(ctx, now); err != nil {
			return mails, err
		}
	}
	if d.Webhooks == nil || d.closing || calls >= callsAtOnce {
		return mails, nil
	}
	begun, err := d.launchCalls(ctx, now, callsAtOnce-calls)
	return mails + begun, err
}

// tryFact dispatches one fact alone and defers it where that fails by its own fault.
func (d *delivering) tryFact(ctx context.Context, now time.Time, id string) (deferred bool, err error) {
	one, err := d.Store.DispatchFact(ctx, now, d.Mail != nil, id)
	if err == nil {
		d.count(Tally{Scanned: int64(one.Facts), Changed: int64(one.Facts)})
		return false, nil
	}
	if !store.IsRowFault(err) {
		return false, err
	}
	return true, d.Store.DeferFact(ctx, id, plain(err))
}

func (d *delivering) retryDeferred(ctx context.Context, now time.Time) error {
	ids, err := d.Store.DeferredFacts(ctx, now, deferredFactsAtOnce)
	if err != nil {
		return err
	}
	for _, id := range ids {
		deferred, err := d.tryFact(ctx, now, id)
		if err != nil {
			return err
		}
		if deferred {
			d.count(Tally{Scanned: 1, Failed: 1})
		}
	}
	return nil
}

// lost drops the error of a write whose claim somebody else has by now: that one decides what becomes of the row.
func (d *delivering) lost(ctx context.Context, err error) error {
	if errors.Is(err, store.ErrConflict) {
		activity.GetLogger(ctx).Warn("a delivery was taken over while it was being sent", "job", d.in.Job)
		return nil
	}
	return err
}

// askMore sets More when a run leaves early and something is due.
func (d *delivering) askMore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	next, now, err := d.Store.NextOutboxWork(ctx)
	d.tally.More = until(next, now) < 0
	return err
}
