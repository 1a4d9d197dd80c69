package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ChannelWebhook is the channel of calls to endpoints.
const ChannelWebhook = "webhook"

// endUnwanted ends what waits for an endpoint that is not called any more, so that nothing waits for ever. It can be sent again
// by hand once the endpoint is enabled.
const endUnwanted = `UPDATE deliveries d SET finished_at = clock_timestamp(),
	status = CASE e.status WHEN 'deleted' THEN 'superseded' ELSE 'dead' END, last_error = 'its endpoint is ' || e.status
FROM webhook_endpoints e
WHERE d.ctid = ANY (ARRAY(SELECT w.ctid FROM webhook_endpoints u CROSS JOIN LATERAL (
		SELECT p.ctid FROM deliveries p WHERE p.status = 'pending' AND p.channel = 'webhook' AND p.target = u.id::text
		ORDER BY p.target, p.next_attempt_at, p.id LIMIT 1000 FOR UPDATE SKIP LOCKED) w
	WHERE u.status <> 'enabled'))
	AND d.status = 'pending' AND d.channel = 'webhook' AND d.target = e.id::text`

// lockDueEndpoints comes first, in a statement of its own: what another process has under way to an endpoint is counted exactly only
// by who holds it. Those that somebody else holds are looked at again soon.
const lockDueEndpoints = `SELECT e.id FROM webhook_endpoints e
WHERE e.status = 'enabled' AND (e.paused_until IS NULL OR e.paused_until <= $1)
	AND EXISTS (SELECT 1 FROM deliveries p WHERE p.status = 'pending' AND p.channel = 'webhook' AND p.target = e.id::text AND p.next_attempt_at <= $1 OFFSET 0)
ORDER BY e.id FOR UPDATE SKIP LOCKED`

// claimWebhooks takes of each endpoint what may be under way to it at the same time, over all processes, and no more: one that
// hangs keeps its own places and nobody else's. While an endpoint has failures on record one call is enough to find out
// whether it is back. Those that work go first. An earlier delivery of the same subscription to the same endpoint that is not
// finished blocks the later ones; OFFSET 0 has it looked up for each row by its index, where a join would read all that wait.
const claimWebhooks = `UPDATE deliveries d SET status = 'sending', attempts = attempts + 1, version = version + 1,
	leased_until = $1 + $3::interval, lease_owner = $4
WHERE ctid = ANY (ARRAY(
	SELECT w.ctid FROM webhook_endpoints e CROSS JOIN LATERAL (
		SELECT p.ctid, p.next_attempt_at, p.id FROM deliveries p
		WHERE p.status = 'pending' AND p.channel = 'webhook' AND p.target = e.id::text AND p.next_attempt_at <= $1
			AND NOT EXISTS (SELECT 1 FROM deliveries b WHERE b.subscription_id = p.subscription_id AND b.channel = p.channel
				AND b.target = p.target AND b.status IN ('pending', 'sending') AND b.id < p.id OFFSET 0)
		ORDER BY p.next_attempt_at, p.id
		LIMIT GREATEST(0, CASE WHEN e.failures > 0 THEN 1 ELSE $5::int END
			- (SELECT count(*) FROM deliveries f WHERE f.status = 'sending' AND f.channel = 'webhook' AND f.target = e.id::text))
		FOR UPDATE SKIP LOCKED) w
	WHERE e.id = ANY ($6::uuid[])
	ORDER BY e.failures, w.next_attempt_at, w.id LIMIT $2))
	AND status = 'pending' AND next_attempt_at <= $1
RETURNING id, version, attempts, coalesce(last_error, '')`

// ClaimWebhooks ends what waits for endpoints that are no longer called, and leases at most limit due calls to owner, at most
// atOnce of one endpoint.
func (s *Store) ClaimWebhooks(ctx context.Context, now time.Time, owner string, limit, atOnce int, lease time.Duration) ([]Delivery, error) {
	if _, err := s.pool.Exec(ctx, endUnwanted); err != nil {
		return nil, fmt.Errorf("ending deliveries to endpoints that are not called: %w", err)
	}
	var claimed []Delivery
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lockDueEndpoints, now)
		if err != nil {
			return err
		}
		endpoints, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(endpoints) == 0 {
			return err
		}
		claimed, err = claim(ctx, tx, claimWebhooks, now, limit, lease, owner, atOnce, endpoints)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claiming calls: %w", err)
	}
	return claimed, nil
}

