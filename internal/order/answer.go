package order

import (
	"slices"
	"strings"
	"time"
)

// Checkout is the state of a checkout at the provider.
type Checkout string

// The states of a checkout. Closed ones cannot be paid any more. Working ones are complete and their money is on its way or
// may still come: they are neither paid nor can they be closed.
const (
	Open    Checkout = "open"
	Working Checkout = "working"
	Done    Checkout = "done" // paid
	Closed  Checkout = "closed"
)

// Answer is what the provider says of an order.
type Answer struct {
	Checkout Checkout
	Payments []Payment // captured, of this order
}

// Hear works out what an answer means. known are the payments that the order has here. Hearing the same twice changes
// nothing the second time.
func (o Order) Hear(known []Payment, a Answer, at time.Time) Outcome {
	out := Outcome{Order: o, Payments: merge(known, a.Payments)}
	out.Order.UnansweredSince, out.Order.NotFound, out.Order.NotFoundSince, out.Order.LastError = time.Time{}, 0, time.Time{}, ""
	undecided := 0
	for i := range out.Payments {
		if out.Payments[i].State == "" {
			undecided += out.decide(&out.Payments[i], undecided, at)
		}
	}
	if out.Order.Status != Pending {
		return out
	}
	switch a.Checkout {
	case Done:
		if len(out.Payments) == 0 { // paid, and no payment came with it, nor is one known
			out.review(at, "", ReasonNoPayment)
			break
		}
		out.end(Refunded, ReasonAtProvider, at) // it was refunded before we heard that it was paid
		out.note("order_refunded", TopicRefunded, "refunded", out.Payments[0].ID, ReasonAtProvider)
	case Closed:
		if o.CancelAsked() {
			out.end(Canceled, ReasonAsked, at)
			out.note("order_canceled", TopicCanceled, "canceled", "", ReasonAsked)
			break
		}
		out.end(Expired, "", at)
		out.note("order_expired", TopicExpired, "expired", "", "")
	default: // it may still be paid
	}
	return out
}

// decide says what becomes of one captured payment that nobody has decided on. before is how many undecided ones the order
// keeps already. It returns how many more it keeps: 1 for the payment that pays the order.
func (out *Outcome) decide(p *Payment, before int, at time.Time) int {
	o := &out.Order
	if p.Refunded >= p.Amount {
		p.State, p.Reason = PaymentRefunded, ReasonAtProvider
		out.note("payment_refunded", "", "", p.ID, ReasonAtProvider)
		return 0
	}
	late := o.Status.ended()
	if late {
		out.note("order_paid_late", AlertLate, "alert:late:"+p.ID, p.ID, string(o.LatePayment))
	}
	if wrong := o.mismatch(*p); wrong != "" && p.Reason != ReasonAsked { // unless a person took it for the order
		out.surplus(p, wrong, at, late || o.Status == Pending)
		return 0
	}
	switch {
	case o.Status == Pending, late && o.LatePayment == LateFulfil:
		o.Status, o.PaidAt, o.FinishedAt, o.Attempts = Paid, p.CapturedAt, time.Time{}, 0
		*o = o.let(at)
		o.Reason = ""
		if late {
			o.Reason = ReasonLate
		}
		out.note("order_paid", "", "", p.ID, o.Reason)
		return 1
	case late && o.LatePayment == LateRefund:
		o.Status, o.PaidAt, o.FinishedAt, o.Attempts, o.Reason = Refunding, p.CapturedAt, time.Time{}, 0, ReasonLate
		*o = o.let(at)
		p.State, p.Reason = PaymentRefunding, ReasonLate
		out.note("order_refunding", "", "", p.ID, ReasonLate)
		return 0
	case late:
		o.PaidAt = p.CapturedAt
		out.surplus(p, ReasonLate, at, true)
		return 0
	case (o.Status == Paid || o.Status == Fulfilling) && before == 0:
		return 1 // it is the one that pays the order
	}
	out.surplus(p, ReasonSecond, at, false)
	return 0
}

// surplus puts a payment before a person, and the order with it where nothing else is to become of it.
func (out *Outcome) surplus(p *Payment, reason string, at time.Time, withOrder bool) {
	p.State, p.Reason = PaymentReview, reason
	if withOrder {
		out.review(at, p.ID, reason)
		return
	}
	out.note("payment_review", TopicReview, "review:"+p.ID, p.ID, reason)
	out.note("", AlertReview, "alert:review:"+p.ID, p.ID, reason)
}

