package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDeliveriesAreListedAndRetried(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO outbox (id, topic, dedupe_key, status) VALUES ($1, 'access.ended', 'k', 'dispatched')`, goldenID)
	s.exec(t, `INSERT INTO deliveries (id, outbox_id, channel, target, topic, user_id, status, attempts, last_error, message_id, finished_at, leased_until, lease_owner)
		SELECT uuid_v7(now() + n * interval '1 second'), $1, channel, n || '@example.org', 'access.ended', 'u_1', status, 12, 'said no', n || '@termkeeper',
			CASE WHEN status IN ('sent', 'superseded', 'dead') THEN now() END, CASE WHEN status = 'sending' THEN now() + interval '1 minute' END,
			CASE WHEN status = 'sending' THEN 'owner' END
		FROM unnest('{pending,sending,sent,superseded,dead}'::text[]) WITH ORDINALITY AS s(status, a), unnest('{email,webhook}'::text[]) WITH ORDINALITY AS c(channel, b),
			LATERAL (SELECT 2 * a + b AS n) AS numbered`, goldenID)
	require.Len(t, s.walk(t, "/v1/deliveries?", "id", 3), 10)
	require.Len(t, s.walk(t, "/v1/deliveries?channel=email&", "id", 2), 5)
	require.Len(t, s.walk(t, "/v1/deliveries?status=dead&", "id", 1), 2)
	dead := s.must(t, http.StatusOK, http.MethodGet, "/v1/deliveries?status=dead&channel=email", "")["data"].([]any)[0].(map[string]any)
	for _, field := range []string{"id", "outbox_id", "channel", "target", "topic", "status", "attempts", "next_attempt_at", "last_error", "message_id"} {
		require.NotNil(t, dead[field], field)
	}
	for query, pointer := range map[string]string{"status=gone": "/status", "channel=pigeon": "/channel", "limit=0": "/limit", "cursor=x": "/cursor"} {
		a := s.do(t, roleOperator, http.MethodGet, "/v1/deliveries?"+query, "")
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"))
	}

	path := "/v1/deliveries/" + dead["id"].(string)
	require.Equal(t, dead, s.must(t, http.StatusOK, http.MethodGet, path, ""))
	retried := s.keyed(t, roleOperator, "again", http.MethodPost, path+"/retry", "")
	require.Equal(t, http.StatusOK, retried.status, string(retried.body))
	require.Equal(t, "pending", retried.field(t, "status"))
	require.EqualValues(t, 0, retried.field(t, "attempts"))
	require.Nil(t, retried.field(t, "finished_at"))
	require.Equal(t, dead["message_id"], retried.field(t, "message_id"), "the receiver can tell that it is the same")
	require.Equal(t, string(retried.body), string(s.keyed(t, roleOperator, "again", http.MethodPost, path+"/retry", "").body))
	s.do(t, roleOperator, http.MethodPost, path+"/retry", "").requireProblem(t, http.StatusConflict, "not_dead")
	for _, status := range []string{"sent", "dead"} {
		id := s.must(t, http.StatusOK, http.MethodGet, "/v1/deliveries?channel=webhook&status="+status, "")["data"].([]any)[0].(map[string]any)["id"].(string)
		s.do(t, roleOperator, http.MethodPost, "/v1/deliveries/"+id+"/retry", "").requireProblem(t, http.StatusConflict, "endpoint_disabled")
	}
	for _, status := range []string{"pending", "sending", "superseded"} {
		id := s.must(t, http.StatusOK, http.MethodGet, "/v1/deliveries?channel=webhook&status="+status, "")["data"].([]any)[0].(map[string]any)["id"].(string)
		s.do(t, roleOperator, http.MethodPost, "/v1/deliveries/"+id+"/retry", "").requireProblem(t, http.StatusConflict, "not_dead")
	}
	require.Equal(t, 2, s.count(t, `SELECT count(*) FROM deliveries WHERE status = 'pending' AND channel = 'email'`))
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM deliveries WHERE status = 'sending' AND channel = 'webhook' AND lease_owner = 'owner'`))
	mail := s.must(t, http.StatusOK, http.MethodGet, "/v1/deliveries?channel=email&status=sent", "")["data"].([]any)[0].(map[string]any)["id"].(string)
	s.do(t, roleOperator, http.MethodPost, "/v1/deliveries/"+mail+"/retry", "").requireProblem(t, http.StatusConflict, "not_dead")
	for _, id := range []string{goldenID, "x"} {
		s.do(t, roleOperator, http.MethodGet, "/v1/deliveries/"+id, "").requireProblem(t, http.StatusNotFound, "not_found")
		s.do(t, roleOperator, http.MethodPost, "/v1/deliveries/"+id+"/retry", "").requireProblem(t, http.StatusNotFound, "not_found")
	}
}
