package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/subscription"
)

// A change of access that goes on is a fact where an endpoint wants it, and no row where nobody does.
func TestChangesAreFactsWhereAnEndpointWantsThem(t *testing.T) {
	t.Parallel()
	for topic, wanted := range map[string]bool{"": false, "access.started": false, "order.*": false, "*": true, "access.*": true, "access.changed": true} {
		t.Run("topic "+topic, func(t *testing.T) {
			t.Parallel()
			pool := storetest.New(t)
			s := store.New(pool)
			_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
			require.NoError(t, err)
			if topic != "" {
				_, err = pool.Exec(t.Context(), `INSERT INTO webhook_endpoints (url, topics, secret) VALUES ('https://example.com', ARRAY[$1], 's')`, topic)
				require.NoError(t, err)
			}
			var id string
			require.NoError(t, pool.QueryRow(t.Context(), `INSERT INTO subscriptions (user_id, plan_key, status, expires_at)
				VALUES ('u_1', 'pro', 'active', now() + interval '1 day') RETURNING id`).Scan(&id))
			act := func(do func(subscription.Subscription, time.Time) (subscription.Subscription, []subscription.Change, error)) {
				_, err := s.ChangeSubscription(t.Context(), id, "test", "", do)
				require.NoError(t, err)
			}
			act(func(row subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
				return row.Extend(at, time.Hour)
			})
			act(func(row subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
				return row.Pause(at)
			})
			act(func(row subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
				return row.Resume(at, false)
			})
			var kinds []string
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(kind ORDER BY id), '{}') FROM outbox WHERE topic = 'access.changed'`).Scan(&kinds))
			if wanted {
				require.Equal(t, []string{"extended", "paused", "resumed"}, kinds)
			} else {
				require.Empty(t, kinds)
			}
		})
	}
}
