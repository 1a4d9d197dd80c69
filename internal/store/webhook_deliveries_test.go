package store_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// Many processes claim at once: together they have no more under way to one endpoint than one of them may, and one call while
// it fails. Nobody gets what another one has.
func TestClaimsOfManyProcessesKeepTheBoundsOfAnEndpoint(t *testing.T) {
	t.Parallel()
	for failures, bound := range map[int]int64{0: 4, 3: 1} {
		pool := storetest.New(t)
		s := store.New(pool)
		_, err := pool.Exec(t.Context(), `INSERT INTO webhook_endpoints (url, topics, secret, failures) SELECT 'https://example.com/' || i, '{*}', 's', $1 FROM generate_series(1, 3) i`, failures)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `INSERT INTO outbox (id, topic, dedupe_key) SELECT uuid_v7(now()), 'order.review', i FROM generate_series(1, 40) i`)
		require.NoError(t, err)
		_, err = s.DispatchFacts(t.Context(), dbNow(t, s), false, "", 100)
		require.NoError(t, err)
		require.Equal(t, 120, count(t, pool, `SELECT count(*) FROM deliveries`))
		var claimed atomic.Int64
		var group errgroup.Group
		for range 12 {
			group.Go(func() error {
				now, err := s.Now(t.Context())
				if err != nil {
					return err
				}
				list, err := s.ClaimWebhooks(t.Context(), now, "owner", 64, 4, lease)
				claimed.Add(int64(len(list)))
				return err
			})
		}
		require.NoError(t, group.Wait())
		require.Equal(t, 3*bound, claimed.Load())
		require.EqualValues(t, 3*bound, count(t, pool, `SELECT count(*) FROM deliveries WHERE status = 'sending'`))
		require.EqualValues(t, bound, count(t, pool, `SELECT max(n) FROM (SELECT count(*) n FROM deliveries WHERE status = 'sending' GROUP BY target) t`))
	}
}

// A long queue of one endpoint is no reason for another one to wait.
func TestPlacesAreSharedBetweenEndpoints(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO webhook_endpoints (url, topics, secret) VALUES ('https://example.com/long', '{order.*}', 's'), ('https://example.com/short', '{alert.*}', 's')`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO outbox (id, topic, dedupe_key) SELECT uuid_v7(now()), CASE WHEN i > 5000 THEN 'alert.drift' ELSE 'order.review' END, i FROM generate_series(1, 5001) i`)
	require.NoError(t, err)
	_, err = s.DispatchFacts(t.Context(), dbNow(t, s), false, "", 10000)
	require.NoError(t, err)
	list, err := s.ClaimWebhooks(t.Context(), dbNow(t, s), "owner", 64, 4, lease)
	require.NoError(t, err)
	require.Len(t, list, 5)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM deliveries WHERE status = 'sending' AND topic = 'alert.drift'`))
}
