package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// write is one subscription to be written with its history. prev is nil for a new one.
type write struct {
	prev    *subscription.Subscription
	next    subscription.Subscription
	changes []subscription.Change
	actor   string
	note    string // an operator's reason
}

// subscriptionArrays are the columns of many subscriptions, one array each, in the order of the parameters below.
type subscriptionArrays struct {
	id, userID, planKey, status                      []string
	startedAt, expiresAt, leewayUntil, graceUntil    []pgtype.Timestamptz
	compUntil, heldAt, expiredAt                     []pgtype.Timestamptz
	cancelAtPeriodEnd                                []bool
	provider, externalID, providerStatus, customerID []*string
	nextPlanKey                                      []*string
	periodStart, periodEnd, truthAt, unpaidSince     []pgtype.Timestamptz
	needsReconcile                                   []bool
	version                                          []int64
}

func (a *subscriptionArrays) add(s subscription.Subscription, version int64) {
	a.id, a.userID = append(a.id, s.ID), append(a.userID, s.UserID)
	a.planKey, a.status = append(a.planKey, s.PlanKey), append(a.status, string(s.Status))
	a.startedAt, a.expiresAt = append(a.startedAt, timestamptz(s.StartedAt)), append(a.expiresAt, timestamptz(s.ExpiresAt))
	a.leewayUntil, a.graceUntil = append(a.leewayUntil, timestamptz(s.LeewayUntil)), append(a.graceUntil, timestamptz(s.GraceUntil))
	a.compUntil, a.heldAt = append(a.compUntil, timestamptz(s.CompUntil)), append(a.heldAt, timestamptz(s.HeldAt))
	a.expiredAt = append(a.expiredAt, timestamptz(s.ExpiredAt))
	a.cancelAtPeriodEnd = append(a.cancelAtPeriodEnd, s.CancelAtPeriodEnd)
	a.provider, a.externalID = append(a.provider, text(s.Provider)), append(a.externalID, text(s.ExternalID))
	a.providerStatus, a.customerID = append(a.providerStatus, text(s.ProviderStatus)), append(a.customerID, text(s.CustomerID))
	a.periodStart, a.periodEnd = append(a.periodStart, timestamptz(s.PeriodStart)), append(a.periodEnd, timestamptz(s.PeriodEnd))
	a.truthAt, a.unpaidSince = append(a.truthAt, timestamptz(s.TruthAt)), append(a.unpaidSince, timestamptz(s.UnpaidSince))
	a.needsReconcile = append(a.needsReconcile, s.NeedsReconcile)
	a.version, a.nextPlanKey = append(a.version, version), append(a.nextPlanKey, text(s.NextPlanKey))
}

func (a *subscriptionArrays) args(now time.Time) []any {
	return []any{
		a.id, a.userID, a.planKey, a.status, a.startedAt, a.expiresAt, a.leewayUntil, a.graceUntil, a.compUntil, a.heldAt, a.expiredAt,
		a.cancelAtPeriodEnd, a.provider, a.externalID, a.providerStatus, a.customerID, a.periodStart, a.periodEnd, a.truthAt, a.unpaidSince,
		a.needsReconcile, a.version, now, a.nextPlanKey,
	}
}

const subscriptionsUnnested = `unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
	$8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::boolean[], $13::text[], $14::text[], $15::text[],
	$16::text[], $17::timestamptz[], $18::timestamptz[], $19::timestamptz[], $20::timestamptz[], $21::boolean[], $22::bigint[], $24::text[])
	AS u(id, user_id, plan_key, status, started_at, expires_at, leeway_until, grace_period_ends_at, comp_until, held_at, expired_at,
	cancel_at_period_end, provider, external_id, provider_status, provider_customer_id, provider_period_start, provider_period_end,
	truth_at, unpaid_since, needs_reconcile, version, next_plan_key)`

// insertSubscriptions: a row of the same external id that another process made meanwhile is left alone, and the missing
// row in the count tells the caller.
const insertSubscriptions = `INSERT INTO subscriptions (id, user_id, plan_key, status, started_at, expires_at, leeway_until, grace_period_ends_at,
	comp_until, held_at, expired_at, cancel_at_period_end, provider, external_id, provider_status, provider_customer_id,
	provider_period_start, provider_period_end, truth_at, unpaid_since, needs_reconcile, version, next_plan_key, created_at, updated_at)
SELECT u.*, $23::timestamptz, $23::timestamptz FROM ` + subscriptionsUnnested + `
ON CONFLICT (external_id) DO NOTHING`

// updateSubscriptions writes by compare-and-set on the version that was read.
const updateSubscriptions = `UPDATE subscriptions s SET user_id = u.user_id, plan_key = u.plan_key, status = u.status, started_at = u.started_at,
	expires_at = u.expires_at, leeway_until = u.leeway_until, grace_period_ends_at = u.grace_period_ends_at, comp_until = u.comp_until,
	held_at = u.held_at, expired_at = u.expired_at, cancel_at_period_end = u.cancel_at_period_end, provider_status = u.provider_status,
	provider_customer_id = u.provider_customer_id, provider_period_start = u.provider_period_start, provider_period_end = u.provider_period_end,
	truth_at = u.truth_at, unpaid_since = u.unpaid_since, needs_reconcile = u.needs_reconcile, version = s.version + 1, next_plan_key = u.next_plan_key,
	updated_at = $23::timestamptz
FROM ` + subscriptionsUnnested + `
WHERE s.id = u.id AND s.version = u.version`

