package activities

import (
	"context"
	"time"

	"termkeeper/internal/store"
)

// Remind tells of ends that are near and that nothing will renew. The ledger in the history has one entry for each bucket
// of each end, and the fact names both, so any number of runs at once tell each reminder once.
func (a *Subscriptions) Remind(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		r := &reminding{store: a.Store, in: in}
		early, err := r.pass(ctx, p)
		r.tally.More = early
		return r.tally, err
	})
}

// reminding is one activity's work: one pass over the ends that have come near.
type reminding struct {
	store *store.Store
	in    Run
	tally Tally
}

func (r *reminding) pass(ctx context.Context, p *pace) (early bool, err error) {
	now, withSetAside, err := r.store.BeginScan(ctx, r.in.Job)
	if err != nil {
		return false, err
	}
	if withSetAside {
		if err := r.retrySetAside(ctx, now); err != nil {
			return false, err
		}
	}
	b := batches{first: r.in.Batch, most: r.in.MaxBatch}
	b.take = func(limit int) (int, error) {
		batch, err := r.store.RemindDue(ctx, now, limit)
		if err != nil || batch.Looked == 0 {
			return 0, err
		}
		r.count(batch)
		return batch.Looked, nil
	}
	b.isolate = func() (bool, error) {
		id, err := r.store.FirstNearEnd(ctx, now)
		if err != nil || id == "" {
			return false, err
		}
		return r.tryAlone(ctx, now, id)
	}
	_, _, early, err = b.pass(ctx, p)
	return early, err
}

// count: what was looked at and has its reminder at another instant is not counted.
func (r *reminding) count(batch store.Reminded) {
	r.tally.Scanned += int64(batch.Told + batch.Superseded)
	r.tally.Changed += int64(batch.Told)
	r.tally.Skipped += int64(batch.Superseded)
}

// tryAlone looks at one row and sets it aside where that fails by the row's own fault.
func (r *reminding) tryAlone(ctx context.Context, now time.Time, id string) (setAside bool, err error) {
	one, err := r.store.RemindOne(ctx, now, id)
	if err == nil {
		r.count(one)
		return false, nil
	}
	if !store.IsRowFault(err) {
		return false, err
	}
	r.tally.Scanned++
	r.tally.Failed++
	return true, r.store.SetAside(ctx, r.in.Job, id, plain(err))
}

func (r *reminding) retrySetAside(ctx context.Context, now time.Time) error {
	ids, err := r.store.TakeSetAside(ctx, r.in.Job, now, setAsideLimit)
	if err != nil {
		return err
	}
	for _, id := range ids {
		setAside, err := r.tryAlone(ctx, now, id)
		if err != nil {
			return err
		}
		if setAside {
			continue
		}
		if err := r.store.DropSetAside(ctx, r.in.Job, id); err != nil {
			return err
		}
	}
	return nil
}
