package subscription

import (
	"cmp"
	"time"
)

// Provider is what the payment provider's object says about a subscription. Zero instants are unknown.
type Provider struct {
	ExternalID, CustomerID string
	// Whose it is, the surest first; "" is unknown. The payload tells the first and, where the customer is expanded, the
	// third. The others are what is known about the subscription and its customer from elsewhere.
	UserID                 string // metadata.user_id of the subscription
	CheckoutUserID         string // named by the checkout session that made it
	CustomerUserID         string // metadata.user_id of its customer
	LinkedUserID           string // an earlier link of its customer
	Email, Name            string // of an expanded customer
	Status                 string // the provider's own word
	PriceIDs               []string
	PeriodStart, PeriodEnd time.Time
	StartDate              time.Time
	EndedAt                time.Time
	CancelAt               time.Time
	CancelAtPeriodEnd      bool
	SendInvoice            bool // the customer pays an invoice by its due date, nothing is charged by itself
	DaysUntilDue           int
	Invoice                Invoice
}

// Invoice is the latest invoice of a subscription, where the object carries it in full.
type Invoice struct {
	ID            string
	Status        string
	BillingReason string
	DueDate       time.Time
}

// The provider's own words for the status of a subscription.
// Source: https://docs.stripe.com/api/subscriptions/object, status, as of version 2023-10-16.
const (
	providerIncomplete        = "incomplete"
	providerIncompleteExpired = "incomplete_expired"
	providerTrialing          = "trialing"
	providerActive            = "active"
	providerPastDue           = "past_due"
	providerUnpaid            = "unpaid"
	providerPaused            = "paused"
	providerCanceled          = "canceled"
)

// fromProvider maps the provider's status to ours. incomplete has none: nothing was paid yet.
var fromProvider = map[string]Status{
	providerTrialing: Trialing, providerActive: Active, providerPastDue: PastDue, providerUnpaid: PastDue,
	providerPaused: Paused, providerCanceled: Canceled, providerIncompleteExpired: Canceled,
}

// rank orders facts of one second: the higher wins.
var rank = map[string]int{
	providerIncomplete: 0, providerTrialing: 1, providerActive: 2, providerPastDue: 3, providerUnpaid: 4,
	providerPaused: 5, providerCanceled: 6, providerIncompleteExpired: 6,
}

// News says how new a provider's object is and where it came from.
type News struct {
	Created  time.Time // the event's created, to the second; of a fetched object, the second in which the call began
	Received time.Time // when it is applied, by the database's clock
	Deleted  bool      // the event itself is the deletion
	Fetched  bool      // no event: the provider was asked, and this is its answer
}

// Plan is what the terms take from the plan that the subscription's price sells.
type Plan struct {
	Key   string
	Grace time.Duration
}

// Skip says why a provider's object changes nothing now.
type Skip string

// The reasons to change nothing. Stale and NoRow are final; the others are quarantined and tried again when what was missing may
// be there.
const (
	SkipNone          Skip = ""
	SkipStale         Skip = "stale"          // something newer is known already
	SkipNoRow         Skip = "no_row"         // nothing was paid yet, so there is nothing to keep
	SkipUserUnmapped  Skip = "user_unmapped"  // nobody knows whose subscription it is
	SkipPlanUnmapped  Skip = "plan_unmapped"  // no plan sells its price
	SkipPeriodMissing Skip = "period_missing" // the object has no period in any shape we know
	SkipUnknownStatus Skip = "unknown_status" // a word that this version does not know
)

// Quarantine reports whether the object is to be kept and tried again.
func (s Skip) Quarantine() bool {
	return s == SkipUserUnmapped || s == SkipPlanUnmapped || s == SkipPeriodMissing || s == SkipUnknownStatus
}

// Outcome is what a provider's object means for our row.
type Outcome struct {
	Next    Subscription
	Changes []Change
	Skip    Skip
	// Mark asks to set NeedsReconcile on the row although nothing else changes.
	Mark bool
	// Fetch asks for the provider's own answer, which is then to be applied in place of this. All the rest of the outcome
	// is what holds when there is no answer.
	Fetch bool
}

// renewalWindow is how long after the start of a period an unpaid renewal makes itself known; past it the unpaid
// invoice is another one (an upgrade, a proration).
const renewalWindow = 72 * time.Hour

