package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// WebhookEvent is one signed event of a payment provider as it is stored.
type WebhookEvent struct {
	ID         string
	Provider   string
	ExternalID string
	Type       string
	APIVersion string
	Livemode   bool
	ObjectID   string
	Created    time.Time // the provider's instant of the event, to the second; zero when it said none
	Ignored    string    // why it is only kept; "" when it is to be applied
	Payload    []byte
	Attempts   int
	ReceivedAt time.Time
}

// insertWebhookEvents keeps the order of the arrays: all processes insert in the order of the external ids, so that two
// groups with the same events wait for each other and never deadlock.
const insertWebhookEvents = `INSERT INTO payment_webhook_events
	(id, provider, external_event_id, type, api_version, livemode, object_id, event_created, payload, reason,
	 status, processed_at, attempts, leased_until, lease_owner, received_at)
SELECT u.id, u.provider, u.external_event_id, u.type, u.api_version, u.livemode, u.object_id, u.event_created, u.payload, u.reason,
	CASE WHEN u.reason IS NULL THEN 'pending' ELSE 'ignored' END,
	CASE WHEN u.reason IS NULL THEN NULL ELSE now() END,
	CASE WHEN u.reason IS NULL THEN 1 ELSE 0 END,
	CASE WHEN u.reason IS NULL THEN now() + $11::interval END,
	CASE WHEN u.reason IS NULL THEN $12::text END,
	now()
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::text[], $8::timestamptz[], $9::bytea[], $10::text[])
	WITH ORDINALITY AS u(id, provider, external_event_id, type, api_version, livemode, object_id, event_created, payload, reason, n)
ORDER BY u.n
ON CONFLICT (provider, external_event_id) DO NOTHING
RETURNING id`

// InsertWebhookEvents stores a group of events and commits. What is new and to be applied is leased to owner at once. It returns the
// ids of the rows that are new; the others were stored before.
func (s *Store) InsertWebhookEvents(ctx context.Context, events []WebhookEvent, owner string, lease time.Duration) (map[string]bool, error) {
	order := slices.Clone(events)
	slices.SortFunc(order, func(a, b WebhookEvent) int { return strings.Compare(a.ExternalID, b.ExternalID) })
	n := len(order)
	id, provider, external, kind := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	version, object, ignored := make([]*string, n), make([]*string, n), make([]*string, n)
	livemode, created, payload := make([]bool, n), make([]pgtype.Timestamptz, n), make([][]byte, n)
	for i, e := range order {
		id[i], provider[i], external[i], kind[i] = e.ID, e.Provider, e.ExternalID, e.Type
		version[i], object[i], ignored[i] = text(e.APIVersion), text(e.ObjectID), text(e.Ignored)
		livemode[i], created[i], payload[i] = e.Livemode, timestamptz(e.Created), e.Payload
	}
	rows, err := s.pool.Query(ctx, insertWebhookEvents, id, provider, external, kind, version, livemode, object, created, payload, ignored, lease, owner)
	if err != nil {
		return nil, fmt.Errorf("storing webhook events: %w", err)
	}
	fresh, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("storing webhook events: %w", err)
	}
	isNew := make(map[string]bool, len(fresh))
	for _, id := range fresh {
		isNew[id] = true
	}
	return isNew, nil
}

// webhookEventColumns is what applying an event needs. Rows that were seeded by hand may lack the rest; it is read from the payload.
const webhookEventColumns = `e.id, e.provider, e.external_event_id, e.payload, e.attempts, e.received_at`

func collectWebhookEvents(rows pgx.Rows, err error) ([]WebhookEvent, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (WebhookEvent, error) {
		var e WebhookEvent
		err := row.Scan(&e.ID, &e.Provider, &e.ExternalID, &e.Payload, &e.Attempts, &e.ReceivedAt)
		return e, err
	})
}

// leaseWebhookEvents takes what is due and nobody works on, oldest due first.
const leaseWebhookEvents = `UPDATE payment_webhook_events e SET leased_until = now() + $2::interval, lease_owner = $3, attempts = e.attempts + 1
WHERE e.ctid = ANY (ARRAY(
	SELECT ctid FROM payment_webhook_events
	WHERE status = 'pending' AND next_attempt_at <= now() AND (leased_until IS NULL OR leased_until <= now())
	ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED))
	AND e.status = 'pending' AND e.next_attempt_at <= now() AND (e.leased_until IS NULL OR e.leased_until <= now())
RETURNING ` + webhookEventColumns

