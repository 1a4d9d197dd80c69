package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// PaidInvoice is a paid invoice of a provider's subscription.
type PaidInvoice struct {
	ID             string
	SubscriptionID string // the provider's
	CustomerID     string
	PeriodStart    time.Time
	PeriodEnd      time.Time // zero where it charges for no period in advance
}

// SeenPayment is what was heard of a payment of a provider's subscription. Empty fields are unknown.
type SeenPayment struct {
	ID         string // of the payment intent, else of the charge
	InvoiceID  string
	CustomerID string
	ChargeID   string
	Amount     int64  // that was captured, in minor units of Currency
	Currency   string // upper case, ISO 4217
	CapturedAt time.Time
	// ChargeRefunded is what the charge says was given back of it, in minor units; 0 where it was not heard.
	ChargeRefunded int64
}

// lockInvoice lets one learn about an invoice at a time: who keeps an invoice and who keeps its payment would else miss each other.
const lockInvoice = `SELECT pg_advisory_xact_lock(hashtextextended('stripe_invoice:' || $1, 0))`

const insertInvoice = `INSERT INTO stripe_invoices (id, subscription_id, customer_id, period_start, period_end) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO NOTHING`

const linkPayments = `UPDATE payments p SET subscription_id = i.subscription_id, period_start = i.period_start, period_end = i.period_end,
	customer_id = coalesce(p.customer_id, i.customer_id), updated_at = now()
FROM stripe_invoices i WHERE i.id = $1 AND p.invoice_id = i.id AND p.subscription_id IS NULL AND p.order_id IS NULL`

// LearnInvoice keeps which subscription and period an invoice was for, once, and tells its payments.
func (s *Store) LearnInvoice(ctx context.Context, in PaidInvoice) error {
	batch := &pgx.Batch{} // a batch is one transaction, and one round trip
	batch.Queue(lockInvoice, in.ID)
	batch.Queue(insertInvoice, in.ID, in.SubscriptionID, text(in.CustomerID), timestamptz(in.PeriodStart), timestamptz(in.PeriodEnd))
	batch.Queue(linkPayments, in.ID)
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("keeping what invoice %s was for: %w", in.ID, err)
	}
	return nil
}

const invoiceByID = `SELECT subscription_id, coalesce(customer_id, ''), period_start, period_end FROM stripe_invoices WHERE id = $1`

// Invoice is what is known of an invoice, or ErrNotFound.
func (s *Store) Invoice(ctx context.Context, id string) (PaidInvoice, error) {
	in := PaidInvoice{ID: id}
	var start, end pgtype.Timestamptz
	if err := s.pool.QueryRow(ctx, invoiceByID, id).Scan(&in.SubscriptionID, &in.CustomerID, &start, &end); err != nil {
		return in, fmt.Errorf("reading invoice %s: %w", id, notFound(err))
	}
	in.PeriodStart, in.PeriodEnd = instant(start), instant(end)
	return in, nil
}

// keepPayment fills in what was not known. Payments of orders are not touched: they are settled elsewhere.
const keepPayment = `INSERT INTO payments AS p (id, external_id, invoice_id, customer_id, charge_id, amount, currency, captured_at, charge_refunded_amount,
	subscription_id, period_start, period_end)
SELECT $1, $2, $3, coalesce($4, i.customer_id), $5, $6, $7, $8, $9, i.subscription_id, i.period_start, i.period_end
FROM (SELECT 1) AS this LEFT JOIN stripe_invoices i ON i.id = $3
ON CONFLICT (provider, external_id) DO UPDATE SET invoice_id = coalesce(p.invoice_id, excluded.invoice_id),
	customer_id = coalesce(p.customer_id, excluded.customer_id), charge_id = coalesce(p.charge_id, excluded.charge_id),
	amount = CASE WHEN p.amount = 0 THEN excluded.amount ELSE p.amount END, captured_at = coalesce(p.captured_at, excluded.captured_at),
	charge_refunded_amount = greatest(p.charge_refunded_amount, excluded.charge_refunded_amount),
	subscription_id = coalesce(p.subscription_id, excluded.subscription_id), period_start = coalesce(p.period_start, excluded.period_start),
	period_end = coalesce(p.period_end, excluded.period_end), updated_at = now()
WHERE p.order_id IS NULL`

// LearnPayment keeps what was heard of a payment, with the subscription and the period of its invoice as soon as both are known.
func (s *Store) LearnPayment(ctx context.Context, p SeenPayment) error {
	batch := &pgx.Batch{}
	if p.InvoiceID != "" {
		batch.Queue(lockInvoice, p.InvoiceID)
	}
	batch.Queue(keepPayment, NewID(), p.ID, text(p.InvoiceID), text(p.CustomerID), text(p.ChargeID), p.Amount, p.Currency, timestamptz(p.CapturedAt), p.ChargeRefunded)
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("keeping payment %s: %w", p.ID, err)
	}
	return nil
}

