// Package subscription holds the rules of paid access as pure functions of terms and an instant: who has access,
// what an action changes, and what a payment provider's object means for the terms. It reads no clock, no database
// and no network.
package subscription

import (
	"time"
)

// Status is what a subscription is, apart from its dates.
type Status string

// The statuses. Trialing, Active and PastDue are live: they give access while their dates say so.
const (
	Trialing Status = "trialing"
	Active   Status = "active"
	PastDue  Status = "past_due"
	Paused   Status = "paused"
	Canceled Status = "canceled"
	Expired  Status = "expired"
)

// Live reports whether a subscription of this status gives access while its dates say so.
func (s Status) Live() bool { return s == Trialing || s == Active || s == PastDue }

// Forever is the end of a lifetime subscription. No instant of a real term reaches it: instants after the year 9999
// are refused. The database says infinity, JSON says null.
var Forever = time.Date(10000, time.January, 1, 0, 0, 0, 0, time.UTC)

// IsForever reports whether t is the end of a lifetime.
func IsForever(t time.Time) bool { return !t.Before(Forever) }

// Stripe is the provider name of subscriptions that Stripe owns. The empty provider means that they are ours.
const Stripe = "stripe"

// Subscription is the terms under which one user has one plan. A zero instant means that there is none.
// Instants have microseconds, as the database keeps them.
type Subscription struct {
	ID      string
	UserID  string
	PlanKey string
	// NextPlanKey is the plan that it has from its next renewal on; "" when none was chosen.
	NextPlanKey string
	Status      Status

	StartedAt   time.Time
	ExpiresAt   time.Time // end of the paid or given term; Forever for a lifetime
	LeewayUntil time.Time // it renews by itself at the provider: the news of that may come until here
	GraceUntil  time.Time // end of the grace after an unpaid renewal
	CompUntil   time.Time // given by an operator on top of the provider's term
	HeldAt      time.Time // held by an operator since
	ExpiredAt   time.Time // when it was marked expired
	DisputedAt  time.Time // a payment of it is disputed since then, or was, and that was not won

	CancelAtPeriodEnd bool // it is set to end and does not renew

	Provider       string // "" for ours, or Stripe
	ExternalID     string
	ProviderStatus string // the provider's own word
	CustomerID     string // the provider's customer
	PeriodStart    time.Time
	PeriodEnd      time.Time
	TruthAt        time.Time // how new the provider's facts here are, to the second
	UnpaidSince    time.Time // where the unpaid term of the running past-due episode began
	NeedsReconcile bool
	Version        int64
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// AccessUntil is the latest of the ends. The database keeps the same value in the generated column access_until.
func (s Subscription) AccessUntil() time.Time {
	return laterOf(laterOf(s.ExpiresAt, s.LeewayUntil), laterOf(s.GraceUntil, s.CompUntil))
}

// Ours reports whether the terms are set here and not by a payment provider.
func (s Subscription) Ours() bool { return s.Provider == "" }

// Held reports whether an operator holds the subscription.
func (s Subscription) Held() bool { return !s.HeldAt.IsZero() }

// RenewsItself reports whether a provider renews the subscription without anybody's doing.
func (s Subscription) RenewsItself() bool { return !s.LeewayUntil.IsZero() }

// Change is one entry of the history.
type Change struct {
	Type     EventType
	Boundary time.Time // the end that the entry speaks of
}

// EventType names an entry of the history.
type EventType string

// The entries of the history.
const (
	EventCreated     EventType = "created"
	EventRenewed     EventType = "renewed"
	EventPastDue     EventType = "past_due"
	EventRecovered   EventType = "recovered"
	EventExpired     EventType = "expired"
	EventEnded       EventType = "ended"
	EventCanceled    EventType = "canceled"
	EventUncanceled  EventType = "uncanceled"
	EventPaused      EventType = "paused"
	EventResumed     EventType = "resumed"
	EventExtended    EventType = "extended"
	EventPlanChanged EventType = "plan_changed"
)
