package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// subscriptionColumns are the columns of subscriptionRow, in its order.
const subscriptionColumns = `s.id, s.user_id, s.plan_key, s.status, s.started_at, s.expires_at, s.leeway_until, s.grace_period_ends_at,
	s.comp_until, s.held_at, s.expired_at, s.cancel_at_period_end, s.provider, s.external_id, s.provider_status, s.provider_customer_id,
	s.provider_period_start, s.provider_period_end, s.truth_at, s.unpaid_since, s.needs_reconcile, s.version, s.next_plan_key, s.created_at, s.updated_at,
	s.disputed_at`

type subscriptionRow struct {
	ID                  string
	UserID              string
	PlanKey             string
	Status              string
	StartedAt           pgtype.Timestamptz
	ExpiresAt           pgtype.Timestamptz
	LeewayUntil         pgtype.Timestamptz
	GracePeriodEndsAt   pgtype.Timestamptz
	CompUntil           pgtype.Timestamptz
	HeldAt              pgtype.Timestamptz
	ExpiredAt           pgtype.Timestamptz
	CancelAtPeriodEnd   bool
	Provider            *string
	ExternalID          *string
	ProviderStatus      *string
	ProviderCustomerID  *string
	ProviderPeriodStart pgtype.Timestamptz
	ProviderPeriodEnd   pgtype.Timestamptz
	TruthAt             pgtype.Timestamptz
	UnpaidSince         pgtype.Timestamptz
	NeedsReconcile      bool
	Version             int64
	NextPlanKey         *string
	CreatedAt           pgtype.Timestamptz
	UpdatedAt           pgtype.Timestamptz
	DisputedAt          pgtype.Timestamptz
}

func (r subscriptionRow) domain() subscription.Subscription {
	return subscription.Subscription{
		ID: r.ID, UserID: r.UserID, PlanKey: r.PlanKey, Status: subscription.Status(r.Status),
		StartedAt: instant(r.StartedAt), ExpiresAt: instant(r.ExpiresAt), LeewayUntil: instant(r.LeewayUntil),
		GraceUntil: instant(r.GracePeriodEndsAt), CompUntil: instant(r.CompUntil), HeldAt: instant(r.HeldAt), ExpiredAt: instant(r.ExpiredAt),
		CancelAtPeriodEnd: r.CancelAtPeriodEnd, Provider: value(r.Provider), ExternalID: value(r.ExternalID),
		ProviderStatus: value(r.ProviderStatus), CustomerID: value(r.ProviderCustomerID),
		PeriodStart: instant(r.ProviderPeriodStart), PeriodEnd: instant(r.ProviderPeriodEnd),
		TruthAt: instant(r.TruthAt), UnpaidSince: instant(r.UnpaidSince), NeedsReconcile: r.NeedsReconcile,
		Version: r.Version, NextPlanKey: value(r.NextPlanKey), CreatedAt: instant(r.CreatedAt), UpdatedAt: instant(r.UpdatedAt),
		DisputedAt: instant(r.DisputedAt),
	}
}

func collectSubscriptions(rows pgx.Rows, err error) ([]subscription.Subscription, error) {
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[subscriptionRow])
	if err != nil {
		return nil, err
	}
	subscriptions := make([]subscription.Subscription, len(list))
	for i, r := range list {
		subscriptions[i] = r.domain()
	}
	return subscriptions, nil
}

const subscriptionByID = `SELECT ` + subscriptionColumns + ` FROM subscriptions s WHERE s.id = $1`

// Subscription is the one with this id, or ErrNotFound.
func (s *Store) Subscription(ctx context.Context, id string) (subscription.Subscription, error) {
	list, err := collectSubscriptions(s.pool.Query(ctx, subscriptionByID, id))
	if err != nil {
		return subscription.Subscription{}, fmt.Errorf("reading subscription %s: %w", id, err)
	}
	if len(list) == 0 {
		return subscription.Subscription{}, ErrNotFound
	}
	return list[0], nil
}

// SubscriptionFilter narrows a list. Empty fields do not narrow. ExpiringBefore keeps live ones whose access ends before it.
type SubscriptionFilter struct {
	UserID         string
	Status         string
	ExpiringBefore time.Time
}