// ProviderPayment is a payment with all that was taken back of it.
type ProviderPayment struct {
	ID             string
	OrderID        string // "" when it is none of an order
	SubscriptionID string // the provider's; "" when it is not known, or of none
	TakenBack      subscription.TakenBack
	Cause          string // id of the refund or the dispute that took the last of it; "" where only the charge told
}

type providerPaymentRow struct {
	ExternalID     string
	OrderID        *string
	SubscriptionID *string
	Amount         int64
	PeriodEnd      pgtype.Timestamptz
	ByCharge       int64
	Refunded       int64
	NotRefunded    int64
	Lost           int64
	LastAt         pgtype.Timestamptz
	Cause          *string
}

// paymentTakenBack finds a payment by its own id or that of its charge. An invoice may have been paid in several payments: they are
// counted together, or giving back the smallest would look like all of it. A refund that failed is still in what the charge said before.
const paymentTakenBack = `WITH this AS MATERIALIZED (
	SELECT p.external_id, p.order_id, p.subscription_id, p.invoice_id, p.period_end FROM payments p
	WHERE p.provider = 'stripe' AND (p.external_id = $1 OR p.charge_id = $2) ORDER BY p.external_id = $1 DESC LIMIT 1),
paid AS MATERIALIZED (
	SELECT p.external_id, p.amount, p.charge_refunded_amount FROM this JOIN payments p ON p.invoice_id = this.invoice_id AND p.provider = 'stripe'
	UNION SELECT p.external_id, p.amount, p.charge_refunded_amount FROM this JOIN payments p ON p.external_id = this.external_id AND p.provider = 'stripe')
SELECT this.external_id, this.order_id, this.subscription_id, this.period_end, m.amount, m.by_charge,
	coalesce(r.done, 0)::bigint AS refunded, coalesce(r.undone, 0)::bigint AS not_refunded, coalesce(d.lost, 0)::bigint AS lost, t.at AS last_at, t.id AS cause
FROM this
CROSS JOIN LATERAL (SELECT sum(amount)::bigint AS amount, sum(charge_refunded_amount)::bigint AS by_charge FROM paid) m
CROSS JOIN LATERAL (SELECT sum(r.amount) FILTER (WHERE r.status = 'succeeded') AS done, sum(r.amount) FILTER (WHERE r.status IN ('failed', 'canceled')) AS undone
	FROM paid JOIN refunds r ON r.payment_id = paid.external_id) r
CROSS JOIN LATERAL (SELECT sum(d.amount) AS lost FROM paid JOIN disputes d ON d.payment_id = paid.external_id WHERE d.status = 'lost') d
LEFT JOIN LATERAL (SELECT at, id FROM (
	SELECT r.refunded_at AS at, r.external_id AS id FROM paid JOIN refunds r ON r.payment_id = paid.external_id WHERE r.status = 'succeeded'
	UNION ALL SELECT d.closed_at, d.external_id FROM paid JOIN disputes d ON d.payment_id = paid.external_id WHERE d.status = 'lost') AS taken
	ORDER BY at DESC, id DESC LIMIT 1) t ON true`

// ProviderPayment is the payment with this id, else that of the charge, or ErrNotFound. What the charge said counts where the
// refunds themselves are not all known; said is when that was, and zero where they are. A charge counts refunds that are only on their way.
func (s *Store) ProviderPayment(ctx context.Context, id, chargeID string, said time.Time) (ProviderPayment, error) {
	rows, err := s.pool.Query(ctx, paymentTakenBack, id, text(chargeID))
	if err != nil {
		return ProviderPayment{}, fmt.Errorf("reading payment %s: %w", id, err)
	}
	r, err := pgx.CollectOneRow(rows, pgx.RowToStructByName[providerPaymentRow])
	if err != nil {
		return ProviderPayment{}, fmt.Errorf("reading payment %s: %w", id, notFound(err))
	}
	taken := subscription.TakenBack{Paid: r.Amount, PeriodEnd: instant(r.PeriodEnd), Amount: r.Refunded + r.Lost, At: instant(r.LastAt)}
	if byCharge := r.ByCharge - r.NotRefunded + r.Lost; !said.IsZero() && byCharge > taken.Amount {
		taken.Amount = byCharge
		if said.After(taken.At) {
			taken.At = said
		}
	}
	return ProviderPayment{
		ID: r.ExternalID, OrderID: value(r.OrderID), SubscriptionID: value(r.SubscriptionID), TakenBack: taken, Cause: value(r.Cause),
	}, nil
}
