package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// holdingsOfUsers answers with at least one row, so that the instant of the reading is known for users without a row too.
const holdingsOfUsers = `SELECT statement_timestamp(), s.id, s.user_id, s.plan_key, s.status, s.started_at, s.expires_at, s.leeway_until,
	s.grace_period_ends_at, s.comp_until, s.held_at, p.features
FROM (SELECT 1) AS one
LEFT JOIN subscriptions s ON s.user_id = ANY ($1::text[])
LEFT JOIN plans p ON p.key = s.plan_key`

// Holdings reads what the users have, in one statement, with the database's instant of that statement. The holdings carry
// what the access rule needs and no more. Users without a subscription are absent from the map.
func (s *Store) Holdings(ctx context.Context, userIDs []string) (map[string][]subscription.Holding, time.Time, error) {
	rows, err := s.pool.Query(ctx, holdingsOfUsers, userIDs)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("reading subscriptions: %w", err)
	}
	defer rows.Close()
	var at time.Time
	holdings := make(map[string][]subscription.Holding, len(userIDs))
	for rows.Next() {
		var id, userID, planKey, status *string
		var startedAt, expiresAt, leewayUntil, graceUntil, compUntil, heldAt pgtype.Timestamptz
		var features []string
		if err := rows.Scan(&at, &id, &userID, &planKey, &status, &startedAt, &expiresAt, &leewayUntil, &graceUntil, &compUntil, &heldAt, &features); err != nil {
			return nil, time.Time{}, fmt.Errorf("reading subscriptions: %w", err)
		}
		if id == nil {
			continue
		}
		holdings[*userID] = append(holdings[*userID], subscription.Holding{
			Subscription: subscription.Subscription{
				ID: *id, UserID: *userID, PlanKey: *planKey, Status: subscription.Status(*status), StartedAt: instant(startedAt),
				ExpiresAt: instant(expiresAt), LeewayUntil: instant(leewayUntil), GraceUntil: instant(graceUntil),
				CompUntil: instant(compUntil), HeldAt: instant(heldAt),
			},
			Features: features,
		})
	}
	if err := rows.Err(); err != nil {
		return nil, time.Time{}, fmt.Errorf("reading subscriptions: %w", err)
	}
	return holdings, at.UTC(), nil
}
