package activities

import (
	"context"
	"time"

	"termkeeper/internal/store"
)

// Subscriptions are the jobs on subscriptions.
type Subscriptions struct {
	Store *store.Store
	Runs  *Runs
}

// setAsideLimit bounds the rows that were set aside and are tried again in one pass.
const setAsideLimit = 100

// Expire marks subscriptions whose access has ended, with their history and their facts. The mark repeats the condition
// it was claimed on and the unique keys of history and fact name the end, so any number of runs at once mark each
// subscription once.
func (a *Subscriptions) Expire(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		e := &expiry{store: a.Store, runs: a.Runs, in: in}
		held := false // what is due is held by somebody else: the pass before could not have it either
		for {
			changed, early, err := e.pass(ctx, p)
			if err != nil {
				return e.tally, err
			}
			if early {
				return e.tally, e.askMore(ctx)
			}
			due, err := e.untilNextEnd(ctx)
			if err != nil {
				return e.tally, err
			}
			if due <= 0 && (changed > 0 || !held) {
				held = changed == 0
				continue // they became due, or were let go, while the pass went on
			}
			held = due <= 0
			// Rows that are due and held by somebody else are looked at again after a tenth of a second.
			if !p.wait(ctx, max(due, 0)) {
				return e.tally, nil
			}
		}
	})
}

// expiry is one activity's work.
type expiry struct {
	store *store.Store
	runs  *Runs
	in    Run
	tally Tally

	lookedAll time.Time     // when untilNextEnd last looked from the beginning
	lookTook  time.Duration // and how long that took
	past      time.Time     // the database's clock at that look
}

// pass goes once over everything that is due, from the beginning, to find what was locked the last time.
func (e *expiry) pass(ctx context.Context, p *pace) (changed int64, early bool, err error) {
	now, withSetAside, err := e.store.BeginScan(ctx, e.in.Job)
	if err != nil {
		return 0, false, err
	}
	before := e.tally.Changed
	if withSetAside {
		if err := e.retrySetAside(ctx, now); err != nil {
			return 0, false, err
		}
	}
	var cursor store.ExpiryCursor
	b := batches{first: e.in.Batch, most: e.in.MaxBatch}
	b.take = func(limit int) (int, error) {
		batch, err := e.store.ExpireDue(ctx, now, cursor, limit, withSetAside)
		if err != nil || batch.Count == 0 {
			return 0, err
		}
		cursor = batch.Cursor
		e.count(batch, now)
		if batch.Count == limit { // behind: each batch by the clock of its own
			now, withSetAside, err = e.store.BeginScan(ctx, e.in.Job)
		}
		return batch.Count, err
	}
	b.isolate = func() (bool, error) {
		withSetAside = true
		id, err := e.store.FirstDue(ctx, now, cursor)
		if err != nil || id == "" {
			return false, err
		}
		return e.tryAlone(ctx, now, id)
	}
	_, isolated, early, err := b.pass(ctx, p)
	e.tally.Scanned += int64(isolated)
	e.tally.Failed += int64(isolated)
	return e.tally.Changed - before, early, err
}

func (e *expiry) count(batch store.Expired, now time.Time) {
	e.tally.Scanned += int64(batch.Count)
	e.tally.Changed += int64(batch.Count)
	// One observation per row would cost more than the row's mark; the oldest of a batch is what an operator asks for.
	e.runs.Metrics.ExpiryLag.Observe(now.Sub(batch.Oldest).Seconds())
}

// tryAlone marks one row and sets it aside where that fails by the row's own fault.
func (e *expiry) tryAlone(ctx context.Context, now time.Time, id string) (setAside bool, err error) {
	one, err := e.store.ExpireOne(ctx, now, id)
	if err == nil {
		if one.Count > 0 {
			e.count(one, now)
		}
		return false, nil
	}
	if !store.IsRowFault(err) {
		return false, err
	}
	return true, e.store.SetAside(ctx, e.in.Job, id, plain(err))
}

// retrySetAside tries rows again that were set aside, each alone. One that works, or has nothing to do any more, goes
// back to the scans.
func (e *expiry) retrySetAside(ctx context.Context, now time.Time) error {
	ids, err := e.store.TakeSetAside(ctx, e.in.Job, now, setAsideLimit)
	if err != nil {
		return err
	}
	for _, id := range ids {
		failed, err := e.tryAlone(ctx, now, id)
		if err != nil {
			return err
		}
		if failed {
			e.tally.Scanned++
			e.tally.Failed++
			continue
		}
		if err := e.store.DropSetAside(ctx, e.in.Job, id); err != nil {
			return err
		}
	}
	return nil
}

// lookShare is the part of its time that a waiting run may spend on looking from the beginning of the index. That look
// is fast but for the minutes after a big drain, when it walks dead entries until vacuum has come.
const lookShare = 20

// untilNextEnd is how long it is until the next end, below zero when one is due.
func (e *expiry) untilNextEnd(ctx context.Context) (time.Duration, error) {
	if begun := time.Now(); begun.Sub(e.lookedAll) >= max(lookEvery, lookShare*e.lookTook) || e.past.IsZero() {
		end, now, err := e.store.NextEnd(ctx)
		e.lookedAll, e.lookTook, e.past = begun, time.Since(begun), now
		return until(end, now), err
	}
	end, now, err := e.store.NextEndAfter(ctx, e.past)
	return until(end, now), err
}

// until is how long it is until at: below zero for what is due, noneKnown for the zero time.
func until(at, now time.Time) time.Duration {
	switch {
	case at.IsZero():
		return noneKnown
	case at.After(now):
		return at.Sub(now)
	default:
		return -1
	}
}

// noneKnown is longer than any run waits.
const noneKnown = 24 * time.Hour

// askMore sets More when a run leaves early and rows are due.
func (e *expiry) askMore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	end, now, err := e.store.NextEnd(ctx)
	e.tally.More = until(end, now) < 0
	return err
}
