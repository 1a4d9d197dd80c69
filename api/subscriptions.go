package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

type subscriptionRoutes struct {
	store    *store.Store
	provider Provider
}

// subscriptionJSON has the columns of the table, with plan for plan_key.
type subscriptionJSON struct {
	ID                  string  `json:"id"`
	UserID              string  `json:"user_id"`
	Plan                string  `json:"plan"`
	Status              string  `json:"status"`
	StartedAt           stamp   `json:"started_at"`
	ExpiresAt           stamp   `json:"expires_at"`
	LeewayUntil         stamp   `json:"leeway_until"`
	GracePeriodEndsAt   stamp   `json:"grace_period_ends_at"`
	CompUntil           stamp   `json:"comp_until"`
	AccessUntil         stamp   `json:"access_until"`
	HeldAt              stamp   `json:"held_at"`
	ExpiredAt           stamp   `json:"expired_at"`
	DisputedAt          stamp   `json:"disputed_at"`
	CancelAtPeriodEnd   bool    `json:"cancel_at_period_end"`
	Provider            *string `json:"provider"`
	ExternalID          *string `json:"external_id"`
	ProviderStatus      *string `json:"provider_status"`
	ProviderCustomerID  *string `json:"provider_customer_id"`
	ProviderPeriodStart stamp   `json:"provider_period_start"`
	ProviderPeriodEnd   stamp   `json:"provider_period_end"`
	TruthAt             stamp   `json:"truth_at"`
	UnpaidSince         stamp   `json:"unpaid_since"`
	NeedsReconcile      bool    `json:"needs_reconcile"`
	Version             int64   `json:"version"`
	NextPlan            *string `json:"next_plan"`
	CreatedAt           stamp   `json:"created_at"`
	UpdatedAt           stamp   `json:"updated_at"`
}

func showSubscription(s subscription.Subscription) subscriptionJSON {
	return subscriptionJSON{
		ID: s.ID, UserID: s.UserID, Plan: s.PlanKey, Status: string(s.Status), StartedAt: stamp(s.StartedAt), ExpiresAt: stamp(s.ExpiresAt),
		LeewayUntil: stamp(s.LeewayUntil), GracePeriodEndsAt: stamp(s.GraceUntil), CompUntil: stamp(s.CompUntil), AccessUntil: stamp(s.AccessUntil()),
		HeldAt: stamp(s.HeldAt), ExpiredAt: stamp(s.ExpiredAt), DisputedAt: stamp(s.DisputedAt), CancelAtPeriodEnd: s.CancelAtPeriodEnd,
		Provider: optional(s.Provider), ExternalID: optional(s.ExternalID), ProviderStatus: optional(s.ProviderStatus),
		ProviderCustomerID: optional(s.CustomerID), ProviderPeriodStart: stamp(s.PeriodStart), ProviderPeriodEnd: stamp(s.PeriodEnd),
		TruthAt: stamp(s.TruthAt), UnpaidSince: stamp(s.UnpaidSince), NeedsReconcile: s.NeedsReconcile, Version: s.Version, NextPlan: optional(s.NextPlanKey),
		CreatedAt: stamp(s.CreatedAt), UpdatedAt: stamp(s.UpdatedAt),
	}
}

type subscriptionIn struct {
	UserID    string         `json:"user_id"`
	Plan      string         `json:"plan"`
	ExpiresAt *time.Time     `json:"expires_at"`
	Duration  *time.Duration `json:"duration"`
	Lifetime  bool           `json:"lifetime"`
	Status    *string        `json:"status"`
	StartedAt *time.Time     `json:"started_at"`
}

func (in subscriptionIn) validate() error {
	var errs fieldErrors
	errs.line("/user_id", in.UserID, maxID, true)
	errs.line("/plan", in.Plan, maxID, true)
	ends := 0
	if in.ExpiresAt != nil {
		ends++
	}
	if in.Duration != nil {
		ends++
		errs.term("/duration", *in.Duration)
	}
	if in.Lifetime {
		ends++
	}
	if ends > 1 {
		errs.add("/expires_at", "and duration and lifetime exclude each other; give one of them")
	}
	if in.Status != nil {
		errs.oneOf("/status", *in.Status, string(subscription.Trialing), string(subscription.Active), string(subscription.PastDue), string(subscription.Paused))
	}
	return errs.err()
}

// term demands a positive duration that ends within the years that an instant may have.
func (e *fieldErrors) term(pointer string, d time.Duration) {
	if d <= 0 || d > maxTerm {
		e.add(pointer, "must be more than 0s and at most 876000h")
	}
}

