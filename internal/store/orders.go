package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/order"
)

// orderColumns are the columns of orderRow, in its order.
const orderColumns = `o.id, o.user_id, o.plan_key, o.status, o.amount, o.currency, o.late_payment, extract(epoch FROM o.duration)::float8 AS duration,
	o.expires_at, o.paid_at, o.finished_at, o.provider_session_id, o.checkout_url, o.subscription_id, o.reason, o.attempts, o.next_attempt_at,
	o.asked_at, o.unanswered_since, o.not_found, o.not_found_since, o.last_error, o.leased_until, o.lease_owner, o.version, o.created_at, o.updated_at`

type orderRow struct {
	ID                string
	UserID            string
	PlanKey           string
	Status            string
	Amount            int64
	Currency          string
	LatePayment       string
	Duration          *float64
	ExpiresAt         pgtype.Timestamptz
	PaidAt            pgtype.Timestamptz
	FinishedAt        pgtype.Timestamptz
	ProviderSessionID *string
	CheckoutURL       *string `db:"checkout_url"`
	SubscriptionID    *string
	Reason            *string
	Attempts          int
	NextAttemptAt     pgtype.Timestamptz
	AskedAt           pgtype.Timestamptz
	UnansweredSince   pgtype.Timestamptz
	NotFound          int
	NotFoundSince     pgtype.Timestamptz
	LastError         *string
	LeasedUntil       pgtype.Timestamptz
	LeaseOwner        *string
	Version           int64
	CreatedAt         pgtype.Timestamptz
	UpdatedAt         pgtype.Timestamptz
}

func (r orderRow) domain() order.Order {
	o := order.Order{
		ID: r.ID, UserID: r.UserID, PlanKey: r.PlanKey, Status: order.Status(r.Status), Amount: r.Amount, Currency: r.Currency,
		LatePayment: order.Policy(r.LatePayment), ExpiresAt: instant(r.ExpiresAt), PaidAt: instant(r.PaidAt), FinishedAt: instant(r.FinishedAt),
		SessionID: value(r.ProviderSessionID), CheckoutURL: value(r.CheckoutURL), SubscriptionID: value(r.SubscriptionID), Reason: value(r.Reason),
		Attempts: r.Attempts, NextAttemptAt: instant(r.NextAttemptAt), AskedAt: instant(r.AskedAt), UnansweredSince: instant(r.UnansweredSince),
		NotFound: r.NotFound, NotFoundSince: instant(r.NotFoundSince), LastError: value(r.LastError), LeasedUntil: instant(r.LeasedUntil),
		LeaseOwner: value(r.LeaseOwner), Version: r.Version, CreatedAt: instant(r.CreatedAt), UpdatedAt: instant(r.UpdatedAt),
	}
	if r.Duration != nil {
		o.Duration = seconds(*r.Duration)
	}
	return o
}

func collectOrders(rows pgx.Rows, err error) ([]order.Order, error) {
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[orderRow])
	if err != nil {
		return nil, err
	}
	orders := make([]order.Order, len(list))
	for i, r := range list {
		orders[i] = r.domain()
	}
	return orders, nil
}

const orderByID = `SELECT ` + orderColumns + ` FROM payment_orders o WHERE o.id = $1`

// Order is the one with this id, or ErrNotFound.
func (s *Store) Order(ctx context.Context, id string) (order.Order, error) {
	list, err := collectOrders(s.pool.Query(ctx, orderByID, id))
	if err != nil {
		return order.Order{}, fmt.Errorf("reading order %s: %w", id, err)
	}
	if len(list) == 0 {
		return order.Order{}, ErrNotFound
	}
	return list[0], nil
}

const orderBySession = `SELECT ` + orderColumns + ` FROM payment_orders o WHERE o.provider_session_id = $1`

// OrderOfSession is the order of a checkout session, or ErrNotFound.
func (s *Store) OrderOfSession(ctx context.Context, sessionID string) (order.Order, error) {
	list, err := collectOrders(s.pool.Query(ctx, orderBySession, sessionID))
	if err != nil {
		return order.Order{}, fmt.Errorf("reading the order of a checkout: %w", err)
	}
	if len(list) == 0 {
		return order.Order{}, ErrNotFound
	}
	return list[0], nil
}

const orderOfPayment = `SELECT order_id FROM payments WHERE provider = 'stripe' AND external_id = $1 AND order_id IS NOT NULL`

// OrderOfPayment is the id of the order that a payment intent was captured for, or ErrNotFound.
func (s *Store) OrderOfPayment(ctx context.Context, paymentID string) (string, error) {
	var id string
	err := notFound(s.pool.QueryRow(ctx, orderOfPayment, paymentID).Scan(&id))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return "", fmt.Errorf("reading the order of a payment: %w", err)
	}
	return id, err
}

// OrderFilter narrows a list. Empty fields do not narrow.
type OrderFilter struct {
	UserID string
	Status string
}

// Orders is one page of at most limit orders whose ids come after the given one.
func (s *Store) Orders(ctx context.Context, f OrderFilter, after string, limit int) ([]order.Order, error) {
	query := strings.Builder{}
	query.WriteString(`SELECT ` + orderColumns + ` FROM payment_orders o WHERE true`)
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	if f.UserID != "" {
		query.WriteString(` AND o.user_id = ` + arg(f.UserID))
	}
	if f.Status != "" {
		query.WriteString(` AND o.status = ` + arg(f.Status))
	}
	if after != "" {
		query.WriteString(` AND o.id > ` + arg(after))
	}
	query.WriteString(` ORDER BY o.id LIMIT ` + arg(limit))
	list, err := collectOrders(s.pool.Query(ctx, query.String(), args...))
	if err != nil {
		return nil, fmt.Errorf("listing orders: %w", err)
	}
	return list, nil
}

