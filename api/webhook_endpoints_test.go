package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/secret"
	"termkeeper/internal/webhook"
)

func testEndpoints(t *testing.T) Endpoints {
	t.Helper()
	sealer, err := secret.NewSealer(secret.NewText("b2YgdGhlIHRlc3Qgb2YgdGhlIGNvbXBvc2UgZmlsZS4="))
	require.NoError(t, err)
	return Endpoints{Sealer: sealer}
}

// opened are the secrets of an endpoint as the database has them, opened with the test's key.
func (s *system) opened(t *testing.T, id string) (newest, previous string) {
	t.Helper()
	var sealed, before []byte
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT secret, previous_secret FROM webhook_endpoints WHERE id = $1`, id).Scan(&sealed, &before))
	open := func(sealed []byte) string {
		if sealed == nil {
			return ""
		}
		text, err := testEndpoints(t).Sealer.Open(sealed, webhook.Place(id))
		require.NoError(t, err)
		return text.Reveal()
	}
	return open(sealed), open(before)
}

func TestWebhookEndpoints(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	made := s.must(t, http.StatusCreated, http.MethodPost, "/v1/webhook-endpoints", `{"url":"https://example.com/hooks","topics":["access.*","order.review"]}`)
	id, shown := made["id"].(string), made["secret"].(string)
	require.Regexp(t, `^whsec_`, shown)
	require.Equal(t, "enabled", made["status"])
	require.Nil(t, made["disabled_reason"])
	newest, previous := s.opened(t, id)
	require.Equal(t, shown, newest)
	require.Empty(t, previous)
	var kept []byte
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT secret FROM webhook_endpoints`).Scan(&kept))
	require.NotContains(t, string(kept), shown[6:], "it is sealed")

	path := "/v1/webhook-endpoints/" + id
	read := s.must(t, http.StatusOK, http.MethodGet, path, "")
	require.NotContains(t, read, "secret", "it was shown once")
	delete(made, "secret")
	require.Equal(t, made, read)
	s.must(t, http.StatusCreated, http.MethodPost, "/v1/webhook-endpoints", `{"url":"https://example.com/hooks","topics":["*"]}`)
	s.must(t, http.StatusCreated, http.MethodPost, "/v1/webhook-endpoints", `{"url":"https://example.org/","topics":["alert.*"]}`)
	require.Len(t, s.walk(t, "/v1/webhook-endpoints?", "id", 2), 3)

	changed := s.must(t, http.StatusOK, http.MethodPatch, path, `{"url":"https://example.com/new"}`)
	require.Equal(t, "https://example.com/new", changed["url"])
	require.Equal(t, []any{"access.*", "order.review"}, changed["topics"])
	s.exec(t, `UPDATE webhook_endpoints SET failures = 3, failing_since = now(), paused_until = now(), last_error = 'x' WHERE id = $1`, id)
	off := s.must(t, http.StatusOK, http.MethodPatch, path, `{"status":"disabled","topics":["payment.failed"]}`)
	require.Equal(t, "disabled", off["status"])
	require.Equal(t, "operator", off["disabled_reason"])
	require.NotNil(t, off["disabled_at"])
	require.NotNil(t, off["failing_since"])
	on := s.must(t, http.StatusOK, http.MethodPatch, path, `{"status":"enabled"}`)
	for _, field := range []string{"disabled_reason", "disabled_at", "failing_since", "paused_until", "last_error"} {
		require.Nil(t, on[field], field)
	}
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM webhook_endpoints WHERE failures = 0 AND url = 'https://example.com/new'`), "it begins anew")

	gone := s.must(t, http.StatusOK, http.MethodDelete, path, "")
	require.Equal(t, "deleted", gone["status"])
	for method, path := range map[string]string{http.MethodGet: path, http.MethodPatch: path, http.MethodDelete: path, http.MethodPost: path + "/rotate-secret"} {
		s.do(t, roleAdmin, method, path, "").requireProblem(t, http.StatusNotFound, "not_found")
	}
	require.Len(t, s.walk(t, "/v1/webhook-endpoints?", "id", 5), 2)
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM webhook_endpoints WHERE status = 'deleted' AND secret = ''`), "its secret is forgotten")
}

