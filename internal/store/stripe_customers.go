package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// StripeCustomer says which user a customer at Stripe is.
type StripeCustomer struct {
	ID     string
	UserID string
}

// linkStripeCustomer: a link set by hand overrules what was learned before.
const linkStripeCustomer = `INSERT INTO stripe_customers (customer_id, user_id) VALUES ($1, $2)
ON CONFLICT (customer_id) DO UPDATE SET user_id = excluded.user_id, updated_at = now()`

// LinkStripeCustomer says which user a Stripe customer is. Events that waited for it are taken up by the job
// webhook-apply; subscriptions that exist stay with their user.
func (s *Store) LinkStripeCustomer(ctx context.Context, customerID, userID string) (StripeCustomer, error) {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, linkStripeCustomer, customerID, userID); err != nil {
			return err
		}
		return finishClaim(ctx, tx, StripeCustomer{ID: customerID, UserID: userID})
	})
	if err != nil {
		return StripeCustomer{}, fmt.Errorf("linking Stripe customer %s: %w", customerID, err)
	}
	return StripeCustomer{ID: customerID, UserID: userID}, nil
}
