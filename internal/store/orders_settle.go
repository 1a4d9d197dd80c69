package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/order"
	"termkeeper/internal/subscription"
)

const lockOrder = orderByID + ` FOR UPDATE`

// lockedOrder is an order under its lock, with its payments and the database's clock after the lock was taken.
type lockedOrder struct {
	order    order.Order
	payments []order.Payment
	now      time.Time
}

func readLocked(ctx context.Context, tx pgx.Tx, id string) (lockedOrder, error) {
	var l lockedOrder
	list, err := collectOrders(tx.Query(ctx, lockOrder, id))
	if err != nil {
		return l, err
	}
	if len(list) == 0 {
		return l, ErrNotFound
	}
	l.order = list[0]
	if l.payments, err = collectOrderPayments(tx.Query(ctx, paymentsOfOrder, id)); err != nil {
		return l, err
	}
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&l.now); err != nil {
		return l, err
	}
	l.now = l.now.UTC().Truncate(time.Microsecond)
	return l, nil
}

// ChangeOrder locks the order, works the change out by what is known of it, and writes it with its payments, its facts and its
// entries of the audit log. The instant handed to change is the database's clock after the lock was taken. An outcome that is
// no different writes nothing. ErrNotFound when there is none; an error of change comes back as it is.
func (s *Store) ChangeOrder(ctx context.Context, id, actor string,
	change func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error),
) (order.Order, error) {
	var after order.Order
	err := s.againOnConflict(ctx, func(tx pgx.Tx) error {
		l, err := readLocked(ctx, tx, id)
		if err != nil {
			return err
		}
		out, err := change(l.order, slices.Clone(l.payments), l.now)
		if err != nil {
			return err
		}
		after, err = l.write(ctx, tx, out, actor)
		return err
	})
	return after, orderError(id, err)
}

// orderError leaves alone what callers tell apart.
func orderError(id string, err error) error {
	switch {
	case err == nil, errors.Is(err, ErrNotFound), errors.Is(err, ErrConflict), errors.Is(err, order.ErrConflict):
		return err
	default:
		return fmt.Errorf("changing order %s: %w", id, err)
	}
}

const updateOrder = `UPDATE payment_orders SET status = $3, paid_at = $4, finished_at = $5, subscription_id = $6, reason = $7, attempts = $8,
	next_attempt_at = $9, asked_at = $10, unanswered_since = $11, not_found = $12, not_found_since = $13, last_error = $14, leased_until = $15,
	lease_owner = $16, version = version + 1, updated_at = $17
WHERE id = $1 AND version = $2`

// upsertPayment: a payment intent belongs to one order for good.
const upsertPayment = `INSERT INTO payments AS p (id, external_id, order_id, charge_id, customer_id, amount, currency, captured_at, refunded_amount, state, reason,
	created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12)
ON CONFLICT (provider, external_id) DO UPDATE SET order_id = excluded.order_id, charge_id = coalesce(excluded.charge_id, p.charge_id),
	customer_id = coalesce(excluded.customer_id, p.customer_id), amount = excluded.amount, currency = excluded.currency,
	captured_at = coalesce(p.captured_at, excluded.captured_at), refunded_amount = excluded.refunded_amount, state = excluded.state,
	reason = excluded.reason, updated_at = excluded.updated_at
WHERE p.order_id IS NULL OR p.order_id = excluded.order_id`

