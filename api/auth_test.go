package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/secret"
	"termkeeper/internal/store"
)

// publicRoutes is every route that may be used without a key.
var publicRoutes = map[string]bool{"POST /v1/webhooks/stripe": true}

// examplePath fills in the parameters of a route.
func examplePath(path string) string {
	path = strings.ReplaceAll(path, ":id", "01980000-0000-7000-8000-000000000000")
	return strings.NewReplacer(":key", "pro", ":job", "subscription-expiry").Replace(path)
}

func TestEveryRouteNeedsAKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	registered := s.server.echo.Routes()
	require.Len(t, registered, len(routes(Parts{})), "routes.go has every route of the router")
	for _, r := range registered {
		if publicRoutes[r.Method+" "+r.Path] {
			continue
		}
		for name, authorization := range map[string]string{
			"none": "", "other scheme": "Basic " + s.keys[roleAdmin], "no scheme": s.keys[roleAdmin], "empty": "Bearer ", "unknown": "Bearer tk_" + strings.Repeat("A", 43),
			"not ours": "Bearer sk_live_1", "one character less": "Bearer " + s.keys[roleAdmin][:len(s.keys[roleAdmin])-1], "one more": "Bearer " + s.keys[roleAdmin] + "A",
			"long": "Bearer tk_" + strings.Repeat("A", 5000),
		} {
			a := s.ask(func() *http.Request {
				request := httptest.NewRequestWithContext(t.Context(), r.Method, examplePath(r.Path), strings.NewReader("{}"))
				if authorization != "" {
					request.Header.Set("Authorization", authorization)
				}
				return request
			})
			require.Equal(t, http.StatusUnauthorized, a.status, "%s %s with %s", r.Method, r.Path, name)
			a.requireProblem(t, http.StatusUnauthorized, "unauthorized")
			require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
		}
	}
}

// TestRolesReachNoFurther sends each route with each role: one that is too weak is 403, one that is strong enough gets
// another answer.
func TestRolesReachNoFurther(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	wanted := map[string]role{"/v1/access": roleAccess, "/v1/access/batch": roleAccess, "POST /v1/plans": roleAdmin, "PATCH /v1/plans/:key": roleAdmin}
	for _, r := range routes(Parts{}) {
		name := r.method + " " + r.path
		if publicRoutes[name] {
			require.Equal(t, public, r.role, name)
			continue
		}
		least, special := wanted[r.path]
		if !special {
			if least, special = wanted[name]; !special {
				least = roleOperator
			}
		}
		if strings.HasPrefix(r.path, "/v1/jobs/") && r.method == http.MethodPost {
			continue // waits for Temporal; its role is checked below
		}
		for as := roleAccess; as <= roleAdmin; as++ {
			a := s.do(t, as, r.method, examplePath(r.path), `{"no_such_field":1}`)
			if as < least {
				a.requireProblem(t, http.StatusForbidden, "forbidden")
			} else {
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusInternalServerError}, a.status, "%s as %s: %s", name, roleNames[as], a.body)
			}
		}
	}
	for _, action := range []string{"trigger", "pause", "unpause"} {
		s.do(t, roleGateway, http.MethodPost, "/v1/jobs/subscription-expiry/"+action, "").requireProblem(t, http.StatusForbidden, "forbidden")
		s.do(t, roleOperator, http.MethodPost, "/v1/jobs/no-such-job/"+action, "").requireProblem(t, http.StatusNotFound, "not_found")
	}
}

func TestARevokedKeyStops(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	key := secret.NewAPIKey()
	kept, err := s.store.CreateAPIKey(t.Context(), store.APIKey{Name: "short", Role: "access", Hash: key.Hash[:], Prefix: key.Prefix})
	require.NoError(t, err)
	ask := func() int {
		return s.ask(func() *http.Request {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/access?user_id=u", nil)
			request.Header.Set("Authorization", "bearer "+key.Text.Reveal()) // the scheme knows no case
			return request
		}).status
	}
	require.Equal(t, http.StatusOK, ask())
	_, err = s.store.RevokeAPIKey(t.Context(), kept.ID)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return ask() == http.StatusUnauthorized }, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, http.StatusUnauthorized, ask(), "it does not come back")
}

func TestKeysAreRememberedOnlyWhenGood(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ring := &keyring{store: s.store, known: map[[32]byte]knownKey{}}
	for range 3 {
		_, err := ring.identify(t.Context(), secret.NewAPIKey().Hash)
		require.ErrorIs(t, err, errUnknownKey)
	}
	require.Empty(t, ring.known, "an attacker cannot fill the memory")
	who, err := ring.identify(t.Context(), secret.HashAPIKey(s.keys[roleGateway]))
	require.NoError(t, err)
	require.Equal(t, identity{role: roleGateway, id: who.id, name: "test-gateway"}, who)
	require.NotEmpty(t, who.id)
	require.Len(t, ring.known, 1)
	require.LessOrEqual(t, keyAge+keyDeadline, 2*time.Second, "a revoked key stops within two seconds")
}
