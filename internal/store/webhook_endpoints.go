package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ErrTooManyEndpoints says that there are MaxEndpoints already.
var ErrTooManyEndpoints = fmt.Errorf("there are %d webhook endpoints already", MaxEndpoints)

// MaxEndpoints bounds the endpoints that are not deleted: every fact is held against each of them.
const MaxEndpoints = 200

// The statuses of an endpoint. A deleted one is not found any more.
const (
	EndpointEnabled  = "enabled"
	EndpointDisabled = "disabled"
)

// WebhookEndpoint is somebody who is told of facts by HTTP.
type WebhookEndpoint struct {
	ID     string
	URL    string
	Topics []string
	// Secret is sealed. PreviousSecret is the one before the last rotation and signs beside it until PreviousUntil; both are nil and
	// zero when there is none.
	Secret         []byte
	PreviousSecret []byte
	PreviousUntil  time.Time
	Status         string
	DisabledReason string // "" when it is enabled
	DisabledAt     time.Time
	FailingSince   time.Time // nothing but failures since; zero when it took the last call
	PausedUntil    time.Time // it is not called before; zero when it is not paused
	LastError      string
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

const endpointColumns = `e.id, e.url, e.topics, e.secret, e.previous_secret, e.previous_until, e.status, e.disabled_reason, e.disabled_at,
	e.failing_since, e.paused_until, e.last_error, e.created_at, e.updated_at`

type endpointRow struct {
	ID             string
	URL            string
	Topics         []string
	Secret         []byte
	PreviousSecret []byte
	PreviousUntil  pgtype.Timestamptz
	Status         string
	DisabledReason *string
	DisabledAt     pgtype.Timestamptz
	FailingSince   pgtype.Timestamptz
	PausedUntil    pgtype.Timestamptz
	LastError      *string
	CreatedAt      pgtype.Timestamptz
	UpdatedAt      pgtype.Timestamptz
}

func collectEndpoints(rows pgx.Rows, err error) ([]WebhookEndpoint, error) {
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[endpointRow])
	if err != nil {
		return nil, err
	}
	endpoints := make([]WebhookEndpoint, len(list))
	for i, r := range list {
		endpoints[i] = WebhookEndpoint{
			ID: r.ID, URL: r.URL, Topics: r.Topics, Secret: r.Secret, PreviousSecret: r.PreviousSecret, PreviousUntil: instant(r.PreviousUntil),
			Status: r.Status, DisabledReason: value(r.DisabledReason), DisabledAt: instant(r.DisabledAt), FailingSince: instant(r.FailingSince),
			PausedUntil: instant(r.PausedUntil), LastError: value(r.LastError), CreatedAt: instant(r.CreatedAt), UpdatedAt: instant(r.UpdatedAt),
		}
	}
	return endpoints, nil
}

// oneEndpoint is ErrNotFound when there is none.
func oneEndpoint(rows pgx.Rows, err error) (WebhookEndpoint, error) {
	list, err := collectEndpoints(rows, err)
	switch {
	case err != nil:
		return WebhookEndpoint{}, err
	case len(list) == 0:
		return WebhookEndpoint{}, ErrNotFound
	}
	return list[0], nil
}

// insertEndpoint: two at the same time may pass the limit by one, which does no harm.
const insertEndpoint = `INSERT INTO webhook_endpoints AS e (id, url, topics, secret)
SELECT $1, $2, $3, $4 WHERE (SELECT count(*) FROM webhook_endpoints WHERE status <> 'deleted') < $5 RETURNING ` + endpointColumns

// CreateWebhookEndpoint writes a new endpoint with the id, URL, topics and sealed secret of e. It is told of facts that are
// dispatched from now on. ErrTooManyEndpoints when there are enough.
func (s *Store) CreateWebhookEndpoint(ctx context.Context, e WebhookEndpoint) (WebhookEndpoint, error) {
	var written WebhookEndpoint
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var err error
		if written, err = oneEndpoint(tx.Query(ctx, insertEndpoint, e.ID, e.URL, e.Topics, e.Secret, MaxEndpoints)); err != nil {
			return err
		}
		return finishClaim(ctx, tx, written)
	})
	if err != nil {
		if notFound(err) == ErrNotFound { //nolint:errorlint // the insert's own "no rows" and nothing that wraps it
			return written, ErrTooManyEndpoints
		}
		return written, fmt.Errorf("creating a webhook endpoint: %w", err)
	}
	return written, nil
}

const endpointsAfter = `SELECT ` + endpointColumns + ` FROM webhook_endpoints e WHERE status <> 'deleted' AND ($1::uuid IS NULL OR id > $1) ORDER BY id LIMIT $2`

// WebhookEndpoints is one page of at most limit endpoints with ids after the given one ("" is the beginning), oldest first.
func (s *Store) WebhookEndpoints(ctx context.Context, after string, limit int) ([]WebhookEndpoint, error) {
	list, err := collectEndpoints(s.pool.Query(ctx, endpointsAfter, text(after), limit))
	if err != nil {
		return nil, fmt.Errorf("listing webhook endpoints: %w", err)
	}
	return list, nil
}

