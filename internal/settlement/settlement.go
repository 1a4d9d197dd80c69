// Package settlement is the one path on which an order is settled, whoever heard of it first: an event, a person or a job. The
// provider is asked outside any transaction; what it says is applied in a short one, under the lock of the order.
package settlement

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

const (
	// Lease is how long an order stays with whoever claimed it. It is longer than a question, a closing and a second question may
	// take, 20 s in all, for each of the four turns in which a batch is worked.
	Lease = 90 * time.Second
	// fulfilTimeout bounds the transaction that gives what was paid for.
	fulfilTimeout = 10 * time.Second
	// askEvery is how often anybody but the jobs may ask the provider about one order.
	askEvery = 3 * time.Second
	// minCheckout and maxCheckout are what Stripe takes as the life of a checkout: 30 min to 24 h, with room for its clock.
	minCheckout = 31 * time.Minute
	maxCheckout = 24*time.Hour - 30*time.Second
)

// ErrNoProvider says that no key of the provider is configured, so that nobody can be asked.
var ErrNoProvider = errors.New("no key of the payment provider is configured")

// ErrNoCheckout says that the provider has no checkout of the order, by its whole list.
var ErrNoCheckout = errors.New("the provider has no checkout of the order")

// Settler settles orders. Provider is nil where no key is configured.
type Settler struct {
	Store    *store.Store
	Provider *payment.Client
	Owner    string // names this process in leases
	Log      *zap.Logger
}

// Create writes an order and makes its checkout at the provider. With an id that is there already it goes on where the
// earlier call was left. The error is a *payment.RefusalError (the order has failed), payment.ErrNoAnswer (the order is
// pending without a checkout; the same call may be made again), store.ErrNoPlan or ErrNoProvider.
func (s *Settler) Create(ctx context.Context, in order.New) (order.Order, error) {
	if s.Provider == nil {
		return order.Order{}, ErrNoProvider
	}
	o, err := s.Store.CreateOrder(ctx, in)
	if err != nil || o.Status != order.Pending || o.SessionID != "" {
		return o, err
	}
	failpoint.Hit("order_created")
	key := "termkeeper:order:" + o.ID + ":checkout"
	if again := in.ID != "" && o.Version > 1; again {
		// After a fault the provider repeats it for the same key, so it is asked first whether the checkout is there.
		found, err := s.findCheckout(ctx, o)
		if err == nil || !errors.Is(err, ErrNoCheckout) {
			return found, err
		}
		key += ":" + store.NewID()
	}
	now := time.Now()
	session, err := s.Provider.CreateCheckout(ctx, payment.NewCheckout{
		OrderID: o.ID, UserID: o.UserID, Email: in.Email, PlanName: planName(in), Amount: o.Amount, Currency: o.Currency,
		ExpiresAt:  clamp(o.ExpiresAt, now.Add(minCheckout), now.Add(maxCheckout)),
		SuccessURL: in.SuccessURL, CancelURL: in.CancelURL,
	}, key)
	failpoint.Hit("order_checkout_made")
	var refused *payment.RefusalError
	switch {
	case errors.As(err, &refused):
		failed, failing := s.change(ctx, o.ID, in.Actor, func(o order.Order, _ []order.Payment, at time.Time) (order.Outcome, error) {
			return o.Fail(order.ReasonRefused, refused.Message, at)
		})
		return failed, errors.Join(err, failing)
	case err != nil:
		// The next call must know that this one was made: writing raises the version.
		noted, noting := s.change(context.WithoutCancel(ctx), o.ID, in.Actor, func(o order.Order, _ []order.Payment, _ time.Time) (order.Outcome, error) {
			o.LastError = why(err)
			return order.Outcome{Order: o}, nil
		})
		return noted, errors.Join(err, noting)
	}
	return s.Store.AttachCheckout(ctx, o.ID, session.ID, session.URL)
}

func planName(in order.New) string {
	if in.PlanName != "" {
		return in.PlanName
	}
	return in.PlanKey
}

