package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNotDead says that a delivery is on its way, arrived or no longer wanted, so that there is nothing to try again.
var ErrNotDead = errors.New("the delivery is not dead")

// DeliveryState is what became of one delivery.
type DeliveryState struct {
	ID             string
	OutboxID       string `db:"outbox_id"`
	Channel        string
	Target         string
	Topic          string
	SubscriptionID *string `db:"subscription_id"`
	UserID         *string
	Status         string
	Attempts       int
	NextAttemptAt  time.Time
	LastError      *string
	MessageID      string
	CreatedAt      time.Time
	FinishedAt     *time.Time
}

const deliveryColumns = `d.id, d.outbox_id, d.channel, d.target, d.topic, d.subscription_id, d.user_id, d.status, d.attempts, d.next_attempt_at,
	d.last_error, d.message_id, d.created_at, d.finished_at`

// DeliveryFilter narrows a list. Empty fields do not narrow.
type DeliveryFilter struct {
	Status  string
	Channel string
}

// DeliveryStates is one page of at most limit deliveries with ids before the given one, newest first.
func (s *Store) DeliveryStates(ctx context.Context, f DeliveryFilter, before string, limit int) ([]DeliveryState, error) {
	var query strings.Builder
	query.WriteString(`SELECT ` + deliveryColumns + ` FROM deliveries d WHERE true`)
	var args []any
	where := func(condition, v string) {
		if v != "" {
			args = append(args, v)
			fmt.Fprintf(&query, " AND %s $%d", condition, len(args))
		}
	}
	where("d.status =", f.Status)
	where("d.channel =", f.Channel)
	where("d.id <", before)
	args = append(args, limit)
	fmt.Fprintf(&query, " ORDER BY d.id DESC LIMIT $%d", len(args))
	rows, err := s.pool.Query(ctx, query.String(), args...)
	if err != nil {
		return nil, fmt.Errorf("listing deliveries: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[DeliveryState])
	if err != nil {
		return nil, fmt.Errorf("listing deliveries: %w", err)
	}
	return list, nil
}

const deliveryByID = `SELECT ` + deliveryColumns + ` FROM deliveries d WHERE d.id = $1`

// DeliveryState is one delivery, or ErrNotFound.
func (s *Store) DeliveryState(ctx context.Context, id string) (DeliveryState, error) {
	rows, err := s.pool.Query(ctx, deliveryByID, id)
	if err != nil {
		return DeliveryState{}, fmt.Errorf("reading delivery %s: %w", id, err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[DeliveryState])
	if err != nil {
		return DeliveryState{}, fmt.Errorf("reading delivery %s: %w", id, notFound(err))
	}
	return d, nil
}

// reviveDelivery takes a dead one only: what is being sent could arrive twice, and what is superseded is no longer true.
// The message id stays, so that a receiver who has it already can tell.
const reviveDelivery = `UPDATE deliveries AS d SET status = 'pending', attempts = 0, next_attempt_at = clock_timestamp(), finished_at = NULL,
	version = version + 1
WHERE d.id = $1 AND d.status = 'dead' RETURNING ` + deliveryColumns

// ReviveDelivery lets a dead delivery be tried again from its first attempt. ErrNotFound when there is none, ErrNotDead
// when it is not dead.
func (s *Store) ReviveDelivery(ctx context.Context, id string) (DeliveryState, error) {
	var revived DeliveryState
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, reviveDelivery, id)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, pgx.RowToStructByName[DeliveryState])
		switch {
		case err != nil:
			return err
		case len(list) == 1:
			revived = list[0]
			return finishClaim(ctx, tx, revived)
		}
		var exists bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM deliveries WHERE id = $1)`, id).Scan(&exists); err != nil {
			return err
		}
		if exists {
			return ErrNotDead
		}
		return ErrNotFound
	})
	if err != nil {
		return revived, fmt.Errorf("retrying delivery %s: %w", id, err)
	}
	return revived, nil
}
