package activities

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"

	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
)

const (
	// ordersAtOnce is how many orders are asked about at the same time. Stripe allows 100 calls a second, and other work needs some.
	ordersAtOnce = 8
	// silentAtMost is how many orders in a row may have no answer before the provider counts as down.
	silentAtMost = 3
	// beatEvery is how often a batch of questions tells that it is alive: one question may take 20 s, the heartbeat time-out is 14 s.
	beatEvery = 3 * time.Second
)

// Orders are the jobs on orders.
type Orders struct {
	Settler *settlement.Settler
	Runs    *Runs
}

// ReconcilePending asks the provider about pending orders before their deadline, each on its own cadence. Each is leased, and what the
// answer means is decided under the lock of its row.
func (a *Orders) ReconcilePending(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		return a.drain(ctx, p, in, store.OrdersToAsk)
	})
}

// ExpireOverdue asks about overdue orders and closes them at the provider before they expire here, and completes what was left behind
// in the middle of being fulfilled or refunded. Each is leased; a fulfilment is one transaction with a ledger row that is unique on
// the order, and a refund is looked for at the provider before it is asked for.
func (a *Orders) ExpireOverdue(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		finished, err := a.drain(ctx, p, in, store.OrdersToFinish)
		if err != nil || finished.More {
			return finished, err
		}
		closed, err := a.drain(ctx, p, in, store.OrdersToClose)
		return finished.Plus(closed), err
	})
}

// drain works batch after batch until nothing is due, the budget is over or the provider is down.
func (a *Orders) drain(ctx context.Context, p *pace, in Run, work store.OrderWork) (total Tally, err error) {
	s := a.Settler
	for {
		if p.mustLeave(ctx) {
			total.More = true
			return total, nil
		}
		if work != store.OrdersToFinish {
			if paused, err := s.Store.ProviderPaused(ctx); err != nil || paused || s.Provider == nil {
				return total, err
			}
		}
		claimed, err := s.Store.ClaimOrders(ctx, work, s.Owner, in.Batch, settlement.Lease)
		if err != nil || len(claimed) == 0 {
			return total, err
		}
		b := &orderBatch{orders: a, job: in.Job, pace: p, work: work}
		tally, err := b.run(ctx, claimed)
		total = total.Plus(tally)
		if err != nil || b.down.Load() {
			return total, err
		}
	}
}

// orderBatch is a batch of claimed orders.
type orderBatch struct {
	orders *Orders
	job    string
	pace   *pace
	work   store.OrderWork

	down     atomic.Bool // the provider is: nobody is asked any more
	answered atomic.Bool

	mu     sync.Mutex
	silent int    // in a row
	why    string // the last one had no answer
	tally  Tally
	err    error // of the database
}

// run asks about one order first: a provider that is down costs one time-out after the other, and not eight at once. The others
// follow together. It ends when all are done or given back.
func (b *orderBatch) run(ctx context.Context, claimed []order.Order) (Tally, error) {
	alive, done := context.WithCancel(ctx)
	defer done()
	go func() {
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.pace.beat()
			case <-alive.Done():
				return
			}
		}
	}()
	next := make(chan order.Order)
	var working sync.WaitGroup
	first := 0
	for first < len(claimed) && !b.answered.Load() && !b.down.Load() && ctx.Err() == nil {
		b.one(ctx, claimed[first])
		first++
	}
	for range min(ordersAtOnce, len(claimed)-first) {
		working.Go(func() {
			for o := range next {
				b.one(ctx, o)
			}
		})
	}
	for _, o := range claimed[first:] {
		next <- o
	}
	close(next)
	working.Wait()
	if b.silent > 0 && !b.answered.Load() && ctx.Err() == nil { // few were asked about, and none had an answer
		b.note(func(*Tally) {}, b.pause(ctx, 0, b.why))
	}
	return b.tally, b.err
}

// one works one order, or gives it back where the provider is down or the run is to end.
func (b *orderBatch) one(ctx context.Context, o order.Order) {
	s := b.orders.Settler
	if b.down.Load() || ctx.Err() != nil {
		giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		defer cancel()
		b.note(func(t *Tally) { t.Skipped++ }, s.Store.ReturnOrder(giving, o, 0))
		return
	}
	var after order.Order
	var err error
	if b.work == store.OrdersToFinish {
		after, err = s.Finish(ctx, o, b.job)
		if err == nil && (after.Status == order.Paid || after.Status == order.Refunding) && after.LastError != "" {
			b.note(func(t *Tally) { t.Scanned++; t.Failed++ }, nil)
			b.answered.Store(true) // the next ones need not wait for it
			return
		}
	} else {
		after, err = s.Ask(ctx, o, b.work == store.OrdersToClose, b.job)
	}
	var silent *payment.NoAnswerError
	switch {
	case err == nil:
		b.heard(ctx)
		b.note(func(t *Tally) {
			t.Scanned++
			if after.Status != o.Status {
				t.Changed++
			} else {
				t.Skipped++
			}
		}, nil)
	case errors.As(err, &silent):
		b.note(func(t *Tally) { t.Scanned++; t.Failed++ }, b.unheard(ctx, silent))
	case ctx.Err() != nil:
		b.note(func(t *Tally) { t.Skipped++ }, nil)
	case store.IsRowFault(err) || store.Busy(err):
		// It stays as it is; when its lease has passed it is claimed again.
		activity.GetLogger(ctx).Warn("an order could not be settled", "job", b.job, "order_id", o.ID, "error", plain(err))
		b.note(func(t *Tally) { t.Scanned++; t.Failed++ }, nil)
	default:
		b.note(func(t *Tally) { t.Scanned++; t.Failed++ }, err)
	}
}

func (b *orderBatch) note(count func(*Tally), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	count(&b.tally)
	if err != nil && b.err == nil {
		b.err = err
		b.down.Store(true) // what is left is given back
	}
}

// heard: the provider answers.
func (b *orderBatch) heard(ctx context.Context) {
	if b.work == store.OrdersToFinish {
		b.answered.Store(true)
		return
	}
	b.mu.Lock()
	b.silent = 0
	b.mu.Unlock()
	if !b.answered.Swap(true) {
		if err := b.orders.Settler.Store.ReviveProvider(ctx); err != nil {
			activity.GetLogger(ctx).Warn("the pause of the provider could not be ended", "job", b.job, "error", plain(err))
		}
	}
}

// unheard opens the circuit: at once where the provider has too much to do, else after some orders in a row.
func (b *orderBatch) unheard(ctx context.Context, silent *payment.NoAnswerError) error {
	b.mu.Lock()
	b.silent++
	b.why = silent.Why
	down := b.silent >= silentAtMost || silent.RetryAfter > 0
	b.mu.Unlock()
	if !down {
		return nil
	}
	return b.pause(ctx, silent.RetryAfter, silent.Why)
}

// pause lets all jobs leave the provider alone, once for a batch.
func (b *orderBatch) pause(ctx context.Context, retryAfter time.Duration, why string) error {
	if b.down.Swap(true) {
		return nil
	}
	return b.orders.Settler.Store.PauseProvider(ctx, retryAfter, why)
}
