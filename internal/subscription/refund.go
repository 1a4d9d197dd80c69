package subscription

import "time"

// The refund policies of a plan: what becomes of the access when its price is paid back.
const (
	RefundKeep = "keep" // access goes on to its end
	RefundEnd  = "end"  // the subscription ends
)

// TakenBack is what was taken back of one payment for a provider's subscription: by refunds, and by disputes that were lost.
type TakenBack struct {
	Paid      int64     // what was captured, in minor units
	Amount    int64     // of it that is taken back for good; what is only on its way does not count
	PeriodEnd time.Time // end of the period that was paid for; zero for a payment of none, as one of prorations
	At        time.Time // when the last of it was taken
}

// Verdict says what follows from money that was taken back, and if nothing does, why.
type Verdict string

// The verdicts. All but VerdictEnd change nothing.
const (
	VerdictEnd      Verdict = "end"
	VerdictNothing  Verdict = "nothing_taken_back" // it was not, not yet, or not for good
	VerdictPartial  Verdict = "partial_refund"
	VerdictNoPeriod Verdict = "no_period"      // it paid for no period
	VerdictEarlier  Verdict = "earlier_period" // a later period has begun, or this one was over when the money went
	VerdictKeep     Verdict = "policy_keep"
	VerdictEnded    Verdict = "ended_already"
)

// Judge works out what follows for the subscription, whose plan has the policy: only all of the money for its current
// period ends it. A period later than that of the row is the current one as well: the row has not heard of it yet.
func (t TakenBack) Judge(row Subscription, policy string) Verdict {
	switch {
	case t.Amount <= 0 || t.Paid <= 0:
		return VerdictNothing
	case t.Amount < t.Paid:
		return VerdictPartial
	case t.PeriodEnd.IsZero():
		return VerdictNoPeriod
	case !t.At.Before(t.PeriodEnd), t.PeriodEnd.Before(row.PeriodEnd):
		return VerdictEarlier
	case policy != RefundEnd:
		return VerdictKeep
	case row.Status == Canceled:
		return VerdictEnded
	}
	return VerdictEnd
}

// Refunded ends a subscription whose period was paid back at an instant, where its provider cannot be asked to end it. News
// of a later period brings it back, whenever they come; see Settle.
func Refunded(row Subscription, took, at time.Time, leeway time.Duration) Outcome {
	end := Provider{ExternalID: row.ExternalID, CustomerID: row.CustomerID, PeriodEnd: row.PeriodEnd}
	outcome := Apply(&row, end, News{Created: took, Received: at, Deleted: true, Fetched: true}, nil, leeway)
	outcome.Next.NeedsReconcile, outcome.Mark = true, true
	return outcome
}

// refundsBeforeAnswers are the ends by refunds about which the provider has said nothing since.
func refundsBeforeAnswers(said []Observation) (refunds, rest []Observation) {
	var answered time.Time
	for _, o := range said {
		if o.News.Fetched && o.News.Received.After(answered) {
			answered = o.News.Received
		}
	}
	for _, o := range said {
		switch {
		case o.RefundedUntil.IsZero():
			rest = append(rest, o)
		case o.News.Received.After(answered):
			refunds = append(refunds, o)
		}
	}
	return refunds, rest
}

// refundMoves is how far a refund has come: it goes on in this order and never back.
var refundMoves = map[string]int{"pending": 1, "requires_action": 1, "succeeded": 2, "failed": 3, "canceled": 3}

// RefundGoesOn reports whether a refund can have come from one status to another, both in the provider's words. Events of a
// refund may arrive in any order.
func RefundGoesOn(from, to string) bool { return refundMoves[to] > refundMoves[from] }

// RefundSucceeded is the provider's word for a refund that took the money back for good, as far as that is known.
const RefundSucceeded = "succeeded"
