package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// freshFacts are those that were never tried. One whose dispatch failed has a next attempt and is tried alone.
// The cursor spares each batch the dead entries of the earlier ones.
const freshFacts = `SELECT ctid, id, topic, kind, subscription_id, user_id, created_at FROM outbox WHERE status = 'pending' AND next_attempt_at IS NULL AND id > $3::uuid ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED`

const oneFact = `SELECT ctid, id, topic, kind, subscription_id, user_id, created_at FROM outbox WHERE id = $3::uuid AND status = 'pending' FOR UPDATE SKIP LOCKED`

// The statements find their rows again by ctid: by id, a big backlog is read as a whole for every batch. They turn facts
// into deliveries: a mail where there is one of the topic and the user has an address, and a call to each endpoint that wants the
// topic. No mail tells of an end while another subscription gives access, nor of a late payment: the access that it brings back
// does. The id of a delivery carries its fact's instant, so that deliveries of one subscription are in the order of
// their facts; those of the calls are made in a step of their own, because each row of a join must get its own. The domain of
// the Message-ID is a name that cannot exist (RFC 2606): the id is what must be unique.
const (
	dispatchFacts = dispatchHead + freshFacts + dispatchTail
	dispatchFact  = dispatchHead + oneFact + dispatchTail

	dispatchHead = `WITH f AS MATERIALIZED (`
	dispatchTail = `),
a AS MATERIALIZED (
	SELECT f.ctid, f.id, f.topic, f.kind, f.subscription_id, f.user_id, f.created_at, u.email,
		CASE WHEN f.topic = 'access.ended' THEN EXISTS (SELECT 1 FROM subscriptions s
			WHERE s.user_id = f.user_id AND s.id IS DISTINCT FROM f.subscription_id AND gives_access(s, $1)) END AS still
	FROM f LEFT JOIN users u ON u.id = f.user_id),
d AS (INSERT INTO deliveries (id, outbox_id, channel, target, topic, subscription_id, user_id, next_attempt_at, message_id, created_at)
	SELECT n.id, a.id, 'email', a.email, a.topic, a.subscription_id, a.user_id, $1, n.id || '@termkeeper.invalid', $1
	FROM a CROSS JOIN LATERAL (SELECT uuid_v7(a.created_at) AS id) n
	WHERE $2::boolean AND a.email <> '' AND CASE a.topic
		WHEN 'access.ended' THEN NOT a.still
		WHEN 'payment.recovered' THEN a.kind IS DISTINCT FROM 'late'
		ELSE a.topic IN ('access.started', 'access.ending_soon', 'payment.failed') END
	ON CONFLICT (outbox_id, channel, target) DO NOTHING
	RETURNING 1),
h AS MATERIALIZED (SELECT uuid_v7(a.created_at) AS id, a.id AS fact, e.id::text AS endpoint, a.topic, a.subscription_id, a.user_id
	FROM a JOIN webhook_endpoints e ON e.status = 'enabled' AND ` + wantsTopic + `),
c AS (INSERT INTO deliveries (id, outbox_id, channel, target, topic, subscription_id, user_id, next_attempt_at, message_id, created_at)
	SELECT h.id, h.fact, 'webhook', h.endpoint, h.topic, h.subscription_id, h.user_id, $1, h.id::text, $1 FROM h
	ON CONFLICT (outbox_id, channel, target) DO NOTHING
	RETURNING 1),
m AS (UPDATE outbox o SET status = 'dispatched', dispatched_at = $1, next_attempt_at = NULL, last_error = NULL,
		payload = CASE WHEN a.still IS NULL THEN o.payload ELSE jsonb_build_object('still_has_access', a.still) END
	FROM a WHERE o.ctid = a.ctid AND o.status = 'pending' RETURNING 1)
SELECT (SELECT count(*) FROM m), (SELECT count(*) FROM d) + (SELECT count(*) FROM c), (SELECT id::text FROM f ORDER BY id DESC LIMIT 1)`
)

// wantsTopic: a topic as a whole, by a prefix like access.*, or all of them.
const wantsTopic = `EXISTS (SELECT 1 FROM unnest(e.topics) w WHERE w = a.topic OR w = '*' OR (w LIKE '%.*' AND starts_with(a.topic, left(w, -1))))`

// noFact comes before every fact.
const noFact = "00000000-0000-0000-0000-000000000000"

// Dispatched is what a batch of facts became.
type Dispatched struct {
	Facts      int
	Deliveries int
	Cursor     string // the last fact of the batch; "" when there was none
}

