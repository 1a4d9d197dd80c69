package settlement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

// ask puts the question about an order to the provider, and where closing says so closes a checkout that is still open. An order
// without a checkout gets the one that the provider's list has. The error is payment.ErrNoAnswer, ErrNoCheckout, or the store's.
func (s *Settler) ask(ctx context.Context, o *order.Order, closing bool) (order.Answer, error) {
	if o.SessionID == "" {
		found, err := s.findCheckout(ctx, *o)
		if err != nil {
			return order.Answer{}, err
		}
		*o = found
	}
	session, _, err := s.Provider.Checkout(ctx, o.SessionID)
	if err != nil {
		return order.Answer{}, err
	}
	if closing && session.Status == "open" && !session.Processing {
		failpoint.Hit("order_before_close")
		session, err = s.close(ctx, *o)
		if err != nil {
			return order.Answer{}, err
		}
		failpoint.Hit("order_closed")
	}
	return answerOf(*o, session)
}

// close closes a checkout. One that is not open any more is looked at again: it may have been paid.
func (s *Settler) close(ctx context.Context, o order.Order) (payment.CheckoutSession, error) {
	// Each try has a key of its own: the provider would repeat a fault for the same one, and closing twice is refused.
	session, err := s.Provider.ExpireCheckout(ctx, o.SessionID, fmt.Sprintf("termkeeper:order:%s:expire:%s", o.ID, store.NewID()))
	var refused *payment.RefusalError
	if errors.As(err, &refused) {
		session, _, err = s.Provider.Checkout(ctx, o.SessionID)
	}
	return session, err
}

// findCheckout looks for the checkout of an order whose making was not answered, and keeps it.
func (s *Settler) findCheckout(ctx context.Context, o order.Order) (order.Order, error) {
	session, err := s.Provider.FindCheckout(ctx, o.ID, o.CreatedAt)
	switch {
	case errors.Is(err, payment.ErrNotFound):
		return o, ErrNoCheckout
	case err != nil:
		return o, err
	}
	return s.Store.AttachCheckout(ctx, o.ID, session.ID, session.URL)
}

// answerOf reads what a session says of the order.
func answerOf(o order.Order, session payment.CheckoutSession) (order.Answer, error) {
	if session.OrderID != "" && session.OrderID != o.ID {
		return order.Answer{}, &payment.NoAnswerError{Why: "the checkout is another order's"}
	}
	var a order.Answer
	for _, p := range session.Payments {
		if p.Captured() {
			a.Payments = append(a.Payments, captured(p))
		}
	}
	switch {
	case len(a.Payments) > 0, session.PaymentStatus == "no_payment_required":
		a.Checkout = order.Done
	case session.PaymentStatus == "paid": // what it names as its payment did not come, or is not captured
		if session.PaymentIntentID != "" {
			return order.Answer{}, &payment.NoAnswerError{Why: "the checkout is paid and its payment cannot be seen"}
		}
		a.Checkout = order.Done
	case session.Processing:
		a.Checkout = order.Working
	case session.Status == "open":
		a.Checkout = order.Open
	default: // expired, or complete with a payment that came to nothing
		a.Checkout = order.Closed
	}
	return a, nil
}

func captured(p payment.Payment) order.Payment {
	return order.Payment{
		ID: p.ID, ChargeID: p.ChargeID, CustomerID: p.CustomerID, Amount: p.Amount, Refunded: p.Refunded, Currency: p.Currency, CapturedAt: p.Created,
	}
}

// addPayments adds the captured payments of the order that its checkout does not know of.
func (s *Settler) addPayments(ctx context.Context, o order.Order, a *order.Answer) error {
	all, err := s.Provider.OrderPayments(ctx, o.ID, o.CreatedAt)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Captured() && !slices.ContainsFunc(a.Payments, func(have order.Payment) bool { return have.ID == p.ID }) {
			a.Payments = append(a.Payments, captured(p))
		}
	}
	return nil
}

// Ask asks the provider about a claimed pending order and settles it by what it says. One that is overdue, or whose canceling was
// asked for, is closed there first. Where there is no answer the order stays pending, the attempt is counted, and the error is
// payment.ErrNoAnswer.
func (s *Settler) Ask(ctx context.Context, claimed order.Order, overdue bool, actor string) (order.Order, error) {
	o := claimed
	answer, asking := s.ask(ctx, &o, overdue || o.CancelAsked())
	failpoint.Hit("order_asked")
	switch {
	case asking == nil:
		after, err := s.change(ctx, o.ID, actor, func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
			out := o.Hear(payments, answer, at)
			if out.Order.Status == order.Pending {
				out.Order = out.Order.Answered(at)
			}
			return out, nil
		})
		if err != nil {
			return after, err
		}
		return s.drive(ctx, after, actor)
	case ctx.Err() != nil: // stopped: it was nobody's fault
		giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return o, errors.Join(ctx.Err(), s.Store.ReturnOrder(giving, claimed, 0))
	case errors.Is(asking, ErrNoCheckout):
		return s.change(ctx, o.ID, actor, pendingOnly(order.Order.Unmade))
	case errors.Is(asking, payment.ErrNotFound):
		return s.change(ctx, o.ID, actor, pendingOnly(order.Order.Unknown))
	case errors.Is(asking, payment.ErrNoAnswer):
		after, err := s.change(ctx, o.ID, actor, pendingOnly(func(o order.Order, at time.Time) order.Outcome {
			return o.Unanswered(why(asking), retryAfter(asking), at)
		}))
		if err != nil {
			return after, err
		}
		return after, asking
	}
	return o, asking
}

// pendingOnly leaves alone what was settled while the provider was asked.
func pendingOnly(do func(order.Order, time.Time) order.Outcome) change {
	return func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
		if o.Status != order.Pending {
			return order.Outcome{Order: o, Payments: payments}, nil
		}
		out := do(o, at)
		out.Payments = payments
		return out, nil
	}
}
