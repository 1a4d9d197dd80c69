package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

func TestRoutingErrorsAreProblems(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.do(t, public, http.MethodGet, "/", "").requireProblem(t, http.StatusNotFound, "not_found")
	s.do(t, roleAdmin, http.MethodGet, "/v1/nothing", "").requireProblem(t, http.StatusNotFound, "not_found")
	s.do(t, roleAdmin, http.MethodGet, "/v1/plans/../../etc/passwd", "").requireProblem(t, http.StatusNotFound, "not_found")
	a := s.do(t, roleAdmin, http.MethodDelete, "/v1/plans", "")
	a.requireProblem(t, http.StatusMethodNotAllowed, "method_not_allowed")
	require.Contains(t, a.header.Get("Allow"), "POST")
	for _, path := range []string{"/debug/pprof/", "/metrics", "/healthz/ready"} {
		s.do(t, public, http.MethodGet, path, "").requireProblem(t, http.StatusNotFound, "not_found")
	}
}

func TestAPanicIsAProblemWithoutItsStack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.server.echo.GET("/panic", func(echo.Context) error { panic("canary") })
	s.server.echo.GET("/broken", func(echo.Context) error { return errors.New("canary") })
	for _, path := range []string{"/panic", "/broken"} {
		a := s.do(t, public, http.MethodGet, path, "")
		a.requireProblem(t, http.StatusInternalServerError, "internal_error")
		require.NotContains(t, string(a.body), "canary")
		require.NotContains(t, string(a.body), "goroutine")
	}
	panics := s.logs.FilterMessage("a handler panicked").All()
	require.Len(t, panics, 1)
	require.Contains(t, fmt.Sprint(panics[0].ContextMap()["stack"]), "problem_test.go")
}

// endless is a body without a length.
type endless struct{ io.Reader }

func TestLargeBodiesAreRefusedEverywhere(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	large := bytes.Repeat([]byte(" "), maxBody+1)
	for _, r := range routes(Parts{}) {
		if r.method == http.MethodGet || strings.HasPrefix(r.path, "/v1/jobs/") {
			continue
		}
		for name, body := range map[string]func() io.Reader{
			"with its length": func() io.Reader { return bytes.NewReader(large) },
			"chunked":         func() io.Reader { return endless{bytes.NewReader(large)} },
		} {
			a := s.ask(func() *http.Request {
				request := httptest.NewRequestWithContext(t.Context(), r.method, examplePath(r.path), body())
				request.Header.Set("Authorization", "Bearer "+s.keys[roleAdmin])
				return request
			})
			require.Equal(t, http.StatusRequestEntityTooLarge, a.status, "%s %s %s: %s", r.method, r.path, name, a.body)
			a.requireProblem(t, http.StatusRequestEntityTooLarge, "payload_too_large")
		}
	}
	just := `{"checks":[{"user_id":"u"}]}`
	a := s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", just+strings.Repeat(" ", maxBody-len(just)))
	require.Equal(t, http.StatusOK, a.status, "exactly 1 MiB is taken")
}

func TestAnswersCarryTheirHeaders(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, path := range []string{"/v1/access?user_id=u", "/v1/nothing"} {
		h := s.do(t, roleAccess, http.MethodGet, path, "").header
		require.Equal(t, "no-store", h.Get("Cache-Control"))
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
		require.Equal(t, "DENY", h.Get("X-Frame-Options"))
		require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'")
		require.Empty(t, h.Get("Server"))
		require.Empty(t, h.Get("Access-Control-Allow-Origin"))
	}
	named := func(id string) string {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/access?user_id=u", nil)
		request.Header.Set("X-Request-Id", id)
		return s.send(request).header.Get("X-Request-Id")
	}
	require.Equal(t, "trace-1.2_3", named("trace-1.2_3"))
	for _, bad := range []string{"a b", "a\nb", strings.Repeat("a", 65), `"`} {
		id := named(bad)
		require.NotEqual(t, bad, id)
		require.Len(t, id, 36)
	}
}

// TestLogsTellNoSecrets plants a secret in every place that a request has and looks for it in the log.
func TestLogsTellNoSecrets(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.ask(func() *http.Request {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/plans?q=canary-query", strings.NewReader(`{"canary-field":"canary-body"}`))
		request.Header.Set("Authorization", "Bearer "+s.keys[roleAdmin])
		request.Header.Set("Stripe-Signature", "t=1,v1=canary-signature")
		return request
	}).requireProblem(t, http.StatusBadRequest, "invalid_request")
	s.do(t, public, http.MethodPost, "/v1/webhooks/stripe", "canary-body").requireProblem(t, http.StatusBadRequest, "bad_signature")
	s.do(t, roleAdmin, http.MethodGet, "/v1/users/canary-user", "").requireProblem(t, http.StatusNotFound, "not_found")
	require.NotZero(t, s.logs.Len())
	for _, entry := range s.logs.All() {
		line := entry.Message + fmt.Sprint(entry.ContextMap())
		require.NotContains(t, line, "canary-body")
		require.NotContains(t, line, "canary-query")
		require.NotContains(t, line, "canary-signature")
		for _, key := range s.keys {
			require.NotContains(t, line, key)
		}
		require.NotContains(t, line, secretNew)
	}
}
