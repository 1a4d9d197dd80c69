package subscription

import (
	"strconv"
	"time"
)

// DriftKind says in one word how our row differs from what the provider says.
type DriftKind string

// The kinds, the gravest first: a subscription that differs in several ways has the first that fits.
const (
	DriftMissing       DriftKind = "missing"        // the provider has it and we do not
	DriftEndedThere    DriftKind = "ended_there"    // it goes on here and has ended there
	DriftEndedHere     DriftKind = "ended_here"     // it has ended here and goes on there, for instance after a late payment
	DriftStatus        DriftKind = "status"         // both go on, in different statuses
	DriftOwner         DriftKind = "owner"          // another user's
	DriftPlan          DriftKind = "plan"           // another plan
	DriftPeriod        DriftKind = "period"         // other dates
	DriftSetToEnd      DriftKind = "set_to_end"     // one of the two does not renew
	DriftCustomer      DriftKind = "customer"       // another customer of the provider's
	DriftUserUnmapped  DriftKind = "user_unmapped"  // nobody knows whose it is
	DriftPlanUnmapped  DriftKind = "plan_unmapped"  // no plan sells its price
	DriftPeriodMissing DriftKind = "period_missing" // the object has no period in any shape we know
	DriftUnknownStatus DriftKind = "unknown_status" // a word that this version does not know
	// DriftUnknownThere is a row whose subscription the provider does not know. Only whoever asked for it can tell.
	DriftUnknownThere DriftKind = "unknown_there"
	// DriftEventMissing is an event that the provider has and that never came.
	DriftEventMissing DriftKind = "event_missing"
)

// DriftKinds lists them all.
func DriftKinds() []DriftKind {
	return []DriftKind{
		DriftMissing, DriftEndedThere, DriftEndedHere, DriftStatus, DriftOwner, DriftPlan, DriftPeriod, DriftSetToEnd, DriftCustomer,
		DriftUserUnmapped, DriftPlanUnmapped, DriftPeriodMissing, DriftUnknownStatus, DriftUnknownThere, DriftEventMissing,
	}
}

// RecoveryHorizon is how long after its end a subscription is still compared: a payment may come late.
const RecoveryHorizon = 30 * 24 * time.Hour

// Drift is a difference between our row and what the provider says.
type Drift struct {
	Kind DriftKind
	// Ours and Theirs hold the fields that differ, by the names of the columns; instants in RFC 3339.
	Ours, Theirs map[string]string
	// Quarantine: nothing can be repaired before somebody says what is missing.
	Quarantine bool
}

// Compare works out how the row, nil when there is none, differs from the provider's answer p to a question that was
// put at asked, by the provider's clock. What is to be equal is what Apply would make of the row, so a repair leaves no
// difference. at is our clock. false: there is none.
//
// What the row does not know although its terms are right (it was made by SQL) is no difference, and neither is the leeway:
// both are ours.
func Compare(row *Subscription, p Provider, asked, at time.Time, plan *Plan, leeway time.Duration) (Drift, bool) {
	ended := fromProvider[p.Status] == Canceled
	if row == nil && ended && !p.EndedAt.IsZero() && p.EndedAt.Before(at.Add(-RecoveryHorizon)) {
		return Drift{}, false
	}
	if row != nil && row.LeewayUntil.After(row.ExpiresAt) {
		leeway = row.LeewayUntil.Sub(row.ExpiresAt) // a setting that was changed since moves no end
	}
	outcome := Apply(row, p, News{Created: asked, Received: at, Fetched: true}, plan, leeway)
	switch {
	case outcome.Skip.Quarantine() && row == nil && ended:
		return Drift{}, false // what has ended gives nobody anything
	case outcome.Skip.Quarantine():
		return Drift{Kind: DriftKind(outcome.Skip), Ours: termsNamed(row), Theirs: p.named(), Quarantine: true}, true
	case outcome.Skip != SkipNone:
		return Drift{}, false
	case row == nil:
		return Drift{Kind: DriftMissing, Ours: map[string]string{}, Theirs: termsNamed(&outcome.Next)}, true
	}
	d := differencesOf(*row, outcome.Next, p, at)
	if len(d.ours) == 0 {
		return Drift{}, false
	}
	return Drift{Kind: d.kind(row.Status, outcome.Next.Status), Ours: d.ours, Theirs: d.theirs}, true
}

