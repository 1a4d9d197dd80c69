package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/subscription"
)

const noteOnce = `INSERT INTO audit_log (id, actor, action, subject_type, subject_id, detail)
SELECT $1, $2, $3, $4, $5, $6::jsonb WHERE NOT EXISTS (
	SELECT 1 FROM audit_log WHERE subject_type = $4 AND subject_id = $5 AND action = $3 AND detail = $6::jsonb)`

// NoteOnce writes an entry of the audit log unless there is one that says the same: for decisions to change nothing, which
// each event about the same money makes anew.
func (s *Store) NoteOnce(ctx context.Context, e Audit) error {
	detail, err := json.Marshal(e.Detail)
	if err != nil {
		return fmt.Errorf("writing the audit entry %s: %w", e.Action, err)
	}
	if _, err := s.pool.Exec(ctx, noteOnce, NewID(), e.Actor, e.Action, e.SubjectType, e.SubjectID, detail); err != nil {
		return fmt.Errorf("writing the audit entry %s: %w", e.Action, err)
	}
	return nil
}

// SeenRefund is a refund as the provider tells it.
type SeenRefund struct {
	ID        string
	PaymentID string // of the payment intent, else of the charge
	ChargeID  string
	Status    string // the provider's own word
	Amount    int64  // minor units of Currency
	Currency  string // upper case, ISO 4217
	Created   time.Time
}

// lockMoney lets one write what was taken back of a payment at a time.
const lockMoney = `SELECT pg_advisory_xact_lock(hashtextextended('stripe_payment:' || $1, 0))`

const knownRefunds = `SELECT external_id, status FROM refunds WHERE provider = 'stripe' AND external_id = ANY ($1::text[])`

const keepRefund = `INSERT INTO refunds AS r (external_id, payment_id, charge_id, amount, currency, status, refunded_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (provider, external_id) DO UPDATE SET status = excluded.status, amount = excluded.amount, payment_id = coalesce(r.payment_id, excluded.payment_id),
	charge_id = coalesce(r.charge_id, excluded.charge_id), updated_at = now()`

// sumRefunds works the sum out anew, so that nothing is added twice. Payments of orders are settled elsewhere.
const sumRefunds = `UPDATE payments p SET refunded_amount = r.amount, updated_at = now()
FROM (SELECT coalesce(sum(amount), 0)::bigint AS amount FROM refunds WHERE payment_id = $1 AND status = 'succeeded') r
WHERE p.provider = 'stripe' AND p.external_id = $1 AND p.order_id IS NULL AND p.refunded_amount <> r.amount`

// KeepRefunds keeps what was heard of refunds of one payment, each status of each once in the audit log. Of an event that is
// older than what is known nothing is kept; what the provider answered now always is.
func (s *Store) KeepRefunds(ctx context.Context, paymentID string, refunds []SeenRefund, answered bool) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		ids := make([]string, len(refunds))
		for i, r := range refunds {
			ids[i] = r.ID
		}
		known := map[string]string{}
		var now time.Time
		read := &pgx.Batch{}
		read.Queue(lockMoney, paymentID)
		read.Queue(knownRefunds, ids).Query(func(rows pgx.Rows) error {
			var id, status string
			_, err := pgx.ForEachRow(rows, []any{&id, &status}, func() error {
				known[id] = status
				return nil
			})
			return err
		})
		read.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		if err := tx.SendBatch(ctx, read).Close(); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		var entries []Audit
		for _, r := range refunds {
			have, exists := known[r.ID]
			if exists && (have == r.Status || (!answered && !subscription.RefundGoesOn(have, r.Status))) {
				continue
			}
			at := r.Created
			if at.IsZero() {
				at = now
			}
			batch.Queue(keepRefund, r.ID, paymentID, text(r.ChargeID), r.Amount, r.Currency, r.Status, at)
			entries = append(entries, Audit{Actor: ActorStripe, Action: "refund_" + r.Status, SubjectType: "payment", SubjectID: paymentID, Detail: map[string]any{
				"refund": r.ID, "amount": r.Amount, "currency": r.Currency,
			}})
		}
		if err := queueAudit(batch, now, entries); err != nil {
			return err
		}
		batch.Queue(sumRefunds, paymentID)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("keeping the refunds of %s: %w", paymentID, err)
	}
	return nil
}
