package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// eventChanged is the entry of a change of terms that no other entry names: the end of a paid term moved to an earlier
// instant, a subscription went to another user. Without it the history would not tell what was known when.
const eventChanged subscription.EventType = "changed"

// entries are the changes that the history is told of. A change of terms is never left out.
func (w write) entries() []subscription.Change {
	if len(w.changes) > 0 || w.prev == nil || sameTerms(*w.prev, w.next) {
		return w.changes
	}
	return []subscription.Change{{Type: eventChanged, Boundary: w.next.AccessUntil()}}
}

// sameTerms compares what the history keeps, as it keeps it.
func sameTerms(a, b subscription.Subscription) bool {
	before, errBefore := json.Marshal(termsOf(a))
	after, errAfter := json.Marshal(termsOf(b))
	return errBefore == nil && errAfter == nil && bytes.Equal(before, after)
}

// PastQuestion asks what was known about a user at an instant.
type PastQuestion struct {
	UserID string
	At     time.Time
}

// pastHoldings finds all subscriptions that are or ever were a user's, and of each the newest terms at the instant. Entries
// of one instant are in the order of their ids. since is the first entry that names the user; first_at and first_type are
// the first entry with terms, whoever had it then.
const pastHoldings = `WITH asked AS (SELECT n, user_id, at FROM unnest($1::text[], $2::timestamptz[]) WITH ORDINALITY AS u(user_id, at, n)),
theirs AS (
	SELECT n, user_id, at, subscription_id, min(entry_at) AS since FROM (
		SELECT a.n, a.user_id, a.at, e.subscription_id, e.at AS entry_at
		FROM asked a JOIN subscription_events e ON e.detail IS NOT NULL AND e.detail -> 'terms' ->> 'user_id' = a.user_id
		UNION ALL
		SELECT a.n, a.user_id, a.at, s.id, NULL FROM asked a JOIN subscriptions s ON s.user_id = a.user_id) AS found
	GROUP BY n, user_id, at, subscription_id)
SELECT t.n, t.subscription_id, t.since, known.terms, first.at, coalesce(first.event_type, ''), s.created_at,
	s.plan_key, s.status, s.started_at, s.expires_at, s.leeway_until, s.grace_period_ends_at, s.comp_until, s.held_at, p.features
FROM theirs t
LEFT JOIN LATERAL (SELECT e.detail -> 'terms' AS terms FROM subscription_events e
	WHERE e.subscription_id = t.subscription_id AND e.at <= t.at AND e.detail -> 'terms' IS NOT NULL
	ORDER BY e.at DESC, e.id DESC LIMIT 1) AS known ON true
LEFT JOIN LATERAL (SELECT e.at, e.event_type FROM subscription_events e
	WHERE e.subscription_id = t.subscription_id AND e.detail -> 'terms' IS NOT NULL
	ORDER BY e.at, e.id LIMIT 1) AS first ON true
LEFT JOIN subscriptions s ON s.id = t.subscription_id AND s.user_id = t.user_id
LEFT JOIN plans p ON p.key = coalesce(known.terms ->> 'plan', s.plan_key)`

