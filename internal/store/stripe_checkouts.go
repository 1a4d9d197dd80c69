package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Checkout is what a checkout session tells about the subscription that it made.
type Checkout struct {
	SessionID, SubscriptionID, CustomerID string
	UserID, Email, Name                   string
}

// learnCheckout: a subscription is made by one session, and the first that says so counts.
const learnCheckout = `INSERT INTO stripe_checkouts (subscription_id, user_id, session_id) VALUES ($1, $2, $3) ON CONFLICT (subscription_id) DO NOTHING`

// LearnCheckout remembers whose subscription a checkout session made and whose customer it is, and fills in how to reach
// the user where that is empty.
func (s *Store) LearnCheckout(ctx context.Context, c Checkout) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(learnCheckout, c.SubscriptionID, c.UserID, c.SessionID)
		if c.CustomerID != "" {
			batch.Queue(learnCustomers, []string{c.CustomerID}, []string{c.UserID})
		}
		if c.Email != "" || c.Name != "" {
			batch.Queue(fillUsers, []string{c.UserID}, []*string{text(c.Email)}, []*string{text(c.Name)})
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("learning from checkout session %s: %w", c.SessionID, err)
	}
	return nil
}
