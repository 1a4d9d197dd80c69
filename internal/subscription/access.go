package subscription

import (
	"slices"
	"time"
)

// Gives is the access rule: the subscription gives access at the instant at when its status is live, it is not held,
// and at lies in [StartedAt, AccessUntil). The SQL function gives_access says the same.
func (s Subscription) Gives(at time.Time) bool {
	return s.Status.Live() && !s.Held() && !at.Before(s.StartedAt) && at.Before(s.AccessUntil())
}

// Reason says why access is given or not.
type Reason string

// The reasons. The first five allow.
const (
	ReasonActive           Reason = "active"
	ReasonTrialing         Reason = "trialing"
	ReasonRenewing         Reason = "renewing"
	ReasonGracePeriod      Reason = "grace_period"
	ReasonExtended         Reason = "extended"
	ReasonFeatureNotInPlan Reason = "feature_not_in_plan"
	ReasonPlanMismatch     Reason = "plan_mismatch"
	ReasonNotStarted       Reason = "not_started"
	ReasonCanceled         Reason = "canceled"
	ReasonExpired          Reason = "expired"
	ReasonPaused           Reason = "paused"
	ReasonNoSubscription   Reason = "no_subscription"
)

// Reasons lists all reasons, so that a metric can have them all from its start.
var Reasons = []Reason{
	ReasonActive, ReasonTrialing, ReasonRenewing, ReasonGracePeriod, ReasonExtended, ReasonFeatureNotInPlan, ReasonPlanMismatch,
	ReasonNotStarted, ReasonCanceled, ReasonExpired, ReasonPaused, ReasonNoSubscription,
}

// Holding is a subscription with the features of its plan.
type Holding struct {
	Subscription
	Features []string
}

// Ask is what is asked for. An empty field asks for nothing in particular.
type Ask struct {
	Feature string
	Plan    string
}

func (a Ask) feature(h *Holding) bool {
	return a.Feature == "" || slices.Contains(h.Features, a.Feature)
}
func (a Ask) plan(h *Holding) bool { return a.Plan == "" || a.Plan == h.PlanKey }
func (a Ask) fits(h *Holding) bool { return a.feature(h) && a.plan(h) }

// Decision is the answer to an access check.
type Decision struct {
	Allowed bool
	Reason  Reason
	// Named is the subscription that the answer speaks of: the one that gives the access with the latest AccessUntil; on
	// a no the one with the latest AccessUntil, one whose plan has the feature first. Nil when the user has none.
	Named *Holding
	// NextChangeAt is when Allowed next flips by time alone; zero when it does not.
	NextChangeAt time.Time
}

// Decide answers whether the holdings of one user give what is asked at the instant at.
func Decide(holdings []Holding, ask Ask, at time.Time) Decision {
	var giver, other *Holding
	givesFeature, givesPlan, givesAny := false, false, false
	for i := range holdings {
		h := &holdings[i]
		if h.Gives(at) {
			givesAny = true
			givesFeature = givesFeature || ask.feature(h)
			givesPlan = givesPlan || ask.plan(h)
			if ask.fits(h) && (giver == nil || later(h, giver)) {
				giver = h
			}
		}
		if other == nil || namedBefore(h, other, ask) {
			other = h
		}
	}
	d := Decision{NextChangeAt: nextChange(holdings, ask, at)}
	switch {
	case giver != nil:
		d.Allowed, d.Reason, d.Named = true, allowingReason(giver.Subscription, at), giver
	case other == nil:
		d.Reason = ReasonNoSubscription
	default:
		d.Named = other
		switch {
		case givesAny && !givesFeature:
			d.Reason = ReasonFeatureNotInPlan
		case givesAny && !givesPlan:
			d.Reason = ReasonPlanMismatch
		case givesAny: // one has the feature, another the plan, none has both
			d.Reason = ReasonFeatureNotInPlan
		default:
			d.Reason = denyingReason(other.Subscription, at)
		}
	}
	return d
}

func allowingReason(s Subscription, at time.Time) Reason {
	switch {
	case at.Before(s.ExpiresAt) && s.Status == Trialing:
		return ReasonTrialing
	case at.Before(s.ExpiresAt):
		return ReasonActive
	case at.Before(s.LeewayUntil):
		return ReasonRenewing
	case at.Before(s.GraceUntil):
		return ReasonGracePeriod
	default:
		return ReasonExtended
	}
}

func denyingReason(s Subscription, at time.Time) Reason {
	switch {
	case at.Before(s.StartedAt):
		return ReasonNotStarted
	case s.Status == Canceled:
		return ReasonCanceled
	case s.Status == Expired || !at.Before(s.AccessUntil()):
		return ReasonExpired
	case s.Held() || s.Status == Paused:
		return ReasonPaused
	default:
		// Live, started, not ended and not held gives access, but not what was asked; the caller has handled that.
		return ReasonFeatureNotInPlan
	}
}

// later orders by the latest AccessUntil, then by id.
func later(a, b *Holding) bool {
	if !a.AccessUntil().Equal(b.AccessUntil()) {
		return a.AccessUntil().After(b.AccessUntil())
	}
	return a.ID < b.ID
}

func namedBefore(a, b *Holding, ask Ask) bool {
	if ask.feature(a) != ask.feature(b) {
		return ask.feature(a)
	}
	return later(a, b)
}

// nextChange walks the intervals of the holdings that fit: on a yes to the end of the chain of intervals that touch or
// overlap, on a no to the first that begins.
func nextChange(holdings []Holding, ask Ask, at time.Time) time.Time {
	type interval struct{ from, to time.Time }
	var few [4]interval // most users have no more, and this needs no allocation
	ahead := few[:0]
	for i := range holdings {
		h := &holdings[i]
		if h.Status.Live() && !h.Held() && ask.fits(h) && h.StartedAt.Before(h.AccessUntil()) && at.Before(h.AccessUntil()) {
			ahead = append(ahead, interval{h.StartedAt, h.AccessUntil()})
		}
	}
	if len(ahead) == 0 {
		return time.Time{}
	}
	slices.SortFunc(ahead, func(a, b interval) int { return a.from.Compare(b.from) })
	if at.Before(ahead[0].from) {
		return ahead[0].from
	}
	end := ahead[0].to
	for _, i := range ahead[1:] {
		if !i.from.After(end) && i.to.After(end) {
			end = i.to
		}
	}
	if IsForever(end) {
		return time.Time{}
	}
	return end
}