func differencesOf(row, next Subscription, p Provider, at time.Time) differences {
	d := differences{ours: map[string]string{}, theirs: map[string]string{}}
	d.add("status", string(row.Status), string(next.Status))
	d.known("provider_status", row.ProviderStatus, next.ProviderStatus)
	d.add("user_id", row.UserID, next.UserID)
	d.add("plan", row.PlanKey, next.PlanKey)
	d.add("cancel_at_period_end", strconv.FormatBool(row.CancelAtPeriodEnd), strconv.FormatBool(next.CancelAtPeriodEnd))
	if next.Status != Canceled || row.Status != Canceled || !p.EndedAt.IsZero() { // else the end is that of the question
		d.instant("expires_at", row.ExpiresAt, next.ExpiresAt)
	}
	d.instant("grace_period_ends_at", row.GraceUntil, next.GraceUntil)
	if row.StartedAt.After(at) && !next.StartedAt.After(at) {
		d.instant("started_at", row.StartedAt, next.StartedAt)
	}
	if !row.UnpaidSince.IsZero() {
		d.instant("unpaid_since", row.UnpaidSince, next.UnpaidSince)
	}
	if !row.PeriodStart.IsZero() {
		d.instant("provider_period_start", row.PeriodStart, next.PeriodStart)
	}
	if !row.PeriodEnd.IsZero() {
		d.instant("provider_period_end", row.PeriodEnd, next.PeriodEnd)
	}
	d.known("provider_customer_id", row.CustomerID, next.CustomerID)
	return d
}

// differences are fields with both their values.
type differences struct{ ours, theirs map[string]string }

func (d differences) add(field, ours, theirs string) {
	if ours != theirs {
		d.ours[field], d.theirs[field] = ours, theirs
	}
}

// known is add for what the row may not know.
func (d differences) known(field, ours, theirs string) {
	if ours != "" {
		d.add(field, ours, theirs)
	}
}

func (d differences) instant(field string, ours, theirs time.Time) {
	d.add(field, named(ours), named(theirs))
}

func (d differences) kind(ours, theirs Status) DriftKind {
	over := func(s Status) bool { return s == Canceled || s == Expired }
	switch {
	case ours != theirs && over(theirs):
		return DriftEndedThere
	case over(ours) && !over(theirs):
		return DriftEndedHere
	case ours != theirs:
		return DriftStatus
	}
	for _, k := range []struct {
		field string
		kind  DriftKind
	}{
		{"user_id", DriftOwner},
		{"plan", DriftPlan},
		{"expires_at", DriftPeriod},
		{"grace_period_ends_at", DriftPeriod},
		{"started_at", DriftPeriod},
		{"cancel_at_period_end", DriftSetToEnd},
		{"provider_status", DriftStatus},
		{"provider_customer_id", DriftCustomer},
	} {
		if _, differs := d.theirs[k.field]; differs {
			return k.kind
		}
	}
	return DriftPeriod
}

// named writes an instant with the microseconds that the database keeps; "" where there is none.
func named(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
}

// termsNamed are the terms of a row by the names of the columns.
func termsNamed(s *Subscription) map[string]string {
	if s == nil {
		return map[string]string{}
	}
	return map[string]string{
		"status": string(s.Status), "user_id": s.UserID, "plan": s.PlanKey, "expires_at": named(s.ExpiresAt),
		"cancel_at_period_end": strconv.FormatBool(s.CancelAtPeriodEnd),
	}
}

// named is what the provider says where it cannot be turned into terms.
func (p Provider) named() map[string]string {
	said := map[string]string{
		"provider_status": p.Status, "provider_customer_id": p.CustomerID, "provider_period_end": named(p.PeriodEnd), "user_id": p.owner(nil),
	}
	if len(p.PriceIDs) > 0 {
		said["price"] = p.PriceIDs[0]
	}
	for field, value := range said {
		if value == "" {
			delete(said, field)
		}
	}
	return said
}
