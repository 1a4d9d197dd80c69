package subscription

import (
	"fmt"
	"time"
)

// Topic names what a fact tells of.
type Topic string

// The topics of facts about subscriptions.
const (
	// TopicAccessStarted: it begins to give access, or gives access again after it had ended. Not told at a plain renewal.
	TopicAccessStarted Topic = "access.started"
	// TopicAccessEnded: it gives no access any more. Where the end is a date, the job subscription-expiry tells it.
	TopicAccessEnded Topic = "access.ended"
	// TopicAccessEndingSoon: it ends in some days and will not renew by itself. The job subscription-reminders tells it.
	TopicAccessEndingSoon Topic = "access.ending_soon"
	// TopicPaymentFailed: an episode of past due begins.
	TopicPaymentFailed Topic = "payment.failed"
	// TopicPaymentRecovered: the episode ended by a payment.
	TopicPaymentRecovered Topic = "payment.recovered"
)

// The kinds of facts whose topic has several.
const (
	KindFirst    = "first"    // access.started: for the first time
	KindReturned = "returned" // access.started: after it had ended
	KindExpired  = "expired"  // access.ended: nothing renewed it
	KindEnded    = "ended"    // access.ended: it was set to end
	KindCanceled = "canceled" // access.ended: it was ended before its date
	KindInTime   = "in_time"  // payment.recovered: while access went on
	KindLate     = "late"     // payment.recovered: after access had ended; access.started tells the user
)

// Fact is something that happened to a subscription and that others may want to know.
type Fact struct {
	Topic    Topic
	Kind     string
	Boundary time.Time // the end that it speaks of
	At       time.Time // when it is true; ahead of the change for a subscription that begins later
	// Key names the fact and its period. It is short, because a unique index of long keys costs a tenth of a scan's speed.
	Key string
}

// Facts are what others are to be told about a change, in the order in which it is to be told. prev is nil for a new
// subscription; at is the instant of the change. What only the date decides is not told here but by the job
// subscription-expiry, under the same keys, so that one end is told once.
//
// A pause is no end, whether an operator or the provider made it: the term goes on, and a resumption is no start; they are changes. What is
// paused and then canceled has ended.
func Facts(prev *Subscription, next Subscription, at time.Time) []Fact {
	var facts []Fact
	add := func(topic Topic, kind, name string, boundary, period, from time.Time) {
		facts = append(facts, Fact{
			Topic: topic, Kind: kind, Boundary: boundary, At: from, Key: fmt.Sprintf("%s:%s:%d", name, next.ID, period.UnixMicro()),
		})
	}
	if prev != nil {
		if end, kind, ended := endOf(*prev, next, at); ended {
			add(TopicAccessEnded, kind, "end", end, end, at)
		}
		if prev.unpaid() && (next.Status == Active || next.Status == Trialing) {
			kind := KindInTime
			if prev.Status == Expired || prev.Status == Canceled {
				kind = KindLate
			}
			add(TopicPaymentRecovered, kind, "paid", next.AccessUntil(), prev.episode(), at)
		}
	}
	if from, kind, started := startOf(prev, next, at); started {
		add(TopicAccessStarted, kind, "start", next.AccessUntil(), from, laterOf(from, at))
	}
	if next.Status == PastDue && (prev == nil || !prev.unpaid() || (prev.UnpaidSince.IsZero() && !next.UnpaidSince.IsZero())) {
		add(TopicPaymentFailed, "", "fail", next.AccessUntil(), next.episode(), at)
	}
	if prev != nil {
		facts = append(facts, changedFacts(*prev, next, at)...)
	}
	return facts
}

// endOf says when and how access ended by this change. prev was not marked as ended; a live one that goes on, or that
// moves its end to the past, is the scan's to tell.
func endOf(prev, next Subscription, at time.Time) (end time.Time, kind string, ended bool) {
	if !prev.given() || next.Status != Canceled || at.Before(prev.StartedAt) {
		return time.Time{}, "", false
	}
	end = earlierOf(next.AccessUntil(), at)
	if prev.Status.Live() && !end.Before(prev.AccessUntil()) { // its date came first, and the scan did not mark it yet
		end = prev.AccessUntil()
		if prev.CancelAtPeriodEnd {
			return end, KindEnded, true
		}
		return end, KindExpired, true
	}
	return end, KindCanceled, true
}

// startOf says whether access starts by this change or is known to start later, and names the start: by StartedAt for the
// first time, by the instant of the change for a return.
func startOf(prev *Subscription, next Subscription, at time.Time) (from time.Time, kind string, started bool) {
	if !next.Status.Live() || !at.Before(next.AccessUntil()) || !next.StartedAt.Before(next.AccessUntil()) {
		return time.Time{}, "", false
	}
	switch {
	case prev == nil, prev.Status == Paused:
		return next.StartedAt, KindFirst, true // where it was told before a pause, the key holds it back
	case prev.Status == Expired || prev.Status == Canceled:
		return at, KindReturned, true
	case at.Before(next.StartedAt) && !next.StartedAt.Equal(prev.StartedAt):
		return next.StartedAt, KindFirst, true
	}
	return time.Time{}, "", false
}

// unpaid reports whether an episode of past due is running, also past the end of access.
func (s Subscription) unpaid() bool { return s.Status == PastDue || !s.UnpaidSince.IsZero() }

// episode names the running episode: by where the unpaid term began, or where no term is unpaid (another invoice is), by
// the second of the provider's news.
func (s Subscription) episode() time.Time {
	switch {
	case !s.UnpaidSince.IsZero():
		return s.UnpaidSince
	case !s.TruthAt.IsZero():
		return s.TruthAt
	default:
		return s.StartedAt
	}
}

func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