// Notification is what is to be sent to an endpoint, as the rows say right before the sending.
type Notification struct {
	EndpointID string
	URL        string
	Secrets    [][]byte // sealed; the newest first
	MessageID  string
	Topic      string
	FactID     string
	At         time.Time // when the fact became true
	// SubscriptionID, UserID and Kind are "" where the fact has none, Boundary is zero then.
	SubscriptionID string
	UserID         string
	Kind           string
	Boundary       time.Time
	Payload        json.RawMessage // nil for none
}

// notification is the fence as well: nothing comes back when the lease is lost or too short for the sending.
const notification = `SELECT e.id, e.url, e.secret, CASE WHEN e.previous_until > $3 THEN e.previous_secret END, d.message_id, o.topic, o.id, o.created_at,
	coalesce(o.subscription_id::text, ''), coalesce(o.user_id, ''), coalesce(o.kind, ''), o.boundary, o.payload
FROM deliveries d JOIN outbox o ON o.id = d.outbox_id JOIN webhook_endpoints e ON e.id::text = d.target
WHERE d.id = $1 AND d.version = $2 AND d.status = 'sending' AND d.leased_until > clock_timestamp() + $4::interval AND e.status <> 'deleted'`

// Notification reads what to send for a claimed delivery at the instant at. ErrConflict when the claim is lost, its lease ends
// before a sending that takes up to sending could, or the endpoint was deleted meanwhile.
func (s *Store) Notification(ctx context.Context, d Delivery, at time.Time, sending time.Duration) (Notification, error) {
	var n Notification
	var newest, previous []byte
	var boundary, when pgtype.Timestamptz
	err := s.pool.QueryRow(ctx, notification, d.ID, d.Version, at, sending).Scan(&n.EndpointID, &n.URL, &newest, &previous, &n.MessageID,
		&n.Topic, &n.FactID, &when, &n.SubscriptionID, &n.UserID, &n.Kind, &boundary, &n.Payload)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return n, ErrConflict
	case err != nil:
		return n, fmt.Errorf("reading a delivery: %w", err)
	}
	n.Secrets = [][]byte{newest}
	if previous != nil {
		n.Secrets = append(n.Secrets, previous)
	}
	n.At, n.Boundary = instant(when), instant(boundary)
	return n, nil
}

const (
	sentWebhook = `UPDATE deliveries SET status = 'sent', finished_at = clock_timestamp(), last_error = NULL, response_status = $3, leased_until = NULL, lease_owner = NULL
WHERE id = $1 AND version = $2 AND status = 'sending'`

	reviveEndpoint = `UPDATE webhook_endpoints SET failures = 0, failing_since = NULL, paused_until = NULL, last_error = NULL, updated_at = clock_timestamp()
WHERE id = $1 AND (failures > 0 OR failing_since IS NOT NULL)`
)

// WebhookSent records that the endpoint took a claimed delivery. ErrConflict when the claim was lost meanwhile.
func (s *Store) WebhookSent(ctx context.Context, d Delivery, endpointID string, status int) error {
	if err := s.fenced(ctx, "finishing a delivery", sentWebhook, d.ID, d.Version, status); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, reviveEndpoint, endpointID); err != nil {
		return fmt.Errorf("recording that a webhook endpoint works: %w", err)
	}
	return nil
}

// WebhookHealth is what was known of a delivery and its endpoint before an attempt that failed.
type WebhookHealth struct {
	Refusals int           // of the delivery
	Failures int           // of the endpoint in a row
	Failing  time.Duration // for how long nothing but failures came of the endpoint
}

// WebhookFailure is what becomes of a claimed delivery that could not be delivered, and of its endpoint.
type WebhookFailure struct {
	Status        int // of the answer; 0 when there was none
	Dead          bool
	Pause         time.Duration // before the next attempt
	Refused       bool          // it counts against the delivery
	EndpointPause time.Duration // 0 for none
	Disable       string        // why the endpoint is disabled; "" when it is not
	Error         string
}