// LeaseWebhookEvents leases at most limit due events to owner. Each lease is an attempt, so an event that kills its
// process is counted too.
func (s *Store) LeaseWebhookEvents(ctx context.Context, limit int, owner string, lease time.Duration) ([]WebhookEvent, error) {
	events, err := collectWebhookEvents(s.pool.Query(ctx, leaseWebhookEvents, limit, lease, owner))
	if err != nil {
		return nil, fmt.Errorf("leasing webhook events: %w", err)
	}
	return events, nil
}

// webhookEventsDue asks in the order of its index: a bare EXISTS lets the planner choose a scan of the whole table when
// its statistics say that pending events are common.
const webhookEventsDue = `SELECT EXISTS (SELECT 1 FROM (SELECT 1 FROM payment_webhook_events
WHERE status = 'pending' AND next_attempt_at <= now() AND (leased_until IS NULL OR leased_until <= now())
ORDER BY next_attempt_at, id LIMIT 1) AS due)`

// WebhookEventsDue reports whether any event could be leased now.
func (s *Store) WebhookEventsDue(ctx context.Context) (bool, error) {
	var due bool
	if err := s.pool.QueryRow(ctx, webhookEventsDue).Scan(&due); err != nil {
		return false, fmt.Errorf("looking for due webhook events: %w", err)
	}
	return due, nil
}

// leaseWebhookEvent makes one event ready to be applied again, from the start.
const leaseWebhookEvent = `UPDATE payment_webhook_events e SET status = 'pending', attempts = 1, next_attempt_at = now(), reason = NULL, last_error = NULL,
	waits_for = NULL, processed_at = NULL, leased_until = now() + $2::interval, lease_owner = $3
WHERE e.id = $1 AND octet_length(e.payload) > 0 AND (e.status <> 'pending' OR e.leased_until IS NULL OR e.leased_until <= now())
RETURNING ` + webhookEventColumns

// LeaseWebhookEvent takes one event for a replay, whatever became of it. ErrNotFound when there is none, ErrPayloadGone when
// its body is past its retention, ErrConflict while somebody is applying it.
func (s *Store) LeaseWebhookEvent(ctx context.Context, id, owner string, lease time.Duration) (WebhookEvent, error) {
	events, err := collectWebhookEvents(s.pool.Query(ctx, leaseWebhookEvent, id, lease, owner))
	if err != nil {
		return WebhookEvent{}, fmt.Errorf("taking webhook event %s for a replay: %w", id, err)
	}
	if len(events) == 1 {
		return events[0], nil
	}
	var emptied bool
	err = s.pool.QueryRow(ctx, `SELECT octet_length(payload) = 0 FROM payment_webhook_events WHERE id = $1`, id).Scan(&emptied)
	switch {
	case err != nil:
		return WebhookEvent{}, fmt.Errorf("looking for webhook event %s: %w", id, notFound(err))
	case emptied:
		return WebhookEvent{}, ErrPayloadGone
	}
	return WebhookEvent{}, ErrConflict
}

// releaseMapped: what an event waited for is there now, so it is due at once. An event without a user is also released when
// its subscription has got a row by another event. What only the provider can make good is released for another question
// when its hour is over; see finishEvents.
const releaseMapped = `UPDATE payment_webhook_events e SET status = 'pending', attempts = 0, next_attempt_at = now(), leased_until = NULL, lease_owner = NULL
WHERE e.ctid = ANY (ARRAY(
	SELECT q.ctid FROM payment_webhook_events q
	WHERE q.status = 'quarantined' AND (
		(q.reason = 'plan_unmapped' AND EXISTS (SELECT 1 FROM plans p WHERE p.stripe_price_ids && q.waits_for)) OR
		(q.reason = 'user_unmapped' AND (EXISTS (SELECT 1 FROM stripe_customers c WHERE c.customer_id = ANY (q.waits_for))
			OR EXISTS (SELECT 1 FROM stripe_checkouts k WHERE k.subscription_id = q.object_id)
			OR EXISTS (SELECT 1 FROM subscriptions s WHERE s.external_id = q.object_id))) OR
		(q.reason = 'payment_unmapped' AND EXISTS (SELECT 1 FROM payments p LEFT JOIN subscriptions s ON s.external_id = p.subscription_id
			WHERE p.external_id = ANY (q.waits_for) AND (s.id IS NOT NULL OR p.order_id IS NOT NULL))) OR
		(q.reason IN ('user_unmapped', 'period_missing', 'unknown_status', 'payment_unmapped') AND q.next_attempt_at <= now()))
	ORDER BY q.id LIMIT $1 FOR UPDATE SKIP LOCKED))
	AND e.status = 'quarantined'`