func TestRotatedSecretSignsBesideTheNewOne(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	made := s.must(t, http.StatusCreated, http.MethodPost, "/v1/webhook-endpoints", `{"url":"https://example.com/hooks","topics":["*"]}`)
	id := made["id"].(string)
	rotated := s.must(t, http.StatusOK, http.MethodPost, "/v1/webhook-endpoints/"+id+"/rotate-secret", "")
	require.NotEqual(t, made["secret"], rotated["secret"])
	until, err := time.Parse(time.RFC3339, rotated["previous_secret_until"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), until, time.Minute)
	newest, previous := s.opened(t, id)
	require.Equal(t, rotated["secret"], newest)
	require.Equal(t, made["secret"], previous)
	again := s.must(t, http.StatusOK, http.MethodPost, "/v1/webhook-endpoints/"+id+"/rotate-secret", "")
	newest, previous = s.opened(t, id)
	require.Equal(t, again["secret"], newest)
	require.Equal(t, rotated["secret"], previous)
}

// The answer that is kept for a key lies in the database for a day; the secret is not in it.
func TestReplayedCreationShowsNoSecret(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const body = `{"url":"https://example.com/hooks","topics":["*"]}`
	first := s.keyed(t, roleAdmin, "k", http.MethodPost, "/v1/webhook-endpoints", body)
	require.Equal(t, http.StatusCreated, first.status)
	shown := first.field(t, "secret").(string)
	second := s.keyed(t, roleAdmin, "k", http.MethodPost, "/v1/webhook-endpoints", body)
	require.Equal(t, http.StatusCreated, second.status)
	require.Equal(t, first.field(t, "id"), second.field(t, "id"))
	require.NotContains(t, string(second.body), "whsec_")
	require.Zero(t, s.count(t, `SELECT count(*) FROM idempotency_keys WHERE position('whsec_' IN convert_from(response_body, 'UTF8')) > 0`))
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM webhook_endpoints`))
	for _, entry := range s.logs.All() {
		require.NotContains(t, fmt.Sprint(entry.Message, entry.ContextMap()), shown)
	}
}

func TestWrongWebhookEndpointsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	many := `"` + strings.Repeat(`a","`, 50) + `b"`
	for body, pointers := range map[string][]string{
		``: {"/url", "/topics"},
		`{"url":"http://example.com/","topics":["*"]}`:                    {"/url"},
		`{"url":"https://127.0.0.1/","topics":["*"]}`:                     {"/url"},
		`{"url":"https://169.254.169.254/","topics":["*"]}`:               {"/url"},
		`{"url":"https://user:pass@example.com/","topics":["*"]}`:         {"/url"},
		`{"url":"file:///etc/passwd","topics":["*"]}`:                     {"/url"},
		`{"url":null,"topics":null}`:                                      {"/url", "/topics"},
		`{"url":"https://example.com/","topics":[]}`:                      {"/topics"},
		`{"url":"https://example.com/","topics":["*","*"]}`:               {"/topics/1"},
		`{"url":"https://example.com/","topics":["access.","a b"]}`:       {"/topics/0", "/topics/1"},
		`{"url":"https://example.com/","topics":[` + many + `]}`:          {"/topics"},
		`{"url":"https://example.com/","topics":["*"],"status":"x"}`:      {"/status"},
		`{"url":"https://example.com/","topics":["*"],"secret":"whsec_"}`: {"/secret"},
	} {
		a := s.do(t, roleAdmin, http.MethodPost, "/v1/webhook-endpoints", body)
		require.Equal(t, pointers, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
	}
	require.Zero(t, s.count(t, `SELECT count(*) FROM webhook_endpoints`))
	id := s.must(t, http.StatusCreated, http.MethodPost, "/v1/webhook-endpoints", `{"url":"https://example.com/hooks","topics":["*"]}`)["id"].(string)
	for body, pointer := range map[string]string{`{"url":null}`: "/url", `{"topics":[]}`: "/topics", `{"status":"deleted"}`: "/status"} {
		a := s.do(t, roleAdmin, http.MethodPatch, "/v1/webhook-endpoints/"+id, body)
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
	}
	s.exec(t, `INSERT INTO webhook_endpoints (url, topics, secret) SELECT 'https://example.com/', '{*}', 's' FROM generate_series(1, 199)`)
	s.do(t, roleAdmin, http.MethodPost, "/v1/webhook-endpoints", `{"url":"https://example.com/","topics":["*"]}`).requireProblem(t, http.StatusConflict, "too_many_endpoints")
}
