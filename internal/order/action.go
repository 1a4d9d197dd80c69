package order

import (
	"slices"
	"time"
)

// Primary is the payment that pays the order: the one that nobody has decided on. False when there is none.
func Primary(payments []Payment) (Payment, bool) {
	for _, p := range payments {
		if p.State == "" {
			return p, true
		}
	}
	return Payment{}, false
}

// Fulfil says what an order is after its subscription got the time. It must be Fulfilling.
func (o Order) Fulfil(payments []Payment, subscriptionID string, at time.Time) (Outcome, error) {
	if o.Status != Fulfilling {
		return Outcome{}, conflict("the order is not being fulfilled")
	}
	out := Outcome{Order: o, Payments: payments}
	for i := range out.Payments {
		if out.Payments[i].State == "" {
			out.Payments[i].State, out.Payments[i].Reason = PaymentFulfilled, ""
			out.note("order_fulfilled", TopicFulfilled, "fulfilled", out.Payments[i].ID, o.Reason)
			break
		}
	}
	if len(out.Notes) == 0 {
		return Outcome{}, conflict("the order has no payment to be fulfilled for")
	}
	out.Order.SubscriptionID, out.Order.LastError, out.Order.Attempts = subscriptionID, "", 0
	out.end(Fulfilled, o.Reason, at)
	return out, nil
}

// Unfit puts an order before a person whose subscription cannot take what was bought.
func (o Order) Unfit(payments []Payment, why string, at time.Time) Outcome {
	out := Outcome{Order: o, Payments: payments}
	about := ""
	for i := range out.Payments {
		if out.Payments[i].State == "" {
			out.Payments[i].State, out.Payments[i].Reason = PaymentReview, ReasonNoTerm
			about = out.Payments[i].ID
		}
	}
	out.Order.LastError = why
	out.review(at, about, ReasonNoTerm)
	return out
}

// Troubled gives an order that is under way back after its work failed, to be taken up again later.
func (o Order) Troubled(why string, retryAfter time.Duration, at time.Time) Order {
	if o.Status == Fulfilling {
		o.Status = Paid
	}
	o = o.let(at)
	o.Attempts++
	o.LastError, o.NextAttemptAt = why, at.Add(max(Backoff(o.Attempts), retryAfter))
	return o
}

// Cancelable says what speaks against canceling. It is ErrConflict.
func (o Order) Cancelable() error {
	if o.Status != Pending {
		return conflict("the order is " + string(o.Status) + "; only a pending one can be canceled")
	}
	return nil
}

// AskCancel notes on a pending order that it is to be canceled: its checkout is closed at the provider first, by whoever comes
// to it.
func (o Order) AskCancel() (Outcome, error) {
	if err := o.Cancelable(); err != nil {
		return Outcome{}, err
	}
	o.Reason = ReasonAsked
	return Outcome{Order: o}, nil
}

// CancelAsked reports whether a person asked to cancel the order while it was pending.
func (o Order) CancelAsked() bool { return o.Status == Pending && o.Reason == ReasonAsked }

// Refund begins to give the money of a fulfilled order back.
func (o Order) Refund(payments []Payment, at time.Time) (Outcome, error) {
	if o.Status != Fulfilled {
		return Outcome{}, conflict("the order is " + string(o.Status) + "; only a fulfilled one can be refunded")
	}
	return o.giveBack(payments, PaymentFulfilled, at)
}

// The ends that a person can give an order under review.
const (
	AsFulfilled = "fulfilled"
	AsRefunded  = "refunded"
	AsCanceled  = "canceled"
)

// Resolve ends a review. A fulfilled order can be resolved as refunded: its surplus payments go back.
func (o Order) Resolve(payments []Payment, as string, at time.Time) (Outcome, error) {
	if o.Status == Fulfilled && as == AsRefunded {
		return o.giveBack(payments, PaymentReview, at)
	}
	if o.Status != Review {
		return Outcome{}, conflict("the order is " + string(o.Status) + " and not under review")
	}
	switch as {
	case AsFulfilled:
		return o.accept(payments, at)
	case AsRefunded:
		return o.giveBack(payments, PaymentReview, at)
	case AsCanceled:
		for _, p := range payments {
			if p.State != PaymentRefunded && p.State != PaymentFulfilled {
				return Outcome{}, conflict("money was captured for the order: resolve it as fulfilled or as refunded")
			}
		}
		out := Outcome{Order: o, Payments: payments}
		out.end(Canceled, ReasonAsked, at)
		out.note("order_canceled", TopicCanceled, "canceled", "", ReasonAsked)
		return out, nil
	}
	return Outcome{}, conflict("an order can be resolved as fulfilled, refunded or canceled")
}

