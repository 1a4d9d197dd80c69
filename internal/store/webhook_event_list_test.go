package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

func TestWebhookEventStates(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO payment_webhook_events (id, external_event_id, type, status, reason, payload, processed_at) VALUES
		('01980000-0000-7000-8000-000000000001', 'evt_1', 'a', 'ignored', 'unused_type', '{"id":"evt_1"}', now()),
		('01980000-0000-7000-8000-000000000002', 'evt_2', 'b', 'pending', NULL, '\x00ff', NULL),
		('01980000-0000-7000-8000-000000000003', 'evt_3', 'a', 'quarantined', 'plan_unmapped', '{}', NULL)`)
	require.NoError(t, err)
	list := func(f store.WebhookEventFilter, before string, limit int) []string {
		events, err := s.WebhookEventStates(t.Context(), f, before, limit)
		require.NoError(t, err)
		external := []string{}
		for _, e := range events {
			external = append(external, e.ExternalID)
		}
		return external
	}
	require.Equal(t, []string{"evt_3", "evt_2", "evt_1"}, list(store.WebhookEventFilter{}, "", 10))
	require.Equal(t, []string{"evt_3", "evt_2"}, list(store.WebhookEventFilter{}, "", 2))
	require.Equal(t, []string{"evt_1"}, list(store.WebhookEventFilter{}, "01980000-0000-7000-8000-000000000002", 2))
	require.Equal(t, []string{"evt_2"}, list(store.WebhookEventFilter{Status: "pending"}, "", 10))
	require.Equal(t, []string{"evt_3", "evt_1"}, list(store.WebhookEventFilter{Type: "a"}, "", 10))
	require.Equal(t, []string{"evt_1"}, list(store.WebhookEventFilter{Type: "a", ExternalID: "evt_1", Status: "ignored"}, "", 10))
	require.Empty(t, list(store.WebhookEventFilter{Status: "' OR true --"}, "", 10))

	event, payload, err := s.WebhookEventState(t.Context(), "01980000-0000-7000-8000-000000000002")
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0xff}, payload, "the bytes as they came")
	require.Equal(t, "pending", event.Status)
	require.Nil(t, event.ProcessedAt)
	_, _, err = s.WebhookEventState(t.Context(), store.NewID())
	require.ErrorIs(t, err, store.ErrNotFound)
}

func TestOutboxBacklog(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	pending, oldest, err := s.OutboxBacklog(t.Context())
	require.NoError(t, err)
	require.Zero(t, pending)
	require.Zero(t, oldest)
	_, err = pool.Exec(t.Context(), `INSERT INTO outbox (topic, dedupe_key, status, created_at, dispatched_at) VALUES
		('t', 'a', 'pending', now() - interval '1 minute', NULL), ('t', 'b', 'pending', now(), NULL), ('t', 'c', 'dispatched', now() - interval '1 hour', now())`)
	require.NoError(t, err)
	pending, oldest, err = s.OutboxBacklog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, pending)
	require.GreaterOrEqual(t, oldest, time.Minute)
	require.Less(t, oldest, time.Hour, "the dispatched one does not count")
}
