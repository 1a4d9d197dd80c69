package api

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWrongBodiesAreRefusedEverywhere sends every write what it cannot be: each time 400, by field where there is one, as a
// problem. What the body says counts, whatever its Content-Type: curl sends application/x-www-form-urlencoded by itself.
func TestWrongBodiesAreRefusedEverywhere(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	// One field of each route with its wrong types. Routes without fields take {} only.
	typed := map[string]string{
		"POST /v1/access/batch": "checks", "PUT /v1/users/:id": "email", "PUT /v1/users/:id/stripe-customer": "customer_id", "POST /v1/plans": "features",
		"PATCH /v1/plans/:key": "features", "POST /v1/subscriptions": "user_id", "POST /v1/subscriptions/:id/cancel": "at_period_end",
		"POST /v1/subscriptions/:id/pause": "reason", "POST /v1/subscriptions/:id/resume": "add_paused_time", "POST /v1/subscriptions/:id/extend": "duration",
		"POST /v1/jobs/:job/pause": "reason", "POST /v1/orders": "plan", "POST /v1/orders/:id/resolve": "as",
	}
	writes := 0
	for _, r := range routes(Parts{}) {
		if r.method == http.MethodGet || r.role == public {
			continue
		}
		writes++
		name := r.method + " " + r.path
		send := func(body, contentType string) answer {
			return s.ask(func() *http.Request {
				request := httptest.NewRequestWithContext(t.Context(), r.method, examplePath(r.path), strings.NewReader(body))
				request.Header.Set("Authorization", "Bearer "+s.keys[roleAdmin])
				request.Header.Set("Content-Type", contentType)
				return request
			})
		}
		for _, body := range []string{"[]", `"x"`, "7", "null", "{", "{}{}", `{"a":}`, "\xff", "user_id=u_1"} {
			a := send(body, "application/json")
			require.Equal(t, http.StatusBadRequest, a.status, "%s %q: %s", name, body, a.body)
			a.requireProblem(t, http.StatusBadRequest, "invalid_json")
		}
		for _, contentType := range []string{"application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""} {
			a := send(`{"no_such_field":1}`, contentType)
			require.Equal(t, []string{"/no_such_field"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), "%s as %q", name, contentType)
		}
		if field := typed[name]; field != "" {
			for _, value := range []string{"7", `{"a":1}`, "[[]]", "1e999"} {
				a := send(fmt.Sprintf(`{%q:%s}`, field, value), "application/json")
				pointers := a.requireProblem(t, http.StatusBadRequest, "invalid_request")
				require.NotEmpty(t, pointers, "%s %s", name, value)
				require.True(t, strings.HasPrefix(pointers[0], "/"+field), "%s %s: %v", name, value, pointers)
			}
			a := send(fmt.Sprintf(`{%q:true,%q:true}`, field, field), "application/json")
			require.Equal(t, []string{"/" + field}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), name)
		}
	}
	require.Greater(t, writes, len(typed))
}

// TestALargeBodyGetsItsAnswer: over a real connection, a client that sends all before it reads sees the refusal and not a
// reset.
func TestALargeBodyGetsItsAnswer(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.server.Serve(listener) }()
	t.Cleanup(func() { _ = s.server.http.Close() })
	for name, c := range map[string]struct {
		key, head string
		size      int
		want      string
	}{
		"just too large":     {s.keys[roleAdmin], "Content-Length: %d", maxBody + 1, "HTTP/1.1 413"},
		"three times":        {s.keys[roleAdmin], "Content-Length: %d", 3 * maxBody, "HTTP/1.1 413"},
		"chunked":            {s.keys[roleAdmin], "Transfer-Encoding: chunked", 2 * maxBody, "HTTP/1.1 413"},
		"without a good key": {"tk_unknown", "Content-Length: %d", maxBody - 1, "HTTP/1.1 401"},
	} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		head := c.head
		body := bytes.Repeat([]byte(" "), c.size)
		if strings.Contains(head, "%d") {
			head = fmt.Sprintf(head, c.size)
		} else {
			body = append(append(fmt.Appendf(nil, "%x\r\n", c.size), body...), "\r\n0\r\n\r\n"...)
		}
		_, err = fmt.Fprintf(conn, "POST /v1/plans HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n", c.key, head)
		require.NoError(t, err)
		_, err = conn.Write(body)
		require.NoError(t, err, name)
		answered := make([]byte, len(c.want))
		_, err = io.ReadFull(conn, answered)
		require.NoError(t, err, name)
		require.Equal(t, c.want, string(answered), name)
		require.NoError(t, conn.Close())
	}
	// A client that asks first is told no without having sent anything.
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = fmt.Fprintf(conn, "POST /v1/plans HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", s.keys[roleAdmin], 2*maxBody)
	require.NoError(t, err)
	answered := make([]byte, len("HTTP/1.1 413"))
	_, err = io.ReadFull(conn, answered)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 413", string(answered))
}
