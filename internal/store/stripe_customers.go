package store

import (
	"context"
	"fmt"
)

// linkStripeCustomer: a link set by hand overrules what was learned before.
const linkStripeCustomer = `INSERT INTO stripe_customers (customer_id, user_id) VALUES ($1, $2)
ON CONFLICT (customer_id) DO UPDATE SET user_id = excluded.user_id, updated_at = now()`

// LinkStripeCustomer says which user a Stripe customer is. Events that waited for it are taken up by the job
// webhook-apply; subscriptions that exist stay with their user.
func (s *Store) LinkStripeCustomer(ctx context.Context, customerID, userID string) error {
	if _, err := s.pool.Exec(ctx, linkStripeCustomer, customerID, userID); err != nil {
		return fmt.Errorf("linking Stripe customer %s: %w", customerID, err)
	}
	return nil
}