// merge adds what the provider told to what is known, in the order in which it was captured. What the provider has not
// captured is none.
func merge(known, told []Payment) []Payment {
	all := slices.Clone(known)
	for _, p := range told {
		if p.ID == "" || p.Amount <= 0 {
			continue
		}
		i := slices.IndexFunc(all, func(k Payment) bool { return k.ID == p.ID })
		if i < 0 {
			p.State, p.Reason = "", ""
			all = append(all, p)
			continue
		}
		all[i].Refunded = max(all[i].Refunded, p.Refunded)
	}
	slices.SortStableFunc(all, func(a, b Payment) int {
		if c := a.CapturedAt.Compare(b.CapturedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

const (
	// alertAfter is how long the provider may be silent about an order before somebody is told.
	alertAfter = time.Hour
	// notFoundTimes and notFoundFor: that often and for that long the provider must not know a checkout before a person looks
	// at it. A single 404 is no answer.
	notFoundTimes = 3
	notFoundFor   = 10 * time.Minute
	// notFoundPause makes three looks span notFoundFor.
	notFoundPause = notFoundFor / (notFoundTimes - 1)
)

// Unanswered counts an attempt without an answer. The order stays as it is. why is kept; retryAfter is what the provider
// asked for, 0 where it did not.
func (o Order) Unanswered(why string, retryAfter time.Duration, at time.Time) Outcome {
	out := Outcome{Order: o}
	next := &out.Order
	*next = next.let(at)
	next.Attempts++
	next.NextAttemptAt = at.Add(max(Backoff(next.Attempts), retryAfter))
	next.AskedAt, next.LastError = at, why
	if next.UnansweredSince.IsZero() {
		next.UnansweredSince = at
	}
	if since := next.UnansweredSince; at.Sub(since) >= alertAfter {
		out.note("", AlertUnanswered, "alert:unanswered:"+since.UTC().Format(time.RFC3339), "", why)
	}
	return out
}

// Unknown counts an answer that the provider does not know the checkout. It may be wrong, so only several of them over
// some time put a pending order before a person.
func (o Order) Unknown(at time.Time) Outcome {
	out := Outcome{Order: o}
	next := &out.Order
	*next = next.let(at)
	next.Attempts++
	next.NotFound++
	next.AskedAt, next.LastError = at, "the provider does not know the checkout"
	if next.NotFoundSince.IsZero() {
		next.NotFoundSince = at
	}
	next.NextAttemptAt = at.Add(notFoundPause)
	if next.Status == Pending && next.NotFound >= notFoundTimes && at.Sub(next.NotFoundSince) >= notFoundFor {
		out.review(at, "", ReasonNotFound)
	}
	return out
}

// Unmade counts a whole list of the provider's checkouts on which the order's was not. The call that makes it may still be
// under way, so only several of them over some time end an overdue order.
func (o Order) Unmade(at time.Time) Outcome {
	next := o
	next.UnansweredSince = time.Time{}
	if next.NotFound++; next.NotFoundSince.IsZero() {
		next.NotFoundSince = at
	}
	if o.Status == Pending && !at.Before(o.ExpiresAt) && next.NotFound >= notFoundTimes && at.Sub(next.NotFoundSince) >= notFoundFor {
		out := Outcome{Order: next}
		out.end(Failed, ReasonNoCheckout, at)
		out.note("order_failed", "", "", "", ReasonNoCheckout)
		return out
	}
	next = next.let(at)
	next.Attempts++
	next.AskedAt, next.NextAttemptAt = at, at.Add(notFoundPause)
	return Outcome{Order: next}
}

// Answered moves the next question of an order that is as it was.
func (o Order) Answered(at time.Time) Order {
	o = o.let(at)
	o.Attempts++
	o.AskedAt, o.NextAttemptAt = at, at.Add(Backoff(o.Attempts))
	return o
}

// Backoff is the pause after that many attempts without news: 1, 2, 5, 10, then 30 minutes.
func Backoff(attempts int) time.Duration {
	pauses := []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute}
	return pauses[min(max(attempts, 1), len(pauses))-1]
}