// PastHoldings reads what each question's user had by the terms that were known at its instant, in the order of the
// questions. Features are those that the plans have today. A user of whom nothing was ever kept has none.
//
// A row that plain SQL has made has no first entry. As long as no entry tells of a change its terms count from its
// created_at on; between created_at and its first change nothing is known. beforeHistory says of each question that nothing
// is known about one of the user's subscriptions, or that all begin later.
func (s *Store) PastHoldings(ctx context.Context, questions []PastQuestion) (holdings [][]subscription.Holding, beforeHistory []bool, err error) {
	users, instants := make([]string, len(questions)), make([]pgtype.Timestamptz, len(questions))
	for i, q := range questions {
		users[i], instants[i] = q.UserID, timestamptz(q.At)
	}
	rows, err := s.pool.Query(ctx, pastHoldings, users, instants)
	if err != nil {
		return nil, nil, fmt.Errorf("reading past terms: %w", err)
	}
	defer rows.Close()
	holdings, beforeHistory = make([][]subscription.Holding, len(questions)), make([]bool, len(questions))
	known, began := make([]bool, len(questions)), make([]bool, len(questions))
	for rows.Next() {
		var r pastRow
		var n int
		if err := rows.Scan(&n, &r.id, &r.since, &r.terms, &r.firstAt, &r.firstType, &r.createdAt,
			&r.plan, &r.status, &r.startedAt, &r.expiresAt, &r.leewayUntil, &r.graceUntil, &r.compUntil, &r.heldAt, &r.features); err != nil {
			return nil, nil, fmt.Errorf("reading past terms: %w", err)
		}
		q := questions[n-1]
		known[n-1] = true
		switch {
		case r.unknown(q):
			beforeHistory[n-1] = true
		case r.began(q):
			began[n-1] = true
		}
		if h, had, err := r.holding(q); err != nil {
			return nil, nil, fmt.Errorf("reading the past terms of %s: %w", r.id, err)
		} else if had {
			holdings[n-1] = append(holdings[n-1], h)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, nil, fmt.Errorf("reading past terms: %w", err)
	}
	for i := range questions {
		if known[i] && !began[i] {
			beforeHistory[i] = true
		}
	}
	return holdings, beforeHistory, nil
}

// pastRow is one subscription that is or was a user's. What comes from its row is null where it is no longer the user's.
type pastRow struct {
	id                                         string
	since, firstAt, createdAt                  pgtype.Timestamptz
	terms                                      []byte
	firstType                                  string
	plan, status                               *string
	startedAt, expiresAt                       pgtype.Timestamptz
	leewayUntil, graceUntil, compUntil, heldAt pgtype.Timestamptz
	features                                   []string
}

// seeded: no entry tells of the making of the row.
func (r pastRow) seeded() bool { return r.firstType != string(subscription.EventCreated) }

// unknown reports whether the subscription was there at the instant with terms that no entry has kept.
func (r pastRow) unknown(q PastQuestion) bool {
	return r.seeded() && r.firstAt.Valid && r.createdAt.Valid && !q.At.Before(r.createdAt.Time) && q.At.Before(r.firstAt.Time)
}

// began reports whether something was known of the user by this subscription at the instant.
func (r pastRow) began(q PastQuestion) bool {
	if r.since.Valid {
		return !q.At.Before(r.since.Time)
	}
	return !r.firstAt.Valid && r.createdAt.Valid && !q.At.Before(r.createdAt.Time)
}

// holding is what the user had by this subscription at the instant, if it was theirs.
func (r pastRow) holding(q PastQuestion) (h subscription.Holding, had bool, err error) {
	h.ID, h.UserID, h.Features = r.id, q.UserID, r.features
	if r.terms != nil {
		var t Terms
		if err := json.Unmarshal(r.terms, &t); err != nil {
			return h, false, err
		}
		h.PlanKey, h.Status, h.StartedAt, h.CancelAtPeriodEnd = t.Plan, subscription.Status(t.Status), t.StartedAt, t.CancelAtPeriodEnd
		h.ExpiresAt, h.LeewayUntil, h.GraceUntil = orNone(t.ExpiresAt), orNone(t.LeewayUntil), orNone(t.GraceUntil)
		h.CompUntil, h.HeldAt = orNone(t.CompUntil), orNone(t.HeldAt)
		if t.Lifetime {
			h.ExpiresAt = subscription.Forever
		}
		return h, t.UserID == q.UserID, nil
	}
	if r.firstAt.Valid || !r.createdAt.Valid || q.At.Before(r.createdAt.Time) {
		return h, false, nil
	}
	h.PlanKey, h.Status, h.StartedAt, h.ExpiresAt = value(r.plan), subscription.Status(value(r.status)), instant(r.startedAt), instant(r.expiresAt)
	h.LeewayUntil, h.GraceUntil, h.CompUntil, h.HeldAt = instant(r.leewayUntil), instant(r.graceUntil), instant(r.compUntil), instant(r.heldAt)
	if h.Status == subscription.Expired {
		h.Status = subscription.Active // the mark came with the end; which live status was before it is not kept
	}
	return h, true, nil
}

func orNone(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
