package api

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// TestWithoutTheDatabase takes the database away in both ways, refusing and silent. Nobody gets an old or a wrong answer,
// and everybody gets one.
func TestWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*proxy){"silent": (*proxy).hush, "refusing": (*proxy).cut} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			databaseURL := storetest.NewURL(t)
			pool, err := store.Open(t.Context(), databaseURL, store.PoolOptions{Name: "test", MaxConns: 4, StatementTimeout: 5 * time.Second, LockTimeout: time.Second})
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			served, proxy := throughProxy(t, databaseURL)
			s := newSystemOn(t, pool, served)
			s.seed(t)
			s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_1', 'pro', 'active', 'infinity')`)
			// A real server: the test must end even if an answer never comes.
			listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			go func() { _ = s.server.Serve(listener) }()
			t.Cleanup(func() { _ = s.server.http.Close() })
			ask := func(as role, method, path string) answer {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, method, "http://"+listener.Addr().String()+path, nil)
				require.NoError(t, err)
				request.Header.Set("Authorization", "Bearer "+s.keys[as])
				response, err := http.DefaultClient.Do(request)
				require.NoError(t, err)
				return answer{response.StatusCode, response.Header, readAll(t, response.Body)}
			}
			require.Equal(t, true, ask(roleAccess, http.MethodGet, "/v1/access?user_id=u_1").field(t, "allowed"))
			fail(proxy)
			for range 3 { // with the key in memory, and without
				a := ask(roleAccess, http.MethodGet, "/v1/access?user_id=u_1")
				a.requireProblem(t, http.StatusServiceUnavailable, "database_unavailable")
				require.Equal(t, "1", a.header.Get("Retry-After"))
			}
			ask(roleAdmin, http.MethodGet, "/v1/access?user_id=u_1").requireProblem(t, http.StatusServiceUnavailable, "database_unavailable")
			ask(roleOperator, http.MethodGet, "/v1/plans").requireProblem(t, http.StatusServiceUnavailable, "database_unavailable")
			now := time.Now()
			body := subscriptionEvent("evt_1", "u_1", now)
			a := s.deliver(t, body, signature(secretNew, now, body))
			a.requireProblem(t, http.StatusServiceUnavailable, "not_stored")
			require.NotEmpty(t, a.header.Get("Retry-After"))
			require.Zero(t, s.count(t, `SELECT count(*) FROM payment_webhook_events`))
		})
	}
	require.Less(t, accessDeadline, 500*time.Millisecond)
}

// TestABlockedTableIsNoWrongAnswer: a lock that somebody holds for long is trouble of the database too.
func TestABlockedTableIsNoWrongAnswer(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	tx, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	_, err = tx.Exec(t.Context(), `LOCK TABLE subscriptions IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1", "").requireProblem(t, http.StatusServiceUnavailable, "database_unavailable")
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, tx.Rollback(t.Context()), pgx.ErrTxClosed)
	require.Equal(t, http.StatusOK, s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1", "").status)
}