func clamp(at, least, most time.Time) time.Time {
	switch {
	case at.Before(least):
		return least
	case at.After(most):
		return most
	}
	return at
}

// Verify asks the provider about an order and settles it by what it says. Within 3 s of the last question the order is returned
// as it is known. The error is payment.ErrNoAnswer (the order comes with it, as it is known) or store.ErrNotFound.
func (s *Settler) Verify(ctx context.Context, id, actor string) (order.Order, error) {
	o, err := s.Store.AskOrder(ctx, id, askEvery)
	if errors.Is(err, store.ErrConflict) {
		return s.Store.Order(ctx, id)
	}
	if err != nil {
		return o, err
	}
	if s.Provider == nil {
		return o, ErrNoProvider
	}
	overdue := o.Status == order.Pending && !o.AskedAt.Before(o.ExpiresAt) // both by the database's clock
	answer, err := s.ask(ctx, &o, overdue || o.CancelAsked())
	if err == nil && o.SessionID != "" {
		// The list is of all payments since the order was made: a large shop's may be too long to be read. What the checkout itself
		// says was paid does not wait for it.
		if err = s.addPayments(ctx, o, &answer); answer.Checkout == order.Done {
			err = nil
		}
	}
	if err != nil {
		return o, err
	}
	return s.settle(ctx, o.ID, answer, actor)
}

// Cancel closes the checkout at the provider, then cancels the order. A payment that was faster wins. The error is
// order.ErrConflict, payment.ErrNoAnswer (it is canceled later, unless it was paid), or store.ErrNotFound.
func (s *Settler) Cancel(ctx context.Context, id, actor string) (order.Order, error) {
	if s.Provider == nil {
		return order.Order{}, ErrNoProvider
	}
	o, err := s.change(ctx, id, actor, func(o order.Order, _ []order.Payment, _ time.Time) (order.Outcome, error) { return o.AskCancel() })
	if err != nil {
		return o, err
	}
	answer, err := s.ask(ctx, &o, true)
	if errors.Is(err, ErrNoCheckout) { // nobody can pay what is not there; a checkout that shows up later is a late payment's
		answer, err = order.Answer{Checkout: order.Closed}, nil
	}
	if err != nil {
		return o, err
	}
	failpoint.Hit("order_closed")
	after, err := s.settle(ctx, id, answer, actor)
	if err != nil {
		return after, err
	}
	switch after.Status {
	case order.Canceled:
		return after, nil
	case order.Pending:
		return after, fmt.Errorf("%w: its payment is on its way", order.ErrConflict)
	default:
		return after, after.Cancelable()
	}
}

// Refund gives the money of a fulfilled order back, and takes back what it gave as far as its plan says so. Where the provider
// does not answer the order comes back as refunding, and is refunded later. The error is order.ErrConflict or store.ErrNotFound.
func (s *Settler) Refund(ctx context.Context, id, actor string) (order.Order, error) {
	return s.begin(ctx, id, actor, func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
		return o.Refund(payments, at)
	})
}

// Resolve ends a review as order.AsFulfilled, AsRefunded or AsCanceled. The error is order.ErrConflict or store.ErrNotFound.
func (s *Settler) Resolve(ctx context.Context, id, as, actor string) (order.Order, error) {
	return s.begin(ctx, id, actor, func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
		return o.Resolve(payments, as, at)
	})
}

func (s *Settler) begin(ctx context.Context, id, actor string, change change) (order.Order, error) {
	after, err := s.change(ctx, id, actor, change)
	if err != nil {
		return after, err
	}
	return s.drive(ctx, after, actor)
}

type change = func(order.Order, []order.Payment, time.Time) (order.Outcome, error)

// change changes an order, and says aloud what somebody must look at.
func (s *Settler) change(ctx context.Context, id, actor string, do change) (order.Order, error) {
	var out order.Outcome
	after, err := s.Store.ChangeOrder(ctx, id, actor, func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
		var err error
		out, err = do(o, payments, at)
		return out, err
	})
	if err != nil {
		return after, err
	}
	for _, n := range out.Notes {
		if strings.HasPrefix(n.Topic, "alert.") {
			s.Log.Warn("order alert", zap.String("topic", n.Topic), zap.String("order_id", id), zap.String("payment_id", n.PaymentID), zap.String("reason", n.Reason))
		}
	}
	return after, nil
}

