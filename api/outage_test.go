package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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
			now := time.Now()
			body := subscriptionEvent("evt_1", "u_1", now)
			ask := func(as role, method, path string) (answer, error) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, method, "http://"+listener.Addr().String()+path, strings.NewReader(body))
				if err != nil {
					return answer{}, err
				}
				request.Header.Set("Authorization", "Bearer "+s.keys[as])
				request.Header.Set("Stripe-Signature", signature(secretNew, now, body))
				response, err := http.DefaultClient.Do(request)
				if err != nil {
					return answer{}, err
				}
				defer func() { _ = response.Body.Close() }()
				read, err := io.ReadAll(response.Body)
				return answer{response.StatusCode, response.Header, read}, err
			}
			require.Eventually(t, func() bool { // a busy machine may need a second try
				before, err := ask(roleAccess, http.MethodGet, "/v1/access?user_id=u_1")
				return err == nil && before.status == http.StatusOK && bytes.Contains(before.body, []byte(`"allowed":true`))
			}, 20*time.Second, 10*time.Millisecond)
			fail(proxy)
			cases := []struct {
				as           role
				method, path string
				code         string
			}{
				{roleAccess, http.MethodGet, "/v1/access?user_id=u_1", "database_unavailable"}, // its key is still in memory
				{roleAdmin, http.MethodGet, "/v1/access?user_id=u_1", "database_unavailable"},  // its key is not
				{roleOperator, http.MethodGet, "/v1/plans", "database_unavailable"},
				{public, http.MethodPost, "/v1/webhooks/stripe", "not_stored"},
			}
			answers, errs := make([]answer, len(cases)), make([]error, len(cases))
			var wait sync.WaitGroup
			for i, c := range cases {
				wait.Go(func() { answers[i], errs[i] = ask(c.as, c.method, c.path) })
			}
			wait.Wait()
			for i, c := range cases {
				require.NoError(t, errs[i], c.path)
				answers[i].requireProblem(t, http.StatusServiceUnavailable, c.code)
				require.NotEmpty(t, answers[i].header.Get("Retry-After"))
			}
			require.Zero(t, s.count(t, `SELECT count(*) FROM payment_webhook_events`))
			proxy.cut() // ends what still waits
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
	blocked := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/access?user_id=u_1", nil)
	blocked.Header.Set("Authorization", "Bearer "+s.keys[roleAccess])
	s.send(blocked).requireProblem(t, http.StatusServiceUnavailable, "database_unavailable")
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, tx.Rollback(t.Context()), pgx.ErrTxClosed)
	require.Equal(t, http.StatusOK, s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1", "").status)
}