const (
	// lockHealth: calls that were under way together fail together. paused tells that one of them has set the pause already.
	lockHealth = `SELECT e.failures, coalesce(extract(epoch FROM clock_timestamp() - e.failing_since), 0)::float8, e.status = 'enabled',
	coalesce(e.paused_until > $3, false), clock_timestamp(), (SELECT refusals FROM deliveries d WHERE d.id = $2)
FROM webhook_endpoints e WHERE e.id = $1 FOR UPDATE OF e`

	failEndpoint = `UPDATE webhook_endpoints SET failing_since = coalesce(failing_since, $2), last_error = $3, updated_at = $2,
	failures = CASE WHEN $4::interval > '0' THEN failures + 1 ELSE failures END,
	paused_until = CASE WHEN $4::interval > '0' THEN $2::timestamptz + $4::interval ELSE paused_until END
WHERE id = $1`

	disableEndpoint = `UPDATE webhook_endpoints SET status = 'disabled', disabled_reason = $2, disabled_at = $3, last_error = $4, updated_at = $3 WHERE id = $1`

	failWebhook = `UPDATE deliveries SET status = CASE WHEN $3 THEN 'dead' ELSE 'pending' END, finished_at = CASE WHEN $3 THEN clock_timestamp() END,
	next_attempt_at = CASE WHEN $3 THEN next_attempt_at ELSE clock_timestamp() + $4::interval END, refusals = refusals + $5,
	last_error = $6, response_status = $7, leased_until = NULL, lease_owner = NULL
WHERE id = $1 AND version = $2 AND status = 'sending'`
)

// AlertEndpointDisabled is told when an endpoint is disabled by what it answered.
const AlertEndpointDisabled = "alert.webhook_endpoint_disabled"

// WebhookFailed records a failed attempt of a delivery that was claimed at claimedAt. judge says what it means. One that disables its endpoint
// queues the alert in the same transaction. ErrConflict when the claim was lost meanwhile.
func (s *Store) WebhookFailed(ctx context.Context, d Delivery, endpointID string, claimedAt time.Time, judge func(WebhookHealth) WebhookFailure) (WebhookFailure, error) {
	var f WebhookFailure
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var h WebhookHealth
		var failing float64
		var enabled, paused bool
		var now time.Time
		if err := tx.QueryRow(ctx, lockHealth, endpointID, d.ID, claimedAt).Scan(&h.Failures, &failing, &enabled, &paused, &now, &h.Refusals); err != nil {
			return err
		}
		h.Failing = seconds(failing)
		f = judge(h)
		switch {
		case !enabled:
			f.Disable = ""
		case f.Disable != "":
			if err := s.disableEndpoint(ctx, tx, endpointID, f, now); err != nil {
				return err
			}
		case paused:
		default:
			if _, err := tx.Exec(ctx, failEndpoint, endpointID, now, f.Error, f.EndpointPause); err != nil {
				return err
			}
		}
		refused := 0
		if f.Refused {
			refused = 1
		}
		var answered *int
		if f.Status != 0 {
			answered = &f.Status
		}
		tag, err := tx.Exec(ctx, failWebhook, d.ID, d.Version, f.Dead, f.Pause, refused, f.Error, answered)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrConflict
		}
		return nil
	})
	switch {
	case errors.Is(err, ErrConflict):
		return f, ErrConflict
	case err != nil:
		return f, fmt.Errorf("recording a failed delivery: %w", err)
	}
	return f, nil
}

// disabledEndpoint is the payload of the alert. The URL stays out: it may hold a secret of the receiver's.
type disabledEndpoint struct {
	EndpointID string `json:"endpoint_id"`
	Reason     string `json:"reason"`
	Error      string `json:"error"`
}

func (s *Store) disableEndpoint(ctx context.Context, tx pgx.Tx, id string, f WebhookFailure, now time.Time) error {
	batch := &pgx.Batch{}
	batch.Queue(disableEndpoint, id, f.Disable, now, f.Error)
	err := queueFacts(batch, now, []Fact{{
		Topic: AlertEndpointDisabled, Key: fmt.Sprintf("hook_off:%s:%d", id, now.UnixMicro()), Kind: f.Disable,
		Payload: disabledEndpoint{EndpointID: id, Reason: f.Disable, Error: f.Error},
	}})
	if err != nil {
		return err
	}
	return tx.SendBatch(ctx, batch).Close()
}

const pauseEndpoint = `UPDATE webhook_endpoints SET paused_until = clock_timestamp() + $2::interval, last_error = $3, updated_at = clock_timestamp() WHERE id = $1 AND status = 'enabled'`

// PauseEndpoint stops calling an endpoint for a while, for a reason that is not its own.
func (s *Store) PauseEndpoint(ctx context.Context, id string, pause time.Duration, why string) error {
	if _, err := s.pool.Exec(ctx, pauseEndpoint, id, pause, why); err != nil {
		return fmt.Errorf("pausing a webhook endpoint: %w", err)
	}
	return nil
}