// insertOrder: the first question comes a minute after the order, or with its deadline where that is earlier. An order that is
// there already stays as it is.
const insertOrder = `INSERT INTO payment_orders (id, user_id, plan_key, amount, currency, late_payment, duration, expires_at, next_attempt_at, created_at, updated_at)
SELECT $1, $2, $3, $4, $5, $6, $7::interval, now() + $8::interval, now() + LEAST($8::interval, interval '1 minute'), now(), now()
ON CONFLICT (id) DO NOTHING`

// CreateOrder writes a new order that is pending and has no checkout yet, and its entry of the audit log. Where there is one of
// this id, that one is returned. ErrNoPlan when its plan does not exist.
func (s *Store) CreateOrder(ctx context.Context, in order.New) (order.Order, error) {
	id := in.ID
	if id == "" {
		id = NewID()
	}
	var duration *time.Duration
	if in.Duration > 0 {
		duration = &in.Duration
	}
	var written order.Order
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, insertOrder, id, in.UserID, in.PlanKey, in.Amount, in.Currency, string(in.LatePayment), duration, in.ExpiresIn)
		if err != nil {
			return err
		}
		list, err := collectOrders(tx.Query(ctx, orderByID, id))
		if err != nil {
			return err
		}
		written = list[0]
		if tag.RowsAffected() == 0 {
			return nil
		}
		batch := &pgx.Batch{}
		made := Audit{Actor: in.Actor, Action: "order_created", SubjectType: "order", SubjectID: id, Detail: orderDetail{
			To: string(written.Status), Amount: written.Amount, Currency: written.Currency,
		}}
		if err := queueAudit(batch, written.CreatedAt, []Audit{made}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if sqlState(err) == codeForeignKeyViolation {
		return order.Order{}, ErrNoPlan
	}
	if err != nil {
		return order.Order{}, fmt.Errorf("creating an order: %w", err)
	}
	return written, nil
}

// attachCheckout: the first checkout of an order stays its checkout.
const attachCheckout = `UPDATE payment_orders SET provider_session_id = coalesce(provider_session_id, $2),
	checkout_url = CASE WHEN provider_session_id IS NULL OR provider_session_id = $2 THEN coalesce($3, checkout_url) ELSE checkout_url END,
	version = version + 1, updated_at = now()
WHERE id = $1`

// AttachCheckout keeps which checkout an order has at the provider.
func (s *Store) AttachCheckout(ctx context.Context, id, sessionID, url string) (order.Order, error) {
	if _, err := s.pool.Exec(ctx, attachCheckout, id, sessionID, text(url)); err != nil {
		return order.Order{}, fmt.Errorf("keeping the checkout of order %s: %w", id, err)
	}
	return s.Order(ctx, id)
}

const paymentsOfOrder = `SELECT external_id, charge_id, customer_id, amount, refunded_amount, currency, captured_at, state, reason FROM payments
WHERE order_id = $1 AND captured_at IS NOT NULL ORDER BY captured_at, external_id`

type orderPaymentRow struct {
	ExternalID     string
	ChargeID       *string
	CustomerID     *string
	Amount         int64
	RefundedAmount int64
	Currency       string
	CapturedAt     pgtype.Timestamptz
	State          *string
	Reason         *string
}

func (r orderPaymentRow) domain() order.Payment {
	return order.Payment{
		ID: r.ExternalID, ChargeID: value(r.ChargeID), CustomerID: value(r.CustomerID), Amount: r.Amount, Refunded: r.RefundedAmount,
		Currency: r.Currency, CapturedAt: instant(r.CapturedAt), State: order.PaymentState(value(r.State)), Reason: value(r.Reason),
	}
}

func collectOrderPayments(rows pgx.Rows, err error) ([]order.Payment, error) {
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[orderPaymentRow])
	if err != nil {
		return nil, err
	}
	payments := make([]order.Payment, len(list))
	for i, r := range list {
		payments[i] = r.domain()
	}
	return payments, nil
}

// OrderPayments are the captured payments of an order that are known here, the earliest first.
func (s *Store) OrderPayments(ctx context.Context, orderID string) ([]order.Payment, error) {
	list, err := collectOrderPayments(s.pool.Query(ctx, paymentsOfOrder, orderID))
	if err != nil {
		return nil, fmt.Errorf("reading the payments of order %s: %w", orderID, err)
	}
	return list, nil
}

// unsettledMoney reads the two small indexes of what is not settled: the other states are fulfilled, refunded and review.
const unsettledMoney = `SELECT (SELECT count(*) FROM payments WHERE order_id IS NOT NULL AND captured_at IS NOT NULL AND state IS NULL)
	+ (SELECT count(*) FROM payments WHERE order_id IS NOT NULL AND captured_at IS NOT NULL AND state = 'refunding')`

// UnsettledMoney counts the payments of orders that were captured and are neither fulfilled nor refunded nor under review. At
// rest it is 0, whatever was killed or lost before; while an order is being fulfilled or refunded its payment counts.
func (s *Store) UnsettledMoney(ctx context.Context) (int, error) {
	var n int
	if err := s.pool.QueryRow(ctx, unsettledMoney).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting unsettled money: %w", err)
	}
	return n, nil
}
