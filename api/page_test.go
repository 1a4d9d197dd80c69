package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// walk reads a list to its end, page by page, and returns the values of a field.
func (s *system) walk(t *testing.T, path, field string, limit int) []string {
	t.Helper()
	var all []string
	cursor := ""
	for {
		target := fmt.Sprintf("%slimit=%d&cursor=%s", path, limit, url.QueryEscape(cursor))
		a := s.do(t, roleOperator, http.MethodGet, target, "")
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		var page struct {
			Data       []map[string]any `json:"data"`
			NextCursor *string          `json:"next_cursor"`
		}
		require.NoError(t, json.Unmarshal(a.body, &page))
		require.NotNil(t, page.Data, "an empty page is an empty list")
		require.LessOrEqual(t, len(page.Data), limit)
		for _, row := range page.Data {
			all = append(all, row[field].(string))
		}
		if page.NextCursor == nil {
			return all
		}
		require.Len(t, page.Data, limit, "only the last page may be short")
		cursor = *page.NextCursor
	}
}

func TestListsAreWalkedWhole(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	require.Empty(t, s.walk(t, "/v1/plans?", "key", 5))
	s.seed(t)
	for i := range 11 {
		s.exec(t, `INSERT INTO plans (key) VALUES ($1)`, fmt.Sprintf("p%02d", i))
	}
	// Ends in pairs, so that pages break between rows of the same end; lifetimes and ended ones too.
	s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at)
		SELECT 'u_' || n % 3, 'pro', CASE WHEN n % 5 = 0 THEN 'canceled' ELSE 'active' END, '2026-01-01', '2100-01-01'::timestamptz + interval '1 day' * (n / 2) FROM generate_series(1, 23) n`)
	s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_0', 'pro', 'active', 'infinity')`)
	s.exec(t, `INSERT INTO payment_webhook_events (external_event_id, type, status, payload) SELECT 'evt_' || n, 't', CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'ignored' END, '{}' FROM generate_series(1, 17) n`)
	s.exec(t, `INSERT INTO job_runs (job, run_id, trigger, scheduled_at, published_at, started_at, deadline_at)
		SELECT 'subscription-expiry', 'run_' || n, 'manual', now(), now(), '2026-01-01'::timestamptz + interval '1 s' * (n / 2), now() FROM generate_series(1, 13) n`)
	var id string
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT id FROM subscriptions LIMIT 1`).Scan(&id))
	s.exec(t, `INSERT INTO subscription_events (subscription_id, event_type, at) SELECT $1, 'extended', '2026-01-01'::timestamptz + interval '1 s' * (n / 3) FROM generate_series(1, 14) n`, id)

	for _, list := range []struct {
		path, field, query string
	}{
		{"/v1/plans?", "key", `SELECT key FROM plans ORDER BY key`},
		{"/v1/subscriptions?", "id", `SELECT id::text FROM subscriptions ORDER BY id`},
		{"/v1/subscriptions?user_id=u_1&status=active&", "id", `SELECT id::text FROM subscriptions WHERE user_id = 'u_1' AND status = 'active' ORDER BY id`},
		{
			"/v1/subscriptions?expiring_before=2100-01-09T00:00:00Z&", "id",
			`SELECT id::text FROM subscriptions WHERE status = 'active' AND access_until < '2100-01-09' ORDER BY access_until, id`,
		},
		{"/v1/webhook-events?", "id", `SELECT id::text FROM payment_webhook_events ORDER BY id DESC`},
		{"/v1/webhook-events?status=pending&", "id", `SELECT id::text FROM payment_webhook_events WHERE status = 'pending' ORDER BY id DESC`},
		{"/v1/jobs/subscription-expiry/runs?", "run_id", `SELECT run_id FROM job_runs ORDER BY started_at DESC, run_id DESC`},
		{"/v1/subscriptions/" + id + "/history?", "id", `SELECT id::text FROM subscription_events ORDER BY at, id`},
	} {
		var want []string
		rows, err := s.pool.Query(t.Context(), list.query)
		require.NoError(t, err)
		for rows.Next() {
			var value string
			require.NoError(t, rows.Scan(&value))
			want = append(want, value)
		}
		require.NoError(t, rows.Err())
		require.NotEmpty(t, want)
		for _, limit := range []int{1, 2, 5, len(want), 200} {
			require.Equal(t, want, s.walk(t, list.path, list.field, limit), "%s by %d", list.path, limit)
		}
	}
}

func TestPagesRefuseWrongLimitsAndCursors(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, limit := range []string{"0", "-1", "201", "1000000000", "99999999999999999999", "x", "1.5", "%201"} {
		a := s.do(t, roleOperator, http.MethodGet, "/v1/plans?limit="+limit, "")
		require.Equal(t, []string{"/limit"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), limit)
	}
	s.seed(t)
	s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) SELECT 'u_1', 'pro', 'active', 'infinity' FROM generate_series(1, 4)`)
	next := func(path string) string {
		cursor, _ := s.must(t, http.StatusOK, http.MethodGet, path, "")["next_cursor"].(string)
		require.NotEmpty(t, cursor)
		return cursor
	}
	good := next("/v1/subscriptions?limit=1")
	byUser := next("/v1/subscriptions?limit=1&user_id=u_1")
	flipped := []byte(good)
	flipped[len(flipped)/2] ^= 1
	bare, err := json.Marshal(subscriptionPosition{})
	require.NoError(t, err)
	for name, cursor := range map[string]string{
		"nonsense": "abc", "not base64": "!!!", "cut": good[:len(good)-2], "changed": string(flipped), "of another filter": byUser, "of another list": next("/v1/plans?limit=1"),
		"made up": base64.RawURLEncoding.EncodeToString(append([]byte("12345678"), bare...)), "long": strings.Repeat("A", 4000), "sql": "' OR 1=1",
	} {
		a := s.do(t, roleOperator, http.MethodGet, "/v1/subscriptions?limit=1&cursor="+url.QueryEscape(cursor), "")
		require.Equal(t, []string{"/cursor"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), name)
	}
	require.Equal(t, http.StatusOK, s.do(t, roleOperator, http.MethodGet, "/v1/subscriptions?limit=1&cursor="+good, "").status)

	// The check in a cursor is no secret, so what is in it must be harmless whoever made it.
	for _, c := range []struct {
		path, list string
		position   any
	}{
		{"/v1/plans?", "plans", "a\x00b"},
		{"/v1/jobs/webhook-apply/runs?", filtered("runs", "webhook-apply"), runPosition{StartedAt: time.Unix(1, 0), RunID: "\x00"}},
		{"/v1/subscriptions?", filtered("subscriptions", "", "", ""), map[string]string{"i": "\x00"}},
		{"/v1/webhook-events?", filtered("webhook-events", "", "", ""), "\x00"},
	} {
		cursor, err := sealCursor(c.list, c.position)
		require.NoError(t, err)
		a := s.do(t, roleOperator, http.MethodGet, c.path+"cursor="+cursor, "")
		require.Equal(t, []string{"/cursor"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), c.path)
	}
}
