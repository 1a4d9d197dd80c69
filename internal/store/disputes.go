package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// SeenDispute is a dispute as the provider tells it.
type SeenDispute struct {
	ID        string
	PaymentID string // of the payment intent, else of the charge
	ChargeID  string
	Status    string // the provider's own word
	Reason    string // the provider's own word
	Amount    int64  // minor units of Currency
	Currency  string // upper case, ISO 4217
	Created   time.Time
	Said      time.Time // when it was told
}

const knownDispute = `SELECT status, closed_at FROM disputes WHERE provider = 'stripe' AND external_id = $1`

const keepDispute = `INSERT INTO disputes AS d (external_id, payment_id, charge_id, amount, currency, status, reason, opened_at, closed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (provider, external_id) DO UPDATE SET status = excluded.status, amount = excluded.amount, closed_at = excluded.closed_at,
	payment_id = coalesce(d.payment_id, excluded.payment_id), charge_id = coalesce(d.charge_id, excluded.charge_id),
	reason = coalesce(excluded.reason, d.reason), updated_at = now()`

// disputed is whose payment it is, as far as that is known.
const disputed = `SELECT coalesce(s.id::text, ''), coalesce(s.user_id, o.user_id, ''), coalesce(p.order_id::text, '')
FROM payments p LEFT JOIN subscriptions s ON s.external_id = p.subscription_id LEFT JOIN payment_orders o ON o.id = p.order_id
WHERE p.provider = 'stripe' AND p.external_id = $1`

// KeepDispute keeps what was heard of a dispute, each status once in the audit log, and tells operators once that it was
// opened. Of an event that is older than what is known nothing is kept; what the provider answered now always is.
func (s *Store) KeepDispute(ctx context.Context, d SeenDispute, answered bool) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var known subscription.Dispute
		var closed pgtype.Timestamptz
		var now time.Time
		var subscriptionID, userID, orderID string
		read := &pgx.Batch{}
		read.Queue(lockMoney, d.PaymentID)
		read.Queue(knownDispute, d.ID).QueryRow(func(row pgx.Row) error { return ifAny(row.Scan(&known.Status, &closed)) })
		read.Queue(disputed, d.PaymentID).QueryRow(func(row pgx.Row) error { return ifAny(row.Scan(&subscriptionID, &userID, &orderID)) })
		read.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		if err := tx.SendBatch(ctx, read).Close(); err != nil {
			return err
		}
		known.ClosedAt = instant(closed)
		if known.Status == d.Status && known.Status != "" || known.Status != "" && !answered && !known.GoesOn(d.Status, d.Said) {
			return nil
		}
		var closedAt time.Time
		if subscription.DisputeClosed(d.Status) {
			closedAt = d.Said
		}
		opened := d.Created
		if opened.IsZero() {
			opened = d.Said
		}
		batch := &pgx.Batch{}
		batch.Queue(keepDispute, d.ID, d.PaymentID, text(d.ChargeID), d.Amount, d.Currency, d.Status, text(d.Reason), opened, timestamptz(closedAt))
		detail := map[string]any{"dispute": d.ID, "payment": d.PaymentID, "status": d.Status, "reason": d.Reason, "amount": d.Amount, "currency": d.Currency, "order": orderID}
		fact := Fact{
			Topic: "alert.dispute_opened", Key: "dispute:" + d.ID, SubscriptionID: subscriptionID, UserID: userID, Boundary: opened, Payload: detail,
		}
		if err := queueFacts(batch, now, []Fact{fact}); err != nil {
			return err
		}
		entry := Audit{Actor: ActorStripe, Action: "dispute_" + d.Status, SubjectType: "payment", SubjectID: d.PaymentID, Detail: detail}
		if err := queueAudit(batch, now, []Audit{entry}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("keeping dispute %s: %w", d.ID, err)
	}
	return nil
}

// ifAny takes the absence of a row for nothing known.
func ifAny(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// markDisputed works the mark out from all disputes of the subscription, so that it is the same in any order of their events.
const markDisputed = `UPDATE subscriptions s SET disputed_at = d.since, version = s.version + 1, updated_at = now()
FROM (SELECT min(d.opened_at) AS since FROM payments p JOIN disputes d ON d.payment_id = p.external_id
	WHERE p.subscription_id = $1 AND d.status NOT IN ('won', 'warning_closed', 'prevented')) d
WHERE s.external_id = $1 AND s.disputed_at IS DISTINCT FROM d.since`

// MarkDisputed sets or clears since when a payment of a subscription is disputed.
func (s *Store) MarkDisputed(ctx context.Context, externalID string) error {
	if _, err := s.pool.Exec(ctx, markDisputed, externalID); err != nil {
		return fmt.Errorf("marking %s as disputed: %w", externalID, err)
	}
	return nil
}
