package intake

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
)

// The events of checkouts that sell something once.
const (
	eventCheckoutExpired     = "checkout.session.expired"
	eventCheckoutAsyncPaid   = "checkout.session.async_payment_succeeded"
	eventCheckoutAsyncFailed = "checkout.session.async_payment_failed"
)

// orderEvidence is what an event tells of an order of ours; nil when it is about something else. A session that cannot be read is
// left out too: the jobs ask for its order anyway.
func orderEvidence(e payment.Event) *settlement.Evidence {
	switch e.Type {
	case eventCheckoutCompleted, eventCheckoutExpired, eventCheckoutAsyncPaid, eventCheckoutAsyncFailed:
		session, err := payment.ReadCheckoutSession(e.Data)
		if err == nil && session.OrderID != "" {
			return &settlement.Evidence{Session: &session}
		}
	case eventPaymentSucceeded:
		paid, err := payment.ReadPayment(e.Data)
		if err == nil && paid.OrderID != "" {
			return &settlement.Evidence{Payment: &paid}
		}
	}
	return nil
}

// takeOrders settles the orders that events tell of, several at the same time. After the first one without an answer nobody else is
// asked for: a provider that is down costs one time-out. An error means that the database could not be asked.
func (s *settling) takeOrders(ctx context.Context, list []read) error {
	if len(list) == 0 {
		return nil
	}
	results := make([]error, len(list))
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var silent atomic.Bool
	var working sync.WaitGroup
	next := make(chan int)
	for range min(askers, len(list)) {
		working.Go(func() {
			for i := range next {
				if silent.Load() || asking.Err() != nil {
					results[i] = errNoAnswer
					continue
				}
				results[i] = s.takeOrder(asking, list[i])
				if results[i] != nil && asking.Err() != nil && ctx.Err() == nil {
					results[i] = errNoAnswer // the time for questions is over
				}
				if errors.Is(results[i], payment.ErrNoAnswer) {
					silent.Store(true)
				}
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	working.Wait()
	for i, r := range list {
		if err := s.tookOrder(ctx, r, results[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *settling) takeOrder(ctx context.Context, r read) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.in.log.Error("settling an order panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("settling an order panicked: %v", p)
		}
	}()
	_, err = s.in.settings.Orders.Take(ctx, *r.evidence)
	return err
}

// tookOrder marks the event. One about an order that is not ours is done: another system of the same account may have made it.
func (s *settling) tookOrder(ctx context.Context, r read, err error) error {
	reason := ""
	switch {
	case errors.Is(err, store.ErrNotFound):
		reason = "no_order"
	case err != nil:
		return s.failed(ctx, r, err)
	}
	err = s.safely(ctx, func(ctx context.Context) error { return s.done(ctx, r, reason) })
	if err != nil {
		return s.failed(ctx, r, err)
	}
	return nil
}
