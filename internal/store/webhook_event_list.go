package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// WebhookEventState is what became of one stored event.
type WebhookEventState struct {
	ID            string
	Provider      string
	ExternalID    string `db:"external_event_id"`
	Type          string
	APIVersion    *string `db:"api_version"`
	Status        string
	Reason        *string // why it is ignored, quarantined or changed nothing
	Attempts      int
	NextAttemptAt time.Time
	LastError     *string
	ReceivedAt    time.Time
	ProcessedAt   *time.Time
}

const webhookStateColumns = `e.id, e.provider, e.external_event_id, e.type, e.api_version, e.status, e.reason, e.attempts, e.next_attempt_at,
	e.last_error, e.received_at, e.processed_at`

// WebhookEventFilter narrows a list. Empty fields do not narrow.
type WebhookEventFilter struct {
	Status     string
	Type       string
	ExternalID string
}

// WebhookEventStates is one page of at most limit events with ids before the given one, newest first. Payloads are not read.
func (s *Store) WebhookEventStates(ctx context.Context, f WebhookEventFilter, before string, limit int) ([]WebhookEventState, error) {
	var query strings.Builder
	query.WriteString(`SELECT ` + webhookStateColumns + ` FROM payment_webhook_events e WHERE true`)
	var args []any
	where := func(condition string, v string) {
		if v != "" {
			args = append(args, v)
			fmt.Fprintf(&query, " AND %s $%d", condition, len(args))
		}
	}
	where("e.status =", f.Status)
	where("e.type =", f.Type)
	where("e.external_event_id =", f.ExternalID)
	where("e.id <", before)
	args = append(args, limit)
	fmt.Fprintf(&query, " ORDER BY e.id DESC LIMIT $%d", len(args))
	rows, err := s.pool.Query(ctx, query.String(), args...)
	if err != nil {
		return nil, fmt.Errorf("listing webhook events: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[WebhookEventState])
	if err != nil {
		return nil, fmt.Errorf("listing webhook events: %w", err)
	}
	return list, nil
}

const webhookEventByID = `SELECT ` + webhookStateColumns + `, e.payload FROM payment_webhook_events e WHERE e.id = $1`

// WebhookEventState is one event with its raw body, or ErrNotFound.
func (s *Store) WebhookEventState(ctx context.Context, id string) (WebhookEventState, []byte, error) {
	rows, err := s.pool.Query(ctx, webhookEventByID, id)
	if err != nil {
		return WebhookEventState{}, nil, fmt.Errorf("reading webhook event %s: %w", id, err)
	}
	type whole struct {
		WebhookEventState
		Payload []byte
	}
	event, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[whole])
	if err != nil {
		return WebhookEventState{}, nil, fmt.Errorf("reading webhook event %s: %w", id, notFound(err))
	}
	return event.WebhookEventState, event.Payload, nil
}
