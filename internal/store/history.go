package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// Terms are the terms of access as an entry of the history keeps them. Null ends are absent; a lifetime has Lifetime.
type Terms struct {
	UserID            string     `json:"user_id"`
	Plan              string     `json:"plan"`
	Status            string     `json:"status"`
	StartedAt         time.Time  `json:"started_at"`
	ExpiresAt         *time.Time `json:"expires_at,omitempty"`
	LeewayUntil       *time.Time `json:"leeway_until,omitempty"`
	GraceUntil        *time.Time `json:"grace_period_ends_at,omitempty"`
	CompUntil         *time.Time `json:"comp_until,omitempty"`
	HeldAt            *time.Time `json:"held_at,omitempty"`
	CancelAtPeriodEnd bool       `json:"cancel_at_period_end,omitempty"`
	Lifetime          bool       `json:"lifetime,omitempty"`
}

type historyDetail struct {
	Terms Terms  `json:"terms"`
	Note  string `json:"note,omitempty"`
}

func termsOf(s subscription.Subscription) Terms {
	t := Terms{
		UserID: s.UserID, Plan: s.PlanKey, Status: string(s.Status), StartedAt: s.StartedAt, CancelAtPeriodEnd: s.CancelAtPeriodEnd,
		LeewayUntil: optional(s.LeewayUntil), GraceUntil: optional(s.GraceUntil), CompUntil: optional(s.CompUntil), HeldAt: optional(s.HeldAt),
	}
	if subscription.IsForever(s.ExpiresAt) {
		t.Lifetime = true
	} else {
		t.ExpiresAt = optional(s.ExpiresAt)
	}
	return t
}

// optional is the instant, or nil. The infinity that only SQL can put into an end becomes the last instant that RFC 3339
// can say: no JSON holds a later one.
func optional(t time.Time) *time.Time {
	switch {
	case t.IsZero():
		return nil
	case subscription.IsForever(t):
		t = subscription.Forever.Add(-time.Microsecond)
	}
	return &t
}

// HistoryEntry is one entry of a subscription's history.
type HistoryEntry struct {
	ID             string
	SubscriptionID string
	Type           string
	Boundary       time.Time
	At             time.Time
	Actor          string
	Detail         json.RawMessage // null where a job only marked what the date had decided
}

// HistoryCursor is the last entry of a page.
type HistoryCursor struct {
	At time.Time
	ID string
}

const historyPage = `SELECT id, subscription_id, event_type, boundary, at, actor, detail FROM subscription_events
WHERE subscription_id = $1 AND ($2::timestamptz IS NULL OR (at, id) > ($2, $3::uuid)) ORDER BY at, id LIMIT $4`

// History is one page of at most limit entries after the cursor, oldest first.
func (s *Store) History(ctx context.Context, subscriptionID string, after HistoryCursor, limit int) ([]HistoryEntry, error) {
	rows, err := s.pool.Query(ctx, historyPage, subscriptionID, timestamptz(after.At), text(after.ID), limit)
	if err != nil {
		return nil, fmt.Errorf("reading the history of %s: %w", subscriptionID, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (HistoryEntry, error) {
		var e HistoryEntry
		var boundary, at pgtype.Timestamptz
		err := row.Scan(&e.ID, &e.SubscriptionID, &e.Type, &boundary, &at, &e.Actor, &e.Detail)
		e.Boundary, e.At = instant(boundary), instant(at)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the history of %s: %w", subscriptionID, err)
	}
	return list, nil
}
