package api

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDriftIsListed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO drift_findings (id, kind, action, external_id, subscription_id, user_id, event_id, ours, theirs, cause, reason, found_at, resolved_at)
		SELECT uuid_v7('2026-11-30T00:00:00Z'::timestamptz + n * interval '1 hour'), kind, action, 'sub_' || n, $1, 'u_1',
			CASE kind WHEN 'event_missing' THEN 'evt_' || n END, '{"status": "active"}', '{"status": "canceled"}', 'event evt_1 was not delivered',
			CASE action WHEN 'repaired' THEN NULL ELSE 'the row cannot be written' END, '2026-11-30T00:00:00Z'::timestamptz + n * interval '1 hour',
			CASE action WHEN 'none' THEN now() END
		FROM unnest('{ended_there,period,event_missing}'::text[]) WITH ORDINALITY AS k(kind, a), unnest('{repaired,quarantined,none}'::text[]) WITH ORDINALITY AS c(action, b),
			LATERAL (SELECT 3 * (a - 1) + b AS n) AS numbered`, goldenID)
	s.exec(t, `INSERT INTO drift_findings (id, kind, action, external_id, found_at) VALUES (uuid_v7('2026-12-01'), 'missing', 'repaired', 'sub_bare', '2026-12-01')`)
	require.Len(t, s.walk(t, "/v1/drift?", "id", 4), 10)
	require.Len(t, s.walk(t, "/v1/drift?kind=period&", "id", 2), 3)
	require.Len(t, s.walk(t, "/v1/drift?action=repaired&", "id", 3), 4)
	from, to := url.QueryEscape("2026-11-30T02:00:00Z"), url.QueryEscape("2026-11-30T07:00:00Z")
	require.Len(t, s.walk(t, "/v1/drift?from="+from+"&to="+to+"&", "id", 2), 5, "the first is in, the last is not")

	list := s.must(t, http.StatusOK, http.MethodGet, "/v1/drift?kind=event_missing&action=none", "")["data"].([]any)
	require.Len(t, list, 1)
	one := list[0].(map[string]any)
	for _, field := range []string{"id", "external_id", "subscription_id", "user_id", "event_id", "cause", "reason", "found_at", "seen_at", "resolved_at"} {
		require.NotNil(t, one[field], field)
	}
	require.Equal(t, map[string]any{"status": "active"}, one["ours"])
	require.Equal(t, map[string]any{"status": "canceled"}, one["theirs"])
	at, err := time.Parse(time.RFC3339, one["found_at"].(string))
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, time.November, 30, 9, 0, 0, 0, time.UTC), at)

	for query, pointer := range map[string]string{
		"kind=strange": "/kind", "action=gone": "/action", "from=yesterday": "/from", "to=2026": "/to", "limit=0": "/limit", "cursor=x": "/cursor",
	} {
		a := s.do(t, roleOperator, http.MethodGet, "/v1/drift?"+query, "")
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), query)
	}
	s.do(t, roleAccess, http.MethodGet, "/v1/drift", "").requireProblem(t, http.StatusForbidden, "forbidden")
}
