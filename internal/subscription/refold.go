package subscription

import (
	"cmp"
	"slices"
	"time"
)

// Observation is one thing that the provider said about a subscription: an event, or the answer to a question.
type Observation struct {
	ID       string // breaks the last ties, so that every order ends alike
	Provider Provider
	// News.Received is when the event was stored, or when the question was asked, by our clock.
	News    News
	Plan    *Plan
	Applied bool // it has had its effect on the row
	// RefundedUntil: it is none of the provider's, but an end that followed from a refund. It is the end of the period that was
	// paid back; zero for everything else.
	RefundedUntil time.Time
}

// Question is a subscription whose events do not say by themselves what holds, with all there is to answer it.
type Question struct {
	Asks   []Observation // the events that ask, oldest first
	Answer *Observation  // what the provider said to it; nil when it said nothing
	// Said is all that the provider ever said about the subscription, with the events that ask and the answer. nil when not
	// all of it is there any more.
	Said []Observation
}

// Settle works out what holds for row, nil when there is none. With an answer, that is what the provider said; without one, what can be
// told from the events. at is the database's clock.
// Skip speaks of the answer, or says that nothing changed.
func Settle(row *Subscription, q Question, at time.Time, leeway time.Duration) Outcome {
	var answered Outcome
	if q.Answer != nil {
		answered = q.Answer.apply(row, at, leeway)
		if row == nil || answered.Skip != SkipNone {
			return answered
		}
	}
	mark := false
	var alone Outcome
	state := row
	for _, o := range q.Asks {
		outcome := o.apply(state, at, leeway)
		mark = mark || outcome.Mark
		if outcome.Skip == SkipNone {
			alone.Next, alone.Changes = outcome.Next, append(alone.Changes, outcome.Changes...)
			state = &outcome.Next
		}
	}
	refolded, ok := Outcome{}, false
	if row != nil && q.Said != nil {
		refolded, ok = refold(*row, q.Said, at, leeway)
	}
	switch {
	case ok && q.Answer != nil:
		return refolded
	case ok:
		refolded.Mark = mark
		return refolded
	case q.Answer != nil:
		return answered
	}
	if state == row {
		alone.Skip = SkipStale
	}
	alone.Mark = true // what an older event would have changed in its time is not known any more
	return alone
}

func (o Observation) apply(prev *Subscription, at time.Time, leeway time.Duration) Outcome {
	o.News.Received = at
	return Apply(prev, o.Provider, o.News, o.Plan, leeway)
}

// refold works out the terms anew from all that the provider has said, in the order in which it was said there and not
// in that in which it came here: a past-due episode begins with its first unpaid renewal, whichever is heard of first.
// The provider's part of the row is worked out from nothing. What an operator gave or holds, and the marks of jobs, stay.
// false means that the row cannot come from what was said, and is to be left as it is.
func refold(row Subscription, said []Observation, at time.Time, leeway time.Duration) (Outcome, bool) {
	var state *Subscription
	refunds, said := refundsBeforeAnswers(said)
	for _, o := range inOrder(said) {
		// The customer may have been linked to another user since; the row stays with its own.
		o.Provider.CustomerUserID, o.Provider.LinkedUserID = "", row.UserID
		outcome := o.apply(state, at, leeway)
		switch {
		case outcome.Skip == SkipNone:
			state = &outcome.Next
		case outcome.Skip == SkipPlanUnmapped && o.Applied:
			return Outcome{}, false // its price led to a plan when it was applied, and does no more
		case outcome.Mark && state != nil:
			state.NeedsReconcile = true
		}
	}
	if state == nil {
		return Outcome{}, false
	}
	for _, o := range refunds { // by what all news together say, whichever came first
		if state.Status != Canceled && !o.RefundedUntil.Before(state.PeriodEnd) {
			ended := Refunded(*state, o.News.Created, at, leeway).Next
			state = &ended
		}
	}
	next := *state
	next.ID, next.Version, next.CreatedAt, next.UpdatedAt = row.ID, row.Version, row.CreatedAt, row.UpdatedAt
	next.CompUntil, next.HeldAt, next.DisputedAt = row.CompUntil, row.HeldAt, row.DisputedAt
	next = next.awaited(&row)
	if row.StartedAt.Before(next.StartedAt) {
		next.StartedAt = row.StartedAt
	}
	if row.Status == Expired && next.Status.Live() && !next.AccessUntil().After(row.ExpiredAt) {
		next.Status, next.ExpiredAt = Expired, row.ExpiredAt
	}
	if next == row {
		return Outcome{Skip: SkipStale}, true
	}
	return Outcome{Next: next, Changes: changes(&row, next)}, true
}

// placed is an observation with the second to which it belongs.
type placed struct {
	Observation
	second time.Time
}

// inOrder sorts by the provider's seconds. An answer holds all that was known here when the question was asked, whatever
// second an event gives itself: one that is dated in the future does not outlive the next answer. Within a second
// the lower rank comes first, and an answer last.
func inOrder(said []Observation) []Observation {
	list := make([]placed, len(said))
	for i, o := range said {
		list[i] = placed{o, o.News.Created}
		for _, answer := range said {
			if !o.News.Fetched && answer.News.Fetched && !answer.News.Received.Before(o.News.Received) && answer.News.Created.Before(list[i].second) {
				list[i].second = answer.News.Created
			}
		}
	}
	slices.SortFunc(list, func(a, b placed) int {
		if order := cmp.Or(a.second.Compare(b.second), byFlag(a.News.Fetched, b.News.Fetched)); order != 0 {
			return order
		}
		if a.News.Fetched {
			return cmp.Or(a.News.Received.Compare(b.News.Received), cmp.Compare(a.ID, b.ID))
		}
		return cmp.Or(a.News.Created.Compare(b.News.Created), cmp.Compare(a.rank(), b.rank()), a.Provider.PeriodEnd.Compare(b.Provider.PeriodEnd),
			byFlag(setToEnd(a.Provider), setToEnd(b.Provider)), cmp.Compare(a.ID, b.ID))
	})
	sorted := make([]Observation, len(list))
	for i, p := range list {
		sorted[i] = p.Observation
	}
	return sorted
}

func (o Observation) rank() int {
	if o.News.Deleted {
		return rank[providerCanceled]
	}
	return rank[o.Provider.Status]
}

// byFlag puts false before true.
func byFlag(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