// settle applies an answer and does what follows from it.
func (s *Settler) settle(ctx context.Context, id string, answer order.Answer, actor string) (order.Order, error) {
	after, err := s.change(ctx, id, actor, func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
		return o.Hear(payments, answer, at), nil
	})
	if err != nil {
		return after, err
	}
	for _, p := range answer.Payments {
		if p.Refunded < p.Amount || s.Provider == nil {
			continue
		}
		if after, err = s.Refunded(ctx, payment.Refund{PaymentID: p.ID}); err != nil { // somebody gave it back, and no event told
			return after, err
		}
	}
	if answer.Checkout == order.Open && after.Status != order.Pending && s.Provider != nil {
		// It was paid without its checkout. That is closed so that nobody pays again; a payment that is faster goes to review.
		if _, err := s.close(ctx, after); err != nil {
			s.Log.Warn("the checkout of a settled order stays open", zap.String("order_id", id), zap.Error(err))
		}
	}
	return s.drive(ctx, after, actor)
}

// drive fulfils or refunds an order that has just come there. Where somebody else does, or it does not work out now, the order
// comes back as it is: the job order-expiry completes it.
func (s *Settler) drive(ctx context.Context, o order.Order, actor string) (order.Order, error) {
	if o.Status != order.Paid && o.Status != order.Refunding {
		return o, nil
	}
	failpoint.Hit("order_" + string(o.Status))
	claimed, err := s.Store.ClaimOrder(ctx, o.ID, s.Owner, Lease)
	if errors.Is(err, store.ErrConflict) {
		return s.Store.Order(ctx, o.ID)
	}
	if err != nil {
		return o, err
	}
	return s.Finish(ctx, claimed, actor)
}

// Finish completes a claimed order that is being fulfilled or refunded. What went wrong is kept on the order, which is then tried
// again later; the error says that not even that was possible, or payment.ErrNoAnswer.
func (s *Settler) Finish(ctx context.Context, claimed order.Order, actor string) (order.Order, error) {
	failpoint.Hit("order_claimed_" + string(claimed.Status))
	var after order.Order
	var err error
	if claimed.Status == order.Refunding {
		after, err = s.refund(ctx, claimed, actor)
	} else {
		// Whoever asked may have left: what was begun is a short transaction, and is finished.
		fulfilling, cancel := context.WithTimeout(context.WithoutCancel(ctx), fulfilTimeout)
		defer cancel()
		after, err = s.Store.FulfilOrder(fulfilling, claimed, actor)
		if err == nil && after.Status == order.Review {
			s.Log.Warn("order alert", zap.String("topic", order.AlertReview), zap.String("order_id", after.ID), zap.String("reason", after.Reason))
		}
	}
	failpoint.Hit("order_finished")
	if err == nil {
		return after, nil
	}
	if errors.Is(err, store.ErrConflict) { // somebody else has it by now
		return s.Store.Order(ctx, claimed.ID)
	}
	s.Log.Warn("order could not be completed", zap.String("order_id", claimed.ID), zap.String("status", string(claimed.Status)), zap.Error(err))
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return s.change(writing, claimed.ID, actor, func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
		if o.LeaseOwner == claimed.LeaseOwner {
			o = o.Troubled(why(err), retryAfter(err), at)
		}
		return order.Outcome{Order: o, Payments: payments}, nil
	})
}

// why is what is kept of an error: no content of a row.
func why(err error) string {
	var silent *payment.NoAnswerError
	switch {
	case errors.As(err, &silent):
		return silent.Why
	case store.IsRowFault(err):
		return "the database refused a row of it"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "it was stopped or took too long"
	}
	return "the database could not do it"
}

func retryAfter(err error) time.Duration {
	var silent *payment.NoAnswerError
	if errors.As(err, &silent) {
		return silent.RetryAfter
	}
	return 0
}