// accept takes one payment under review for the order: one that fits exactly where there is one, else the first.
func (o Order) accept(payments []Payment, at time.Time) (Outcome, error) {
	chosen := -1
	for i, p := range payments {
		if p.State == PaymentReview && (chosen < 0 || (o.mismatch(payments[chosen]) != "" && o.mismatch(p) == "")) {
			chosen = i
		}
	}
	if chosen < 0 {
		return Outcome{}, conflict("no payment of the order is under review")
	}
	out := Outcome{Order: o, Payments: payments}
	p := &out.Payments[chosen]
	p.State, p.Reason = "", ReasonAsked
	out.Order.Status, out.Order.Reason, out.Order.PaidAt, out.Order.Attempts = Paid, ReasonAsked, p.CapturedAt, 0
	out.Order = out.Order.let(at)
	out.note("order_accepted", "", "", p.ID, ReasonAsked)
	return out, nil
}

func (o Order) giveBack(payments []Payment, from PaymentState, at time.Time) (Outcome, error) {
	out := Outcome{Order: o, Payments: payments}
	for i := range out.Payments {
		if out.Payments[i].State == from {
			out.Payments[i].State, out.Payments[i].Reason = PaymentRefunding, ReasonAsked
			out.note("order_refunding", "", "", out.Payments[i].ID, ReasonAsked)
		}
	}
	if len(out.Notes) == 0 {
		return Outcome{}, conflict("no payment of the order is there to be refunded")
	}
	out.Order.Status, out.Order.Reason, out.Order.FinishedAt, out.Order.Attempts = Refunding, ReasonAsked, time.Time{}, 0
	out.Order = out.Order.let(at)
	return out, nil
}

// GaveBack says what an order is after the provider took a refund of the payment. An order that keeps a payment stays
// fulfilled by it. takeBack says that what the order gave is to be taken back, as far as its plan says so.
func (o Order) GaveBack(payments []Payment, paymentID, reason string, at time.Time) (out Outcome, takeBack bool) {
	out = Outcome{Order: o, Payments: payments}
	left := map[PaymentState]int{}
	for i := range out.Payments {
		p := &out.Payments[i]
		if p.ID == paymentID && p.State != PaymentRefunded {
			p.State, p.Reason = PaymentRefunded, reason
			out.note("payment_refunded", "", "", p.ID, reason)
		}
		left[p.State]++
	}
	switch {
	case len(out.Notes) == 0 || left[PaymentRefunding] > 0 || left[""] > 0:
		return out, false // nothing new, or more is to come
	case left[PaymentFulfilled] > 0:
		if o.Status != Fulfilled {
			out.end(Fulfilled, "", at)
		}
	case left[PaymentReview] > 0:
		if o.Status != Review {
			out.Order.Status, out.Order.Reason = Review, reason
			out.Order = out.Order.let(at)
		}
		return out, true
	default:
		out.end(Refunded, reason, at)
		out.note("order_refunded", TopicRefunded, "refunded", paymentID, reason)
		return out, true
	}
	return out, false
}

// NotGivenBack puts a payment before a person whose refund was refused, or came back after it had been taken.
func (o Order) NotGivenBack(payments []Payment, paymentID, why string, at time.Time) Outcome {
	out := Outcome{Order: o, Payments: payments}
	out.Order.LastError = why
	others := func(state PaymentState) bool {
		return slices.ContainsFunc(payments, func(p Payment) bool { return p.State == state && p.ID != paymentID })
	}
	kept, more := others(PaymentFulfilled), others(PaymentRefunding)
	for i := range out.Payments {
		if p := &out.Payments[i]; p.ID == paymentID {
			out.surplus(p, ReasonRefundFailed, at, !kept && !more)
		}
	}
	if kept && !more && o.Status != Fulfilled {
		out.end(Fulfilled, "", at)
	}
	return out
}

// Fail ends a pending order whose checkout is not there and will not be.
func (o Order) Fail(reason, why string, at time.Time) (Outcome, error) {
	if o.Status != Pending {
		return Outcome{}, conflict("the order is " + string(o.Status))
	}
	out := Outcome{Order: o}
	out.Order.LastError = why
	out.end(Failed, reason, at)
	out.note("order_failed", "", "", "", reason)
	return out, nil
}