// SubscriptionCursor is the last row of a page: its id, and its end where the list is in the order of ends.
type SubscriptionCursor struct {
	ID          string
	AccessUntil time.Time
}

// Subscriptions is one page of at most limit rows after the cursor, in the order of ids; with ExpiringBefore in the
// order of ends, which is what its index gives.
func (s *Store) Subscriptions(ctx context.Context, f SubscriptionFilter, after SubscriptionCursor, limit int) ([]subscription.Subscription, error) {
	query := strings.Builder{}
	query.WriteString(`SELECT ` + subscriptionColumns + ` FROM subscriptions s WHERE true`)
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	if f.UserID != "" {
		query.WriteString(` AND s.user_id = ` + arg(f.UserID))
	}
	if f.Status != "" {
		query.WriteString(` AND s.status = ` + arg(f.Status))
	}
	order := ` ORDER BY s.id`
	if f.ExpiringBefore.IsZero() {
		if after.ID != "" {
			query.WriteString(` AND s.id > ` + arg(after.ID))
		}
	} else {
		order = ` ORDER BY s.access_until, s.id`
		query.WriteString(` AND s.status IN ('trialing', 'active', 'past_due') AND s.access_until < ` + arg(timestamptz(f.ExpiringBefore)))
		if after.ID != "" {
			query.WriteString(` AND (s.access_until, s.id) > (` + arg(timestamptz(after.AccessUntil)) + `, ` + arg(after.ID) + `)`)
		}
	}
	query.WriteString(order + ` LIMIT ` + arg(limit))
	list, err := collectSubscriptions(s.pool.Query(ctx, query.String(), args...))
	if err != nil {
		return nil, fmt.Errorf("listing subscriptions: %w", err)
	}
	return list, nil
}

// CreateSubscription writes a new subscription with its first entry of the history. A zero StartedAt means now, by the
// database's clock. ErrNoPlan when its plan does not exist.
func (s *Store) CreateSubscription(ctx context.Context, sub subscription.Subscription, actor string) (subscription.Subscription, error) {
	sub.ID = NewID()
	var written subscription.Subscription
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
			return err
		}
		if sub.StartedAt.IsZero() {
			sub.StartedAt = now.UTC()
		}
		w := []write{{next: sub, changes: []subscription.Change{{Type: subscription.EventCreated, Boundary: sub.AccessUntil()}}, actor: actor}}
		if err := writeSubscriptions(ctx, tx, w, now); err != nil {
			return err
		}
		list, err := collectSubscriptions(tx.Query(ctx, subscriptionByID, sub.ID))
		if err != nil {
			return err
		}
		written = list[0]
		return finishClaim(ctx, tx, written)
	})
	if sqlState(err) == codeForeignKeyViolation {
		return sub, ErrNoPlan
	}
	if err != nil {
		return sub, fmt.Errorf("creating a subscription: %w", err)
	}
	return written, nil
}

const lockSubscription = subscriptionByID + ` FOR UPDATE`

// ChangeSubscription locks the row, works the change out and writes it with its history. The instant handed to change
// is the database's clock after the lock was taken, so that nothing that committed before is newer than it.
func (s *Store) ChangeSubscription(ctx context.Context, id, actor, note string,
	change func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error),
) (subscription.Subscription, error) {
	var after subscription.Subscription
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		list, err := collectSubscriptions(tx.Query(ctx, lockSubscription, id))
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return ErrNotFound
		}
		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		next, changes, err := change(list[0], now.UTC())
		if err != nil {
			return err
		}
		if err := writeSubscriptions(ctx, tx, []write{{prev: &list[0], next: next, changes: changes, actor: actor, note: note}}, now); err != nil {
			return err
		}
		written, err := collectSubscriptions(tx.Query(ctx, subscriptionByID, id))
		if err != nil {
			return err
		}
		after = written[0]
		return finishClaim(ctx, tx, after)
	})
	switch {
	case err == nil:
		return after, nil
	case errors.Is(err, ErrNotFound), errors.Is(err, subscription.ErrConflict), errors.Is(err, subscription.ErrProviderOwned):
		return after, err
	default:
		return after, fmt.Errorf("changing subscription %s: %w", id, err)
	}
}
