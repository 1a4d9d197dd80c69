package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/openapitest"
)

// TestTheDocumentHasEveryRoute holds the document and the table of routes to each other.
func TestTheDocumentHasEveryRoute(t *testing.T) {
	t.Parallel()
	parsed, err := openapitest.Parse(Document())
	require.NoError(t, err)
	var documented, routed []string
	ids := map[string]bool{}
	for _, o := range parsed.Operations() {
		role := o.Role
		if o.Public {
			role = "public" + role
		}
		var inPath []string
		keyed := false
		for _, p := range o.Parameters {
			switch {
			case p.In == "path":
				inPath = append(inPath, p.Name)
				require.True(t, p.Required, "%s: %s", o.ID, p.Name)
			case p.In == "header" && p.Name == headerKey:
				keyed = true
			}
		}
		require.NotEmpty(t, o.ID, o.Path)
		require.False(t, ids[o.ID], "%s is there twice", o.ID)
		ids[o.ID] = true
		documented = append(documented, fmt.Sprintf("%s %s of role %s with parameters %v, Idempotency-Key %t", o.Method, o.Path, role, inPath, keyed))
	}
	for _, r := range routes(Parts{}) {
		role := "public"
		if r.role != public {
			role = roleNames[r.role]
		}
		var path, inPath []string
		for _, segment := range strings.Split(r.path, "/") {
			if name, isParameter := strings.CutPrefix(segment, ":"); isParameter {
				inPath = append(inPath, name)
				segment = "{" + name + "}"
			}
			path = append(path, segment)
		}
		routed = append(routed, fmt.Sprintf("%s %s of role %s with parameters %v, Idempotency-Key %t", r.method, strings.Join(path, "/"), role, inPath, r.takesKey()))
	}
	require.ElementsMatch(t, routed, documented)
}

func TestTheDocumentIsServed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, path := range []string{"/openapi.yaml", "/v1/openapi.yaml"} {
		a := s.do(t, public, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, a.status)
		require.Equal(t, "application/yaml", a.header.Get("Content-Type"))
		require.Equal(t, string(Document()), string(a.body))
	}
}

// holdToDocument checks every exchange of a test with the API against the document, and what the API took too. The test
// hears of it at its end: a handler may still run then. Routes that a test adds by itself are in no document.
func holdToDocument(t *testing.T, next http.Handler) http.Handler {
	t.Helper()
	parsed, err := openapitest.Parse(Document())
	require.NoError(t, err)
	var mu sync.Mutex
	var faults []string
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		require.Empty(t, strings.Join(faults, "\n"), "exchanges that are not as documented")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent bytes.Buffer
		if r.Body != nil {
			r.Body = teeBody{io.TeeReader(r.Body, &sent), r.Body}
		}
		method, recorder := r.Method, httptest.NewRecorder()
		next.ServeHTTP(recorder, r)
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			e := openapitest.Exchange{Request: r, Sent: sent.Bytes(), Status: recorder.Code, Header: recorder.Header(), Body: recorder.Body.Bytes()}
			if err := parsed.Check(e); err != nil {
				mu.Lock()
				if len(faults) < 5 { // the rest would say the same again
					faults = append(faults, fmt.Sprintf("%s %s with %.300q: %v", method, r.URL, sent.Bytes(), err))
				}
				mu.Unlock()
			}
		}
		for name, values := range recorder.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(recorder.Code)
		_, _ = w.Write(recorder.Body.Bytes()) // the client may be gone
	})
}

// teeBody is a body that somebody reads along.
type teeBody struct {
	io.Reader
	io.Closer
}
