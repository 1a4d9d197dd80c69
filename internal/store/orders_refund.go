package store

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/order"
)

// OrderRefund is a refund of a payment of an order, as the provider tells it.
type OrderRefund struct {
	ID        string
	PaymentID string
	ChargeID  string
	Status    string // pending, requires_action, succeeded, failed or canceled
	Amount    int64  // minor units of Currency
	Currency  string
	Created   time.Time
}

const upsertRefund = `INSERT INTO refunds (external_id, payment_id, charge_id, amount, currency, status, refunded_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)
ON CONFLICT (provider, external_id) DO UPDATE SET payment_id = coalesce(refunds.payment_id, excluded.payment_id),
	charge_id = coalesce(refunds.charge_id, excluded.charge_id), amount = excluded.amount, status = excluded.status, updated_at = excluded.updated_at`

// givenBack is the money of a payment that is given back, or on its way, and what of it a bank took by a dispute that was lost.
const givenBack = `SELECT coalesce((SELECT sum(amount) FROM refunds WHERE payment_id = $1 AND status NOT IN ('failed', 'canceled')), 0)::bigint,
	coalesce((SELECT sum(amount) FROM disputes WHERE payment_id = $1 AND status = 'lost'), 0)::bigint`

// RefundsHeard takes refunds of one payment of an order, and counts the disputes of it that were lost. Once it is given back in full the payment is refunded, and what the
// order gave is taken back as far as its plan says so; what was refunded and came back goes to review. Hearing the same twice
// changes nothing the second time.
func (s *Store) RefundsHeard(ctx context.Context, orderID, paymentID string, refunds []OrderRefund, actor string) (order.Order, error) {
	var after order.Order
	err := s.againOnConflict(ctx, func(tx pgx.Tx) error {
		l, err := readLocked(ctx, tx, orderID)
		if err != nil {
			return err
		}
		batch := &pgx.Batch{}
		for _, r := range refunds {
			batch.Queue(upsertRefund, r.ID, text(r.PaymentID), text(r.ChargeID), r.Amount, r.Currency, r.Status, timestamptz(r.Created), timestamptz(l.now))
		}
		var given, lost int64
		batch.Queue(givenBack, paymentID).QueryRow(func(row pgx.Row) error { return row.Scan(&given, &lost) })
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		out, takeBack := refunded(l, paymentID, given, lost)
		if takeBack {
			if err := l.takeBack(ctx, tx, actor); err != nil {
				return err
			}
		}
		after, err = l.write(ctx, tx, out, actor)
		failpoint.Hit("order_refund_before_commit")
		return err
	})
	return after, orderError(orderID, err)
}

// refunded says what follows from the sums of a payment that were given back and that were lost.
func refunded(l lockedOrder, paymentID string, given, lost int64) (out order.Outcome, takeBack bool) {
	payments := slices.Clone(l.payments)
	out = order.Outcome{Order: l.order, Payments: payments}
	i := slices.IndexFunc(payments, func(p order.Payment) bool { return p.ID == paymentID })
	if i < 0 {
		return out, false
	}
	given += lost
	payments[i].Refunded = given
	switch p := payments[i]; {
	case given >= p.Amount && p.State != order.PaymentRefunded:
		reason := p.Reason
		switch {
		case lost > 0:
			reason = order.ReasonDisputed
		case p.State != order.PaymentRefunding:
			reason = order.ReasonAtProvider
		}
		return l.order.GaveBack(payments, paymentID, reason, l.now)
	case given < p.Amount && p.State == order.PaymentRefunded:
		return l.order.NotGivenBack(payments, paymentID, "a refund came back", l.now), false
	}
	return out, false
}
