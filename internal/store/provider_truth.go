package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// Truth is what is known of a subscription at the provider without an event of its own: the answer to a fetch or to an
// action of ours.
type Truth struct {
	Provider subscription.Provider
	Asked    time.Time // the second in which the call began, by the provider's clock
	// Began is when the call began by our clock; zero when that is not known.
	Began time.Time
	// Version is that of the row before the call began; 0 when it is not known or there was no row. While the row has it, the answer is newer
	// than all that the row knows, whatever the clocks say.
	Version int64
	// CustomerDeleted: the provider did not answer. Its customer was deleted at Asked, and that ends its subscriptions.
	CustomerDeleted bool
	// RefundedUntil: the provider cannot be asked. The period that ends here was paid back at Asked, and that ends the
	// subscription unless a later period has begun.
	RefundedUntil time.Time
	Actor, Note   string
	Audit         *Audit // is written with the change; its subject is our row
}

// follows reports whether it is no answer, but follows from an event about something else.
func (t Truth) follows() bool { return t.CustomerDeleted || !t.RefundedUntil.IsZero() }

func (t Truth) news(now time.Time) subscription.News {
	return subscription.News{Created: t.Asked, Received: now, Fetched: !t.follows(), Deleted: t.follows()}
}

// began is when the call began by our clock, as far as that is known.
func (t Truth) began(now time.Time) time.Time {
	const apart = 10 * time.Minute // clocks that are further apart tell nothing about each other
	switch {
	case !t.Began.IsZero():
		return t.Began
	case t.Asked.Before(now) && now.Sub(t.Asked) < apart:
		return t.Asked
	}
	return now
}

const insertTruth = `INSERT INTO provider_truths (id, external_id, said_at, asked_at, fetched, object, refunded_until)
VALUES ($1, $2, $3, $4, $5, $6, $7)`

// trimTruths drops what is too old to be folded anew; see refoldable.
const trimTruths = `DELETE FROM provider_truths WHERE external_id = $1 AND asked_at < $2`

// queueTruth keeps the truth with what was said before.
func queueTruth(batch *pgx.Batch, t Truth, now time.Time) error {
	object, err := json.Marshal(t.Provider)
	if err != nil {
		return fmt.Errorf("keeping what the provider said of %s: %w", t.Provider.ExternalID, err)
	}
	batch.Queue(insertTruth, NewID(), t.Provider.ExternalID, timestamptz(t.Asked), timestamptz(t.began(now)), !t.follows(), object,
		timestamptz(t.RefundedUntil))
	batch.Queue(trimTruths, t.Provider.ExternalID, timestamptz(now.Add(-refoldable)))
	return nil
}

// ApplyTruth applies what the provider answered to a fetch or an action of ours, in a transaction of its own, with its
// history. It returns the row as it is then, and why nothing was changed: SkipStale when the row holds news that came after the
// question; the row is then marked for reconciliation.
// The zero Subscription when there is no row and none was made.
func (s *Store) ApplyTruth(ctx context.Context, t Truth, leeway time.Duration) (subscription.Subscription, subscription.Skip, error) {
	var after subscription.Subscription
	var skip subscription.Skip
	err := s.againOnConflict(ctx, func(tx pgx.Tx) error {
		var err error
		after, skip, err = applyTruth(ctx, tx, t, leeway)
		if err != nil || after.ID == "" || skip == subscription.SkipStale { // the caller asks again
			return err
		}
		return finishClaim(ctx, tx, after)
	})
	if err != nil {
		return after, skip, fmt.Errorf("applying what the provider says of %s: %w", t.Provider.ExternalID, err)
	}
	return after, skip, nil
}

// againOnConflict runs a transaction, and again where others wrote the same rows meanwhile.
func (s *Store) againOnConflict(ctx context.Context, do func(pgx.Tx) error) error {
	const tries = 5
	for try := 1; ; try++ {
		err := pgx.BeginFunc(ctx, s.pool, do)
		if err == nil || try == tries || (!again(err) && !errors.Is(err, ErrConflict)) {
			return err
		}
	}
}

