package activities

import (
	"context"
	"time"

	"termkeeper/internal/store"
)

// Idempotency is the job on what makes a repetition have its effect once: keys of writes, and events of providers.
type Idempotency struct {
	Store *store.Store
	Runs  *Runs
}

// CleanUpKeys removes keys, bodies of events, events and changes of access that are past their retention, batch by batch. Each statement
// removes what is old enough and nothing else, so any number of runs may do so at once.
func (a *Idempotency) CleanUpKeys(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		var total Tally
		now, err := a.Store.Now(ctx)
		if err != nil {
			return total, err
		}
		for _, remove := range []func(context.Context, time.Time, int) (int, error){a.Store.DropKeys, a.Store.EmptyPayloads, a.Store.DropEvents, a.Store.TrimAccessChanges} {
			for size, n := in.Batch, 1; n > 0; size = min(2*size, in.MaxBatch) {
				if p.mustLeave(ctx) {
					total.More = true
					return total, nil
				}
				if n, err = remove(ctx, now, size); err != nil {
					return total, err
				}
				total.Scanned += int64(n)
				total.Changed += int64(n)
			}
		}
		return total, nil
	})
}