// orderDetail is what the audit log keeps of an entry about an order.
type orderDetail struct {
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	PaymentID string `json:"payment_id,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

// orderFact is the payload of a fact about an order.
type orderFact struct {
	OrderID   string `json:"order_id"`
	Status    string `json:"status"`
	Plan      string `json:"plan"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	PaymentID string `json:"payment_id,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// write writes what is different. It returns the order as it is then.
func (l lockedOrder) write(ctx context.Context, tx pgx.Tx, out order.Outcome, actor string) (order.Order, error) {
	next := out.Order
	batch := &pgx.Batch{}
	if next != l.order {
		batch.Queue(updateOrder, next.ID, l.order.Version, string(next.Status), timestamptz(next.PaidAt), timestamptz(next.FinishedAt),
			text(next.SubscriptionID), text(next.Reason), next.Attempts, timestamptz(next.NextAttemptAt), timestamptz(next.AskedAt),
			timestamptz(next.UnansweredSince), next.NotFound, timestamptz(next.NotFoundSince), text(next.LastError), timestamptz(next.LeasedUntil),
			text(next.LeaseOwner), timestamptz(l.now)).Exec(one)
		next.Version++
		next.UpdatedAt = l.now
	}
	for _, p := range out.Payments {
		if slices.Contains(l.payments, p) {
			continue
		}
		batch.Queue(upsertPayment, NewID(), p.ID, next.ID, text(p.ChargeID), text(p.CustomerID), p.Amount, p.Currency, timestamptz(p.CapturedAt),
			p.Refunded, text(string(p.State)), text(p.Reason), timestamptz(l.now)).Exec(one)
	}
	if err := l.tell(batch, next, out, actor); err != nil {
		return next, err
	}
	if batch.Len() == 0 {
		return next, nil
	}
	return next, tx.SendBatch(ctx, batch).Close()
}

// one is for a statement that writes one row or finds that somebody else was faster.
func one(tag pgconn.CommandTag) error {
	if tag.RowsAffected() != 1 {
		return ErrConflict
	}
	return nil
}

func (l lockedOrder) tell(batch *pgx.Batch, next order.Order, out order.Outcome, actor string) error {
	var facts []Fact
	var audit []Audit
	for _, n := range out.Notes {
		amount, currency := next.Amount, next.Currency
		for _, p := range out.Payments {
			if p.ID == n.PaymentID {
				amount, currency = p.Amount, p.Currency
			}
		}
		if n.Action != "" {
			audit = append(audit, Audit{Actor: actor, Action: n.Action, SubjectType: "order", SubjectID: next.ID, Detail: orderDetail{
				From: string(l.order.Status), To: string(next.Status), PaymentID: n.PaymentID, Reason: n.Reason, Amount: amount, Currency: currency,
			}})
		}
		if n.Topic != "" {
			facts = append(facts, Fact{
				Topic: n.Topic, Key: "order:" + next.ID + ":" + n.Key, SubscriptionID: next.SubscriptionID, UserID: next.UserID, Kind: n.Reason,
				Payload: orderFact{
					OrderID: next.ID, Status: string(next.Status), Plan: next.PlanKey, Amount: amount, Currency: currency, PaymentID: n.PaymentID, Reason: n.Reason,
				},
			})
		}
	}
	if err := queueFacts(batch, l.now, facts); err != nil {
		return err
	}
	return queueAudit(batch, l.now, audit)
}

// lockPurchase lets one order at a time extend, or make, a user's subscription of a plan.
const lockPurchase = `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`

// ownSubscription is the one that an order extends: not a provider's, not canceled; a live one before an ended one.
const ownSubscription = `SELECT ` + subscriptionColumns + ` FROM subscriptions s
WHERE s.user_id = $1 AND s.plan_key = $2 AND s.provider IS NULL AND s.status <> 'canceled'
ORDER BY s.status <> 'expired' DESC, s.access_until DESC, s.id LIMIT 1 FOR UPDATE`

const fulfilmentOf = `SELECT subscription_id, from_at, until_at, taken_back_at FROM order_fulfilments WHERE order_id = $1`

type fulfilment struct {
	SubscriptionID string
	FromAt         pgtype.Timestamptz
	UntilAt        pgtype.Timestamptz
	TakenBackAt    pgtype.Timestamptz
}

// standing reports whether what was given is still given.
func (f *fulfilment) standing() bool { return f != nil && !f.TakenBackAt.Valid }

func readFulfilment(ctx context.Context, tx pgx.Tx, orderID string) (*fulfilment, error) {
	rows, err := tx.Query(ctx, fulfilmentOf, orderID)
	if err != nil {
		return nil, err
	}
	f, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[fulfilment])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return f, err
}

// insertFulfilment gives once: only what was taken back can be given again.
const insertFulfilment = `INSERT INTO order_fulfilments AS f (order_id, subscription_id, from_at, until_at, at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (order_id) DO UPDATE SET subscription_id = excluded.subscription_id, from_at = excluded.from_at, until_at = excluded.until_at,
	at = excluded.at, taken_back_at = NULL
WHERE f.taken_back_at IS NOT NULL`

// FulfilOrder gives what a claimed order paid for, in one transaction: the ledger row, the subscription with its history and its
// facts, the payment and the order. ErrConflict when the claim is not ours any more. An order whose subscription cannot take
// it goes to review.
func (s *Store) FulfilOrder(ctx context.Context, claimed order.Order, actor string) (order.Order, error) {
	var after order.Order
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		l, err := readLocked(ctx, tx, claimed.ID)
		if err != nil {
			return err
		}
		if l.order.Status != order.Fulfilling || l.order.LeaseOwner != claimed.LeaseOwner {
			return ErrConflict
		}
		out, err := l.fulfil(ctx, tx, actor)
		if err != nil {
			return err
		}
		after, err = l.write(ctx, tx, out, actor)
		failpoint.Hit("order_fulfil_before_commit")
		return err
	})
	return after, orderError(claimed.ID, err)
}

func (l *lockedOrder) fulfil(ctx context.Context, tx pgx.Tx, actor string) (order.Outcome, error) {
	before, err := readFulfilment(ctx, tx, l.order.ID)
	if err != nil {
		return order.Outcome{}, err
	}
	if before.standing() {
		return l.order.Fulfil(slices.Clone(l.payments), before.SubscriptionID, l.now)
	}
	o := l.order
	if _, err := tx.Exec(ctx, lockPurchase, "order:"+o.UserID+"\n"+o.PlanKey); err != nil {
		return order.Outcome{}, err
	}
	list, err := collectSubscriptions(tx.Query(ctx, ownSubscription, o.UserID, o.PlanKey))
	if err != nil {
		return order.Outcome{}, err
	}
	plans, err := collectPlans(tx.Query(ctx, planByKey, o.PlanKey))
	if err != nil {
		return order.Outcome{}, err
	}
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&l.now); err != nil {
		return order.Outcome{}, err
	}
	l.now = l.now.UTC().Truncate(time.Microsecond)
	by := o.Duration
	if by == 0 {
		by = plans[0].Duration
	}
	w, from, until, err := l.purchase(list, by, actor)
	if errors.Is(err, subscription.ErrConflict) {
		return o.Unfit(slices.Clone(l.payments), err.Error(), l.now), nil
	}
	if err != nil {
		return order.Outcome{}, err
	}
	tag, err := tx.Exec(ctx, insertFulfilment, o.ID, w.next.ID, timestamptz(from), timestamptz(until), timestamptz(l.now))
	if err == nil {
		err = one(tag)
	}
	if err != nil {
		return order.Outcome{}, err
	}
	if err := writeSubscriptions(ctx, tx, []write{w}, l.now); err != nil {
		return order.Outcome{}, err
	}
	return o.Fulfil(slices.Clone(l.payments), w.next.ID, l.now)
}

// purchase extends the subscription in the list, or makes one.
func (l *lockedOrder) purchase(list []subscription.Subscription, by time.Duration, actor string) (w write, from, until time.Time, err error) {
	w = write{actor: actor, note: "order " + l.order.ID}
	if len(list) > 0 {
		w.prev = &list[0]
		w.next, from, until, w.changes, err = list[0].Purchase(l.now, by)
		return w, from, until, err
	}
	made := subscription.Subscription{
		ID: NewID(), UserID: l.order.UserID, PlanKey: l.order.PlanKey, Status: subscription.Active, StartedAt: l.now, ExpiresAt: l.now,
	}
	w.next, from, until, _, err = made.Purchase(l.now, by)
	w.changes = []subscription.Change{{Type: subscription.EventCreated, Boundary: w.next.AccessUntil()}}
	return w, from, until, err
}

const takenBack = `UPDATE order_fulfilments SET taken_back_at = $2 WHERE order_id = $1 AND taken_back_at IS NULL`

const refundPolicyOf = `SELECT refund_policy FROM plans WHERE key = $1`

// takeBack takes the time back that an order gave and that lies ahead, where its plan says so.
func (l *lockedOrder) takeBack(ctx context.Context, tx pgx.Tx, actor string) error {
	given, err := readFulfilment(ctx, tx, l.order.ID)
	if err != nil || !given.standing() {
		return err
	}
	var policy string
	if err := tx.QueryRow(ctx, refundPolicyOf, l.order.PlanKey).Scan(&policy); err != nil {
		return err
	}
	if policy != "end" {
		return nil
	}
	list, err := collectSubscriptions(tx.Query(ctx, lockSubscription, given.SubscriptionID))
	if err != nil {
		return err
	}
	if len(list) > 0 {
		next, changes := list[0].TakeBack(l.now, instant(given.FromAt), instant(given.UntilAt))
		if next != list[0] {
			w := write{prev: &list[0], next: next, changes: changes, actor: actor, note: "refund of order " + l.order.ID}
			if err := writeSubscriptions(ctx, tx, []write{w}, l.now); err != nil {
				return err
			}
		}
	}
	_, err = tx.Exec(ctx, takenBack, l.order.ID, timestamptz(l.now))
	return err
}