func applyTruth(ctx context.Context, tx pgx.Tx, t Truth, leeway time.Duration) (subscription.Subscription, subscription.Skip, error) {
	key := t.Provider.ExternalID
	have := newKnown()
	batch := &pgx.Batch{}
	have.lockRows(batch, []string{key})
	have.readPlans(batch, t.Provider.PriceIDs)
	have.readOwners(batch, []string{t.Provider.CustomerID}, []string{key})
	batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&have.now) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return subscription.Subscription{}, subscription.SkipNone, err
	}
	have.now = have.now.UTC()
	folded := fold{have: have, leeway: leeway, writes: map[string]*write{}, actor: t.Actor, note: t.Note}
	var current *subscription.Subscription
	row, ok := have.rows[key]
	if ok {
		current = &row
	}
	var outcome subscription.Outcome
	p := have.owned(t.Provider)
	switch {
	case t.CustomerDeleted && current != nil && row.Status == subscription.Canceled:
		outcome = subscription.Outcome{Skip: subscription.SkipStale}
	case t.CustomerDeleted: // nothing of a deleted customer's goes on, whatever was heard since
		t.Provider.PeriodEnd, p.PeriodEnd = row.PeriodEnd, row.PeriodEnd
		news := t.news(have.now)
		news.Fetched = true
		outcome = subscription.Apply(current, p, news, nil, leeway)
		outcome.Mark = true
	case !t.RefundedUntil.IsZero() && (current == nil || row.Status == subscription.Canceled || t.RefundedUntil.Before(row.PeriodEnd)):
		outcome = subscription.Outcome{Skip: subscription.SkipStale}
	case !t.RefundedUntil.IsZero():
		outcome = subscription.Refunded(row, t.Asked, have.now, leeway)
	case current != nil && row.Version != t.Version && row.Overtaken(t.Asked, have.now):
		outcome = subscription.Outcome{Skip: subscription.SkipStale, Mark: true}
	default:
		outcome = subscription.Apply(current, p, t.news(have.now), have.plan(p), leeway)
	}
	folded.take(key, current, p, outcome)
	if err := writeSubscriptions(ctx, tx, folded.list(), have.now); err != nil {
		return row, outcome.Skip, err
	}
	after := &pgx.Batch{}
	if outcome.Skip == subscription.SkipNone {
		if err := queueTruth(after, t, have.now); err != nil {
			return row, outcome.Skip, err
		}
	}
	if t.Audit != nil && folded.writes[key] != nil && outcome.Skip == subscription.SkipNone {
		entry := *t.Audit
		entry.SubjectType, entry.SubjectID = "subscription", folded.writes[key].next.ID
		if err := queueAudit(after, have.now, []Audit{entry}); err != nil {
			return row, outcome.Skip, err
		}
	}
	folded.queue(after)
	if after.Len() > 0 {
		if err := tx.SendBatch(ctx, after).Close(); err != nil {
			return row, outcome.Skip, err
		}
	}
	if len(folded.writes) == 0 {
		return row, outcome.Skip, nil
	}
	written, err := collectSubscriptions(tx.Query(ctx, subscriptionsByExternalID, []string{key}))
	if err != nil {
		return row, outcome.Skip, err
	}
	return written[0], outcome.Skip, nil
}

const subscriptionsByExternalID = `SELECT ` + subscriptionColumns + ` FROM subscriptions s WHERE s.external_id = ANY ($1::text[]) ORDER BY s.id`

// ProviderSubscriptions are our rows of the provider's subscriptions with these ids, by id. What has no row is missing.
func (s *Store) ProviderSubscriptions(ctx context.Context, externalIDs []string) (map[string]subscription.Subscription, error) {
	list, err := collectSubscriptions(s.pool.Query(ctx, subscriptionsByExternalID, externalIDs))
	if err != nil {
		return nil, fmt.Errorf("reading subscriptions of the provider: %w", err)
	}
	rows := make(map[string]subscription.Subscription, len(list))
	for _, row := range list {
		rows[row.ExternalID] = row
	}
	return rows, nil
}

const subscriptionsOfCustomer = `SELECT ` + subscriptionColumns + ` FROM subscriptions s
WHERE s.provider_customer_id = $1 AND s.provider = 'stripe' AND s.status <> 'canceled' ORDER BY s.id`

// CustomersSubscriptions are the subscriptions of a Stripe customer that are not canceled.
func (s *Store) CustomersSubscriptions(ctx context.Context, customerID string) ([]subscription.Subscription, error) {
	list, err := collectSubscriptions(s.pool.Query(ctx, subscriptionsOfCustomer, customerID))
	if err != nil {
		return nil, fmt.Errorf("reading the subscriptions of customer %s: %w", customerID, err)
	}
	return list, nil
}

const markForReconcile = `UPDATE subscriptions SET needs_reconcile = true, version = version + 1, updated_at = now()
WHERE external_id = $1 AND NOT needs_reconcile`

// MarkForReconcile asks for the provider to be asked about a subscription at the next reconciliation. Without a row it does nothing.
func (s *Store) MarkForReconcile(ctx context.Context, externalID string) error {
	if _, err := s.pool.Exec(ctx, markForReconcile, externalID); err != nil {
		return fmt.Errorf("marking %s for reconciliation: %w", externalID, err)
	}
	return nil
}

// truthRow is a kept truth.
type truthRow struct {
	SaidAt  pgtype.Timestamptz
	AskedAt pgtype.Timestamptz
	Fetched bool
	Object  []byte

	RefundedUntil pgtype.Timestamptz
}

const truthsOf = `SELECT said_at, asked_at, fetched, object, refunded_until FROM provider_truths WHERE external_id = $1 ORDER BY asked_at, id LIMIT $2`

func (r truthRow) observation() (subscription.Observation, error) {
	o := subscription.Observation{Applied: true, RefundedUntil: instant(r.RefundedUntil), News: subscription.News{
		Created: instant(r.SaidAt), Received: instant(r.AskedAt), Fetched: r.Fetched, Deleted: !r.Fetched,
	}}
	err := json.Unmarshal(r.Object, &o.Provider)
	return o, err
}