// DispatchFacts turns at most limit fresh facts after the cursor ("" is the beginning) into deliveries, oldest first, at
// now. Facts that somebody else holds are left out; a pass that starts again from the beginning finds them.
// Without mail, which is where no mail server is configured, nobody is to be told by mail.
func (s *Store) DispatchFacts(ctx context.Context, now time.Time, mail bool, after string, limit int) (Dispatched, error) {
	return s.dispatch(ctx, dispatchFacts, now, mail, cmp.Or(after, noFact), limit)
}

// DispatchFact does the same for one fact, where it is still pending.
func (s *Store) DispatchFact(ctx context.Context, now time.Time, mail bool, id string) (Dispatched, error) {
	return s.dispatch(ctx, dispatchFact, now, mail, id)
}

func (s *Store) dispatch(ctx context.Context, query string, args ...any) (Dispatched, error) {
	var d Dispatched
	var cursor *string
	if err := s.pool.QueryRow(ctx, query, args...).Scan(&d.Facts, &d.Deliveries, &cursor); err != nil {
		return d, fmt.Errorf("dispatching facts: %w", err)
	}
	d.Cursor = value(cursor)
	return d, nil
}

const firstFact = `SELECT id FROM outbox WHERE status = 'pending' AND next_attempt_at IS NULL AND id > $1::uuid ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`

// FirstFact is the id of the fact that DispatchFacts would take next after the cursor, or "".
func (s *Store) FirstFact(ctx context.Context, after string) (string, error) {
	var id string
	err := notFound(s.pool.QueryRow(ctx, firstFact, cmp.Or(after, noFact)).Scan(&id))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return "", fmt.Errorf("looking for the first fact: %w", err)
	}
	return id, nil
}

// deferFact doubles the pause with each attempt, from half a minute to a day.
const deferFact = `UPDATE outbox SET attempts = attempts + 1, last_error = $2,
	next_attempt_at = clock_timestamp() + LEAST(interval '1 day', interval '30 seconds' * (2 ^ LEAST(attempts, 20)))
WHERE id = $1 AND status = 'pending'`

// DeferFact sets a fact aside whose dispatch failed by itself. It is tried again alone.
func (s *Store) DeferFact(ctx context.Context, id, failure string) error {
	if _, err := s.pool.Exec(ctx, deferFact, id, failure); err != nil {
		return fmt.Errorf("deferring a fact: %w", err)
	}
	return nil
}

const deferredFacts = `SELECT id FROM outbox WHERE status = 'pending' AND next_attempt_at <= $1 ORDER BY id LIMIT $2`

// DeferredFacts are facts that failed before and whose next attempt is due at now.
func (s *Store) DeferredFacts(ctx context.Context, now time.Time, limit int) ([]string, error) {
	rows, err := s.pool.Query(ctx, deferredFacts, now, limit)
	if err != nil {
		return nil, fmt.Errorf("looking for deferred facts: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("looking for deferred facts: %w", err)
	}
	return ids, nil
}

// nextOutboxWork: each part is one probe of a partial index, in an order that only this index has: for EXISTS the planner
// may read the whole table in the hope of an early hit. A channel or an endpoint that is paused makes nothing due before its end.
const nextOutboxWork = `SELECT LEAST(
	(SELECT clock_timestamp() FROM (SELECT id FROM outbox WHERE status = 'pending' AND next_attempt_at IS NULL ORDER BY id LIMIT 1) fresh),
	(SELECT min(next_attempt_at) FROM outbox WHERE status = 'pending'),
	(SELECT leased_until FROM deliveries WHERE status = 'sending' ORDER BY leased_until LIMIT 1),
	(SELECT GREATEST(c.paused_until, w.at) FROM delivery_channels c CROSS JOIN (
		SELECT next_attempt_at AS at FROM deliveries WHERE status = 'pending' AND channel = 'email' ORDER BY next_attempt_at, id LIMIT 1) w
		WHERE c.channel = 'email'),
	(SELECT min(CASE e.status WHEN 'enabled' THEN GREATEST(e.paused_until, w.next_attempt_at) ELSE clock_timestamp() END)
		FROM webhook_endpoints e CROSS JOIN LATERAL (SELECT next_attempt_at FROM deliveries p
			WHERE p.status = 'pending' AND p.channel = 'webhook' AND p.target = e.id::text ORDER BY p.target, p.next_attempt_at LIMIT 1) w)),
	clock_timestamp()`

// NextOutboxWork is when the next fact or delivery wants something, in the past when one does now, and the database's
// clock at the same instant. It is zero when nothing waits.
func (s *Store) NextOutboxWork(ctx context.Context) (at, now time.Time, err error) {
	var next pgtype.Timestamptz
	if err := s.pool.QueryRow(ctx, nextOutboxWork).Scan(&next, &now); err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("looking for the next fact or delivery: %w", err)
	}
	return instant(next), now.UTC(), nil
}