// ReleaseMappedWebhookEvents makes at most limit quarantined events due whose missing mapping exists now. It returns how many.
func (s *Store) ReleaseMappedWebhookEvents(ctx context.Context, limit int) (int, error) {
	tag, err := s.pool.Exec(ctx, releaseMapped, limit)
	if err != nil {
		return 0, fmt.Errorf("releasing quarantined webhook events: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// failWebhookEvent gives a failed attempt back: to be tried again after the pause, or for good.
const failWebhookEvent = `UPDATE payment_webhook_events SET
	status = CASE WHEN attempts >= $4 THEN 'failed' ELSE 'pending' END,
	next_attempt_at = now() + $3::interval, leased_until = NULL, lease_owner = NULL, last_error = $5
WHERE id = $1 AND status = 'pending' AND lease_owner = $2`

// FailWebhookEvent records a failed attempt of the owner. With maxAttempts behind it the event is given up.
func (s *Store) FailWebhookEvent(ctx context.Context, id, owner string, pause time.Duration, maxAttempts int, lastError string) error {
	if _, err := s.pool.Exec(ctx, failWebhookEvent, id, owner, pause, maxAttempts, lastError); err != nil {
		return fmt.Errorf("recording the failure of webhook event %s: %w", id, err)
	}
	return nil
}

const ignoreWebhookEvent = `UPDATE payment_webhook_events SET status = 'ignored', reason = $3, processed_at = now(), leased_until = NULL, lease_owner = NULL
WHERE id = $1 AND status = 'pending' AND lease_owner = $2`

// IgnoreWebhookEvent keeps an event that changes nothing here, with the reason.
func (s *Store) IgnoreWebhookEvent(ctx context.Context, id, owner, reason string) error {
	if _, err := s.pool.Exec(ctx, ignoreWebhookEvent, id, owner, reason); err != nil {
		return fmt.Errorf("marking webhook event %s as ignored: %w", id, err)
	}
	return nil
}

const processWebhookEvent = `UPDATE payment_webhook_events SET status = 'processed', reason = $3, last_error = NULL, processed_at = now(),
	leased_until = NULL, lease_owner = NULL WHERE id = $1 AND status = 'pending' AND lease_owner = $2`

// ProcessWebhookEvent marks an event as done whose effect was written before. reason says why it changed nothing, or is empty.
func (s *Store) ProcessWebhookEvent(ctx context.Context, id, owner, reason string) error {
	if _, err := s.pool.Exec(ctx, processWebhookEvent, id, owner, text(reason)); err != nil {
		return fmt.Errorf("marking webhook event %s as processed: %w", id, err)
	}
	return nil
}

const quarantineWebhookEvent = `UPDATE payment_webhook_events SET status = 'quarantined', reason = $3, waits_for = $4, last_error = NULL,
	next_attempt_at = now() + interval '1 hour', leased_until = NULL, lease_owner = NULL WHERE id = $1 AND status = 'pending' AND lease_owner = $2`

// QuarantineWebhookEvent keeps an event until what it waits for is known here; see ReleaseMappedWebhookEvents.
func (s *Store) QuarantineWebhookEvent(ctx context.Context, id, owner, reason string, waitsFor []string) error {
	if _, err := s.pool.Exec(ctx, quarantineWebhookEvent, id, owner, reason, waitsFor); err != nil {
		return fmt.Errorf("putting webhook event %s into quarantine: %w", id, err)
	}
	return nil
}

const releaseWebhookEvents = `UPDATE payment_webhook_events SET leased_until = NULL, lease_owner = NULL, attempts = attempts - 1
WHERE status = 'pending' AND lease_owner = $1`

// ReleaseWebhookEvents gives all leases of an owner back that stops, so that others need not wait for their end.
func (s *Store) ReleaseWebhookEvents(ctx context.Context, owner string) error {
	if _, err := s.pool.Exec(ctx, releaseWebhookEvents, owner); err != nil {
		return fmt.Errorf("giving leases of webhook events back: %w", err)
	}
	return nil
}

const oldestUnprocessed = `SELECT coalesce(extract(epoch FROM now() - min(received_at)), 0)::float8 FROM payment_webhook_events WHERE status = 'pending'`

// OldestUnprocessedWebhookEvent is the age of the oldest event that waits to be applied, 0 when none does.
func (s *Store) OldestUnprocessedWebhookEvent(ctx context.Context) (time.Duration, error) {
	var seconds float64
	if err := s.pool.QueryRow(ctx, oldestUnprocessed).Scan(&seconds); err != nil {
		return 0, fmt.Errorf("reading the age of webhook events: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
