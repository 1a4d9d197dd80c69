package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Why a delivery is not tried again.
var (
	// ErrNotDead says that it is on its way, arrived or no longer wanted.
	ErrNotDead = errors.New("the delivery is not dead")
	// ErrEndpointOff says that its endpoint is disabled or deleted.
	ErrEndpointOff = errors.New("the endpoint of the delivery is not enabled")
)

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
	ResponseStatus *int    // of the last answer of an endpoint
	URL            *string // of the endpoint as it is now; nil for a mail
	MessageID      string
	CreatedAt      time.Time
	FinishedAt     *time.Time
}

const deliveryColumns = `d.id, d.outbox_id, d.channel, d.target, d.topic, d.subscription_id, d.user_id, d.status, d.attempts, d.next_attempt_at,
	d.last_error, d.response_status, CASE d.channel WHEN 'webhook' THEN (SELECT e.url FROM webhook_endpoints e WHERE e.id::text = d.target) END AS url,
	d.message_id, d.created_at, d.finished_at`

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

// reviveDelivery takes a dead one: what is being sent could arrive twice, and what is superseded is no longer true. Of those that
// were sent it takes webhooks, because a receiver may have lost what it took; nobody wants the same mail twice. The message id
// stays, so that a receiver who has it already can tell.
const reviveDelivery = `UPDATE deliveries AS d SET status = 'pending', attempts = 0, refusals = 0, next_attempt_at = clock_timestamp(), finished_at = NULL,
	version = version + 1
WHERE d.id = $1 AND (d.status = 'dead' OR (d.status = 'sent' AND d.channel = 'webhook'))
	AND (d.channel <> 'webhook' OR ` + endpointIsOn + `) RETURNING ` + deliveryColumns

const endpointIsOn = `EXISTS (SELECT 1 FROM webhook_endpoints e WHERE e.id::text = d.target AND e.status = 'enabled')`

const whyNotRevived = `SELECT d.status = 'dead' OR (d.status = 'sent' AND d.channel = 'webhook') FROM deliveries d WHERE d.id = $1`

// ReviveDelivery lets a dead delivery, or a webhook that was sent, be tried again from its first attempt. ErrNotFound when there
// is none, ErrNotDead when it is neither, ErrEndpointOff when its endpoint is not called.
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
		var ended bool
		switch err := notFound(tx.QueryRow(ctx, whyNotRevived, id).Scan(&ended)); {
		case err != nil:
			return err
		case ended:
			return ErrEndpointOff
		}
		return ErrNotDead
	})
	if err != nil {
		return revived, fmt.Errorf("retrying delivery %s: %w", id, err)
	}
	return revived, nil
}