// create makes a subscription of ours. Without an end of its own it takes the plan's duration, or none for a lifetime.
func (s subscriptionRoutes) create(c echo.Context) error {
	var in subscriptionIn
	if _, err := bind(c, &in); err != nil {
		return err
	}
	if err := in.validate(); err != nil {
		return err
	}
	ctx := c.Request().Context()
	now, err := s.store.Now(ctx)
	if err != nil {
		return err
	}
	next := subscription.Subscription{UserID: in.UserID, PlanKey: in.Plan, Status: subscription.Active, StartedAt: now}
	if in.Status != nil {
		next.Status = subscription.Status(*in.Status)
	}
	if in.StartedAt != nil {
		next.StartedAt = *in.StartedAt
	}
	lifetime := in.Lifetime
	switch {
	case in.ExpiresAt != nil:
		next.ExpiresAt = *in.ExpiresAt
	case lifetime:
		next.ExpiresAt = subscription.Forever
	case in.Duration != nil:
		next.ExpiresAt = next.StartedAt.Add(*in.Duration)
	default:
		plan, err := s.store.Plan(ctx, in.Plan)
		switch {
		case err != nil && problemOf(err).Status == http.StatusNotFound:
			return store.ErrNoPlan
		case err != nil:
			return err
		case plan.Lifetime:
			lifetime, next.ExpiresAt = true, subscription.Forever
		case plan.Duration > 0:
			next.ExpiresAt = next.StartedAt.Add(plan.Duration)
		default:
			return invalid(FieldError{"/expires_at", "or duration or lifetime is required, because the plan has no duration"})
		}
	}
	switch {
	case !next.ExpiresAt.After(next.StartedAt):
		return invalid(FieldError{"/expires_at", "must lie after the start"})
	case !lifetime && subscription.IsForever(next.ExpiresAt):
		return invalid(FieldError{"/duration", "must end before the year 10000"})
	}
	ctx = answers(c, func(written subscription.Subscription) (int, any) {
		return http.StatusCreated, showSubscription(written)
	})
	written, err := s.store.CreateSubscription(ctx, next, who(c).actor())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, showSubscription(written))
}

func (s subscriptionRoutes) one(c echo.Context) error {
	id, err := pathID(c, "subscription")
	if err != nil {
		return err
	}
	found, err := s.store.Subscription(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showSubscription(found))
}

// subscriptionPosition is where a page ended. End is set where the list is in the order of ends.
type subscriptionPosition struct {
	ID  uuid.UUID  `json:"i"`
	End *time.Time `json:"e,omitempty"`
}

func (s subscriptionRoutes) list(c echo.Context) error {
	filter := store.SubscriptionFilter{UserID: c.QueryParam("user_id"), Status: c.QueryParam("status")}
	var errs fieldErrors
	errs.line("/user_id", filter.UserID, maxID, false)
	if filter.Status != "" {
		errs.oneOf("/status", filter.Status, "trialing", "active", "past_due", "paused", "canceled", "expired")
	}
	before := c.QueryParam("expiring_before")
	if before != "" {
		at, detail := parseInstant(before)
		if detail != "" {
			errs.add("/expiring_before", detail)
		}
		filter.ExpiringBefore = at
	}
	if err := errs.err(); err != nil {
		return err
	}
	list := filtered("subscriptions", filter.UserID, filter.Status, before)
	var position subscriptionPosition
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	var after store.SubscriptionCursor
	if position.ID != uuid.Nil {
		after.ID = position.ID.String()
	}
	if position.End != nil {
		after.AccessUntil = *position.End
	}
	rows, err := s.store.Subscriptions(c.Request().Context(), filter, after, limit+1)
	if err != nil {
		return err
	}
	last := func(s subscription.Subscription) any {
		p := subscriptionPosition{ID: uuid.MustParse(s.ID)} // the column is a uuid
		if before != "" {
			end := s.AccessUntil()
			p.End = &end
		}
		return p
	}
	return answerPage(c, list, rows, limit, last, func(s subscription.Subscription) any { return showSubscription(s) })
}

type historyJSON struct {
	ID             string          `json:"id"`
	SubscriptionID string          `json:"subscription_id"`
	EventType      string          `json:"event_type"`
	Boundary       stamp           `json:"boundary"`
	At             stamp           `json:"at"`
	Actor          string          `json:"actor"`
	Detail         json.RawMessage `json:"detail"`
}

type historyPosition struct {
	ID uuid.UUID `json:"i"`
	At time.Time `json:"t"`
}

func (s subscriptionRoutes) history(c echo.Context) error {
	id, err := pathID(c, "subscription")
	if err != nil {
		return err
	}
	list := filtered("history", id)
	var position historyPosition
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	if _, err := s.store.Subscription(c.Request().Context(), id); err != nil {
		return err
	}
	var after store.HistoryCursor
	if !position.At.IsZero() {
		after = store.HistoryCursor{At: position.At, ID: position.ID.String()}
	}
	entries, err := s.store.History(c.Request().Context(), id, after, limit+1)
	if err != nil {
		return err
	}
	last := func(e store.HistoryEntry) any { return historyPosition{ID: uuid.MustParse(e.ID), At: e.At} }
	return answerPage(c, list, entries, limit, last, func(e store.HistoryEntry) any {
		return historyJSON{
			ID: e.ID, SubscriptionID: e.SubscriptionID, EventType: e.Type, Boundary: stamp(e.Boundary), At: stamp(e.At), Actor: e.Actor, Detail: e.Detail,
		}
	})
}

// pathID is the id in the path. What is no UUID names nothing.
func pathID(c echo.Context, what string) (string, error) {
	id, err := uuid.Parse(pathText(c, "id"))
	if err != nil {
		return "", notFound(what)
	}
	return id.String(), nil
}