// Apply works out the terms after the news p. prev is our row, nil when there is none; plan is the plan of its first
// price that maps, nil when none does; leeway is how long the news of a renewal may take.
// Order and terms: the rules are those of docs/stripe.md.
func Apply(prev *Subscription, p Provider, news News, plan *Plan, leeway time.Duration) Outcome {
	if news.Deleted {
		p.Status = providerCanceled
	}
	status, known := fromProvider[p.Status]
	if !known && p.Status != providerIncomplete {
		return Outcome{Skip: SkipUnknownStatus, Mark: prev != nil, Fetch: !news.Fetched}
	}
	tie := false
	if prev != nil && !news.Fetched {
		var older bool
		older, tie = olderOrTie(*prev, p, news)
		if older {
			return Outcome{Skip: SkipStale, Mark: tie, Fetch: true}
		}
		if prev.Status == Canceled {
			// Canceled absorbs: only a fetched truth leaves it.
			return Outcome{Skip: SkipStale, Mark: status != Canceled, Fetch: true}
		}
	}
	if p.Status == providerIncomplete || (p.Status == providerIncompleteExpired && prev == nil) {
		return Outcome{Skip: SkipNoRow, Fetch: tie}
	}
	next, skip := identity(prev, p, news, plan, status)
	if skip == SkipNone {
		next, skip = terms(next, prev, p, news, plan, leeway)
	}
	if skip != SkipNone {
		// What a payload lacks, the provider's answer may have: it comes in another shape and with the customer.
		return Outcome{Skip: skip, Fetch: !news.Fetched && (tie || skip != SkipPlanUnmapped)}
	}
	next.TruthAt, next.NeedsReconcile = news.Created, tie || (prev != nil && prev.NeedsReconcile)
	if news.Fetched {
		next.NeedsReconcile = false
		if prev != nil && prev.TruthAt.After(news.Created) && !ahead(prev.TruthAt, news.Received) {
			// The provider's clock was a little behind when it answered; what was known before is in the answer.
			next.TruthAt = prev.TruthAt
		}
	}
	next = next.awaited(prev)
	return Outcome{Next: next, Changes: changes(prev, next), Fetch: tie}
}

// Overtaken reports whether the row holds news that came after the second at which its provider was asked. It does not
// count news from the future, which only an answer can correct.
func (s Subscription) Overtaken(asked, at time.Time) bool {
	return s.TruthAt.After(asked) && (!ahead(s.TruthAt, at) || ahead(asked, at))
}

// clockTolerance is how far the provider's clock may be ahead of ours. It is that of the webhook signatures.
const clockTolerance = 300 * time.Second

// ahead reports whether an instant of the provider's lies in the future of our clock.
func ahead(t, at time.Time) bool { return t.After(at.Add(clockTolerance)) }

// olderOrTie compares the news with what the row knows. older: without the provider's answer the news changes nothing.
// tie: the order is not certain, because both are of one second, so that rank decided, or because the row's truth is dated
// in the future.
func olderOrTie(prev Subscription, p Provider, news News) (older, tie bool) {
	switch {
	case prev.TruthAt.IsZero() || news.Created.After(prev.TruthAt):
		return false, false
	case news.Created.Before(prev.TruthAt):
		// A truth that lies ahead of our clock shuts out all news until then. Only the provider can say whether it holds.
		return true, ahead(prev.TruthAt, news.Received)
	}
	if have, got := rank[prev.ProviderStatus], rank[p.Status]; got != have {
		return got < have, true
	}
	if !p.PeriodEnd.Equal(prev.PeriodEnd) {
		return p.PeriodEnd.Before(prev.PeriodEnd), true
	}
	// The same status and period in the same second: the one that is set to end wins, so that every order ends alike.
	return prev.CancelAtPeriodEnd && !setToEnd(p), true
}

// identity fills in whose subscription of what it is.
func identity(prev *Subscription, p Provider, news News, plan *Plan, status Status) (Subscription, Skip) {
	next := Subscription{Provider: Stripe, ExternalID: p.ExternalID}
	if prev != nil {
		next = *prev
	}
	if next.UserID = p.owner(prev); next.UserID == "" {
		return next, SkipUserUnmapped
	}
	switch {
	case plan != nil:
		next.PlanKey = plan.Key
	case prev == nil || status != Canceled:
		return next, SkipPlanUnmapped
	}
	if p.CustomerID != "" {
		next.CustomerID = p.CustomerID
	}
	if !p.StartDate.IsZero() {
		next.StartedAt = p.StartDate
	}
	if next.StartedAt.IsZero() || next.StartedAt.After(news.Received) {
		next.StartedAt = news.Received
	}
	next.Status, next.ProviderStatus = status, p.Status
	return next, SkipNone
}

// owner is whose subscription it is. The customer tells only about one that is new here: a subscription that exists stays
// with its user unless it, or the checkout that made it, names another one.
func (p Provider) owner(prev *Subscription) string {
	kept := ""
	if prev != nil {
		kept = prev.UserID
	}
	return cmp.Or(p.UserID, p.CheckoutUserID, kept, p.CustomerUserID, p.LinkedUserID)
}

