package api

import (
	"fmt"
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
var publicRoutes = map[string]bool{"POST /v1/webhooks/stripe": true, "GET /openapi.yaml": true, "GET /v1/openapi.yaml": true, "GET /checkout/thanks": true}

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
	for i, r := range registered {
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
				request.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i) // or it would guess too often
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
	wanted := map[string]role{
		"/v1/access": roleAccess, "/v1/access/batch": roleAccess, "POST /v1/plans": roleAdmin, "PATCH /v1/plans/:key": roleAdmin,
		"POST /v1/webhook-endpoints": roleAdmin, "PATCH /v1/webhook-endpoints/:id": roleAdmin, "DELETE /v1/webhook-endpoints/:id": roleAdmin,
		"POST /v1/webhook-endpoints/:id/rotate-secret": roleAdmin,
	}
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

// TestGuessingKeysIsLimited: an address that guesses gets 429 for keys that are not known here, and nobody else does.
func TestGuessingKeysIsLimited(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ask := func(key, address string) answer {
		return s.ask(func() *http.Request {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/access?user_id=u", nil)
			r.Header.Set("Authorization", "Bearer "+key)
			r.RemoteAddr = address
			return r
		})
	}
	require.Equal(t, http.StatusOK, ask(s.keys[roleAccess], "[2001:db8::1]:1").status)
	limited := 0
	for i := range 10 * guessesAtOnce {
		a := ask(fmt.Sprintf("tk_guess%d", i), fmt.Sprintf("[2001:db8::%x]:1", i+1)) // one /64
		if a.status == http.StatusTooManyRequests {
			a.requireProblem(t, http.StatusTooManyRequests, "too_many_unknown_keys")
			require.Equal(t, "1", a.header.Get("Retry-After"))
			limited++
			continue
		}
		a.requireProblem(t, http.StatusUnauthorized, "unauthorized")
	}
	require.Greater(t, limited, 3*guessesAtOnce)
	require.Equal(t, http.StatusOK, ask(s.keys[roleAccess], "[2001:db8::1]:1").status, "a key that is known is not limited")
	require.Equal(t, http.StatusUnauthorized, ask("tk_guess", "[2001:db8:0:1::1]:1").status)
	require.Equal(t, http.StatusOK, ask(s.keys[roleAdmin], "192.0.2.1:1").status)
	body := subscriptionEvent("evt_1", "u", time.Now())
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/webhooks/stripe", strings.NewReader(body))
	r.RemoteAddr = "[2001:db8::1]:1"
	s.send(r).requireProblem(t, http.StatusBadRequest, "bad_signature")

	ring := &keyring{store: s.store, guesses: newGuesses(), known: map[[32]byte]knownKey{}}
	hash := secret.HashAPIKey(s.keys[roleAccess])
	ring.known[hash] = knownKey{identity: &identity{role: roleAccess}} // of long ago
	for ring.guesses.begin("192.0.2.1") {
		ring.guesses.end("192.0.2.1", true)
	}
	_, err := ring.identify(t.Context(), secret.NewAPIKey().Hash, "192.0.2.1")
	require.Equal(t, http.StatusTooManyRequests, problemOf(err).Status)
	_, err = ring.identify(t.Context(), hash, "192.0.2.1")
	require.NoError(t, err, "a key that was good the last time is looked up whatever its address does")
}

func TestRemoteAddresses(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7", "[::ffff:192.0.2.7]:80": "192.0.2.7", "[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64", "pipe": "pipe",
	} {
		require.Equal(t, want, remoteAddress(remote), remote)
	}
	g := newGuesses()
	for i := range maxGuessers + 10 {
		require.True(t, g.begin(fmt.Sprint(i)))
		g.end(fmt.Sprint(i), true)
	}
	require.LessOrEqual(t, len(g.by), maxGuessers, "the memory has an end")
}

func TestKeysAreRememberedOnlyWhenGood(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ring := &keyring{store: s.store, guesses: newGuesses(), known: map[[32]byte]knownKey{}}
	for range 3 {
		_, err := ring.identify(t.Context(), secret.NewAPIKey().Hash, "192.0.2.1")
		require.ErrorIs(t, err, errUnknownKey)
	}
	require.Empty(t, ring.known, "an attacker cannot fill the memory")
	who, err := ring.identify(t.Context(), secret.HashAPIKey(s.keys[roleGateway]), "192.0.2.1")
	require.NoError(t, err)
	require.Equal(t, &identity{role: roleGateway, id: who.id, name: "test-gateway"}, who)
	require.NotEmpty(t, who.id)
	require.Len(t, ring.known, 1)
	require.LessOrEqual(t, keyAge+keyDeadline, 2*time.Second, "a revoked key stops within two seconds")
}
