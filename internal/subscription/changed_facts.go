package subscription

import (
	"fmt"
	"time"
)

// TopicAccessChanged tells that access goes on, but not as it was told before. Where it starts or ends, the topics of that tell of it.
const TopicAccessChanged Topic = "access.changed"

// The kinds of access.changed.
const (
	KindRenewed     = "renewed"      // the term was renewed: it ends later
	KindExtended    = "extended"     // it ends later because time was given: by an operator, an order, or as grace
	KindShortened   = "shortened"    // it ends earlier
	KindPaused      = "paused"       // it gives no access until it is resumed
	KindResumed     = "resumed"      // it gives access again
	KindPlanChanged = "plan_changed" // it gives what another plan does
	KindEnding      = "ending"       // it is set to end
	KindNotEnding   = "not_ending"   // that was taken back
)

// changedFacts tell what a change means for access that goes on. The end after it is their boundary. They are named by the version that was
// changed, because one change is written once.
func changedFacts(prev, next Subscription, at time.Time) []Fact {
	if !prev.given() || !next.given() {
		return nil
	}
	var facts []Fact
	add := func(kind string) {
		facts = append(facts, Fact{
			Topic: TopicAccessChanged, Kind: kind, Boundary: next.AccessUntil(), At: at,
			Key: fmt.Sprintf("%s:%s:%d", kind, next.ID, prev.Version),
		})
	}
	told := false // with its end
	switch was, is := prev.stopped(), next.stopped(); {
	case is && !was:
		add(KindPaused)
		told = true
	case was && !is:
		add(KindResumed)
		told = true
	}
	if prev.PlanKey != next.PlanKey {
		add(KindPlanChanged)
	}
	switch {
	case next.CancelAtPeriodEnd && !prev.CancelAtPeriodEnd:
		add(KindEnding)
		told = true
	case prev.CancelAtPeriodEnd && !next.CancelAtPeriodEnd:
		add(KindNotEnding)
		told = true
	}
	switch before, after := prev.AccessUntil(), next.AccessUntil(); {
	case told:
	case after.After(before) && next.ExpiresAt.After(prev.ExpiresAt) && !next.Ours():
		add(KindRenewed)
	case after.After(before):
		add(KindExtended)
	case after.Before(before) && at.Before(after): // an end that has come is told as one
		add(KindShortened)
	}
	return facts
}

// given reports whether the subscription gives access while its dates say so and nobody has paused it. Ours is paused by its
// status only before it begins.
func (s Subscription) given() bool { return s.Status.Live() || (s.Status == Paused && !s.Ours()) }

// stopped reports whether it is paused, by an operator or the provider.
func (s Subscription) stopped() bool { return s.Held() || s.Status == Paused }