// terms sets the ends by the table "Terms from the provider's object".
func terms(next Subscription, prev *Subscription, p Provider, news News, plan *Plan, leeway time.Duration) (Subscription, Skip) {
	end := p.PeriodEnd
	next.LeewayUntil = time.Time{}
	switch next.Status {
	case Trialing, Active:
		if end.IsZero() {
			return next, SkipPeriodMissing
		}
		next.ExpiresAt, next.GraceUntil, next.UnpaidSince = end, time.Time{}, time.Time{}
		next.CancelAtPeriodEnd = setToEnd(p)
		switch {
		case !next.CancelAtPeriodEnd:
			next.LeewayUntil = bounded(end.Add(leeway))
		case !p.CancelAt.IsZero() && p.CancelAt.Before(end):
			next.ExpiresAt = p.CancelAt
		}
	case PastDue:
		if p.PeriodStart.IsZero() || end.IsZero() {
			return next, SkipPeriodMissing
		}
		next.CancelAtPeriodEnd = setToEnd(p)
		since := bounded(unpaidSince(p))
		if prev == nil || (prev.UnpaidSince.IsZero() && renewalIsUnpaid(p, news, since)) {
			next.ExpiresAt, next.UnpaidSince = since, since
			next.GraceUntil = bounded(since.Add(plan.Grace))
		}
	case Paused:
		next.CancelAtPeriodEnd = setToEnd(p)
		if prev == nil {
			if end.IsZero() {
				return next, SkipPeriodMissing
			}
			next.ExpiresAt = end
		}
	case Canceled:
		ended := p.EndedAt
		if ended.IsZero() {
			ended = news.Created
		}
		if !end.IsZero() && end.Before(ended) {
			ended = end
		}
		next.ExpiresAt, next.GraceUntil, next.UnpaidSince = ended, time.Time{}, time.Time{}
		next.CancelAtPeriodEnd = setToEnd(p)
	case Expired: // no provider's word maps to it
	}
	if !p.PeriodStart.IsZero() {
		next.PeriodStart = p.PeriodStart
	}
	if !end.IsZero() {
		next.PeriodEnd = end
	}
	if prev != nil && prev.Status == Expired && next.Status.Live() && !next.AccessUntil().After(prev.ExpiredAt) {
		next.Status = Expired // the news moves no end past the mark
	} else {
		next.ExpiredAt = time.Time{}
	}
	return next, SkipNone
}

// bounded keeps an end within the years that an instant may have: one after them would read as a lifetime.
func bounded(end time.Time) time.Time {
	if end.After(maxInstant) {
		return maxInstant
	}
	return end
}

// setToEnd: the flag, or a cancel_at that is not after the period's end. A later cancel_at lets it renew first.
func setToEnd(p Provider) bool {
	return p.CancelAtPeriodEnd || (!p.CancelAt.IsZero() && !p.CancelAt.After(p.PeriodEnd))
}

// unpaidSince is where the unpaid term begins: with the period, or where an invoice is sent, with its due date.
func unpaidSince(p Provider) time.Time {
	switch {
	case !p.SendInvoice:
		return p.PeriodStart
	case !p.Invoice.DueDate.IsZero():
		return p.Invoice.DueDate
	default:
		return p.PeriodStart.AddDate(0, 0, p.DaysUntilDue)
	}
}

func renewalIsUnpaid(p Provider, news News, since time.Time) bool {
	switch p.Invoice.BillingReason {
	case "":
		return news.Created.Before(since.Add(renewalWindow))
	case "subscription_cycle", "subscription_create":
		return true
	default:
		return false
	}
}

// changes names what happened between two states of a provider's subscription, for the history.
func changes(prev *Subscription, next Subscription) []Change {
	end := next.AccessUntil()
	if prev == nil {
		first := []Change{{EventCreated, end}}
		if next.Status == PastDue {
			first = append(first, Change{EventPastDue, end})
		}
		if next.Status == Canceled {
			first = append(first, Change{EventCanceled, end})
		}
		return first
	}
	var list []Change
	add := func(t EventType) { list = append(list, Change{t, end}) }
	if next.PlanKey != prev.PlanKey {
		add(EventPlanChanged)
	}
	switch {
	case next.Status == prev.Status:
	case next.Status == Canceled:
		add(EventCanceled)
	case next.Status == PastDue:
		add(EventPastDue)
	case next.Status == Paused:
		add(EventPaused)
	case prev.Status == Paused && next.Status.Live():
		add(EventResumed)
	}
	recovered := (next.Status == Active || next.Status == Trialing) && (prev.Status == PastDue || !prev.UnpaidSince.IsZero())
	switch {
	case recovered:
		add(EventRecovered)
	case (next.Status == Active || next.Status == Trialing) && next.ExpiresAt.After(prev.ExpiresAt):
		add(EventRenewed)
	}
	if next.Status != Canceled && next.CancelAtPeriodEnd != prev.CancelAtPeriodEnd {
		if next.CancelAtPeriodEnd {
			add(EventCanceled)
		} else {
			add(EventUncanceled)
		}
	}
	return list
}