// insertHistory: what may happen once per boundary is kept once.
const insertHistory = `INSERT INTO subscription_events (id, subscription_id, event_type, boundary, at, actor, detail)
SELECT u.id, u.subscription_id, u.event_type, u.boundary, $7::timestamptz, u.actor, u.detail
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::text[], $6::jsonb[]) AS u(id, subscription_id, event_type, boundary, actor, detail)
ON CONFLICT (subscription_id, event_type, boundary)
	WHERE event_type IN ('created', 'expired', 'ended', 'reminded_7d', 'reminded_3d', 'reminded_1d') DO NOTHING`

// insertFacts: a fact that was told already is not told again. One that comes true later waits for its instant as one whose
// dispatch is to be tried again does. Changes of access that goes on are written only where an endpoint wants them: each renewal is one,
// and no mail tells of them, so elsewhere they would be a row a month for each subscription that nobody reads.
const insertFacts = `INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary, created_at, next_attempt_at)
SELECT uuid_v7(u.at), u.topic, u.dedupe_key, u.subscription_id, u.user_id, u.kind, u.boundary, u.at, u.due
FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::timestamptz[])
	AS u(topic, dedupe_key, subscription_id, user_id, kind, boundary, at, due)
WHERE u.topic <> 'access.changed' OR (SELECT EXISTS (SELECT 1 FROM webhook_endpoints e WHERE e.status = 'enabled' AND e.topics && '{*,access.*,access.changed}'))
ON CONFLICT (dedupe_key) DO NOTHING`

// factArrays are the columns of many facts, in the order of the parameters above.
type factArrays struct {
	topic, key, subscriptionID, userID []string
	kind                               []*string
	boundary, at, due                  []pgtype.Timestamptz
}

// add keeps the order of a subscription's facts by giving each a microsecond of its own: ids are in the order of instants.
func (a *factArrays) add(w write, now time.Time) {
	for i, f := range subscription.Facts(w.prev, w.next, now) {
		at, due := f.At.Add(time.Duration(i)*time.Microsecond), time.Time{}
		if f.At.After(now) {
			due = f.At
		}
		a.topic, a.key = append(a.topic, string(f.Topic)), append(a.key, f.Key)
		a.subscriptionID, a.userID = append(a.subscriptionID, w.next.ID), append(a.userID, w.next.UserID)
		a.kind, a.boundary = append(a.kind, text(f.Kind)), append(a.boundary, timestamptz(f.Boundary))
		a.at, a.due = append(a.at, timestamptz(at)), append(a.due, timestamptz(due))
	}
}

func (a *factArrays) args() []any {
	return []any{a.topic, a.key, a.subscriptionID, a.userID, a.kind, a.boundary, a.at, a.due}
}

// writeSubscriptions writes all rows, their history and their facts in the caller's transaction. ErrConflict when any of them was
// changed or made by somebody else meanwhile: the caller's transaction is to be rolled back and tried again.
func writeSubscriptions(ctx context.Context, tx pgx.Tx, writes []write, now time.Time) error {
	var inserts, updates subscriptionArrays
	var id, subscriptionID, eventType, actor []string
	var boundary []pgtype.Timestamptz
	var detail [][]byte
	var facts factArrays
	for _, w := range writes {
		facts.add(w, now)
		if w.prev == nil {
			inserts.add(w.next, 1)
		} else {
			updates.add(w.next, w.prev.Version)
		}
		for _, c := range w.entries() {
			body, err := json.Marshal(historyDetail{Terms: termsOf(w.next), Note: w.note})
			if err != nil {
				return fmt.Errorf("writing the history of %s: %w", w.next.ID, err)
			}
			id, subscriptionID = append(id, NewID()), append(subscriptionID, w.next.ID)
			eventType, actor = append(eventType, string(c.Type)), append(actor, w.actor)
			boundary, detail = append(boundary, timestamptz(c.Boundary)), append(detail, body)
		}
	}
	batch := &pgx.Batch{}
	must := func(rows int, query string, args []any) {
		if rows == 0 {
			return
		}
		batch.Queue(query, args...).Exec(func(tag pgconn.CommandTag) error {
			if int(tag.RowsAffected()) != rows {
				return ErrConflict
			}
			return nil
		})
	}
	must(len(inserts.id), insertSubscriptions, inserts.args(now))
	must(len(updates.id), updateSubscriptions, updates.args(now))
	if len(id) > 0 {
		batch.Queue(insertHistory, id, subscriptionID, eventType, boundary, actor, detail, now)
	}
	if len(facts.key) > 0 {
		batch.Queue(insertFacts, facts.args()...)
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}