const endpointByID = `SELECT ` + endpointColumns + ` FROM webhook_endpoints e WHERE e.id = $1 AND e.status <> 'deleted'`

// WebhookEndpoint is the one with this id, or ErrNotFound.
func (s *Store) WebhookEndpoint(ctx context.Context, id string) (WebhookEndpoint, error) {
	e, err := oneEndpoint(s.pool.Query(ctx, endpointByID, id))
	if err != nil {
		return e, fmt.Errorf("reading webhook endpoint %s: %w", id, err)
	}
	return e, nil
}

// changeEndpoint: one that is enabled again, or that has another URL, begins anew.
const changeEndpoint = `UPDATE webhook_endpoints AS e SET url = $2, topics = $3, status = $4,
	disabled_reason = CASE WHEN $4 = 'enabled' THEN NULL WHEN status = 'enabled' THEN 'operator' ELSE disabled_reason END,
	disabled_at = CASE WHEN $4 = 'enabled' THEN NULL WHEN status = 'enabled' THEN clock_timestamp() ELSE disabled_at END,
	failures = CASE WHEN fresh THEN 0 ELSE failures END, failing_since = CASE WHEN fresh THEN NULL ELSE failing_since END,
	paused_until = CASE WHEN fresh THEN NULL ELSE paused_until END, last_error = CASE WHEN fresh THEN NULL ELSE last_error END,
	updated_at = clock_timestamp()
FROM (SELECT o.id AS old_id, o.url <> $2 OR (o.status <> 'enabled' AND $4 = 'enabled') AS fresh FROM webhook_endpoints o WHERE o.id = $1) o
WHERE e.id = o.old_id RETURNING ` + endpointColumns

// ChangeWebhookEndpoint reads the endpoint, lets change work on its URL, topics and status, and writes it, all under one lock.
// ErrNotFound when there is none; an error of change comes back as it is.
func (s *Store) ChangeWebhookEndpoint(ctx context.Context, id string, change func(*WebhookEndpoint) error) (WebhookEndpoint, error) {
	return s.writeEndpoint(ctx, id, func(tx pgx.Tx, e WebhookEndpoint) (WebhookEndpoint, error) {
		if err := change(&e); err != nil {
			return e, err
		}
		return oneEndpoint(tx.Query(ctx, changeEndpoint, e.ID, e.URL, e.Topics, e.Status))
	})
}

const rotateEndpoint = `UPDATE webhook_endpoints AS e SET previous_secret = secret, previous_until = clock_timestamp() + $3::interval, secret = $2,
	updated_at = clock_timestamp()
WHERE id = $1 RETURNING ` + endpointColumns

// RotateWebhookSecret gives the endpoint a new sealed secret. The old one signs too for overlap; the one before the old one no more.
func (s *Store) RotateWebhookSecret(ctx context.Context, id string, sealed []byte, overlap time.Duration) (WebhookEndpoint, error) {
	return s.writeEndpoint(ctx, id, func(tx pgx.Tx, _ WebhookEndpoint) (WebhookEndpoint, error) {
		return oneEndpoint(tx.Query(ctx, rotateEndpoint, id, sealed, overlap))
	})
}

func (s *Store) writeEndpoint(ctx context.Context, id string, write func(pgx.Tx, WebhookEndpoint) (WebhookEndpoint, error)) (WebhookEndpoint, error) {
	var written WebhookEndpoint
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		e, err := oneEndpoint(tx.Query(ctx, endpointByID+` FOR UPDATE`, id))
		if err != nil {
			return err
		}
		if written, err = write(tx, e); err != nil {
			return err
		}
		return finishClaim(ctx, tx, written)
	})
	if err != nil {
		return written, fmt.Errorf("changing webhook endpoint %s: %w", id, err)
	}
	return written, nil
}

// deleteEndpoint forgets the secrets. What still waits for the endpoint is ended by the job.
const deleteEndpoint = `UPDATE webhook_endpoints AS e SET status = 'deleted', disabled_reason = NULL, disabled_at = NULL, secret = '',
	previous_secret = NULL, previous_until = NULL, updated_at = clock_timestamp()
WHERE id = $1 AND status <> 'deleted' RETURNING ` + endpointColumns

// DeleteWebhookEndpoint removes the endpoint and returns what it was; its deliveries stay in the log. ErrNotFound when there is none.
func (s *Store) DeleteWebhookEndpoint(ctx context.Context, id string) (WebhookEndpoint, error) {
	var gone WebhookEndpoint
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var err error
		if gone, err = oneEndpoint(tx.Query(ctx, deleteEndpoint, id)); err != nil {
			return err
		}
		return finishClaim(ctx, tx, gone)
	})
	if err != nil {
		return gone, fmt.Errorf("deleting webhook endpoint %s: %w", id, err)
	}
	return gone, nil
}
