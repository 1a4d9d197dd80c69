package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// The webhook secret changes as docs/operations.md says: the metric shows that the old one is idle, then it is refused.
func TestWebhookSecretIsChanged(t *testing.T) {
	t.Parallel()
	const old, next = webhookSecret, "whsec_that_comes_after_the_old_one"
	s := newSystem(t)
	s.plan(t)
	sent := 0
	send := func(api *apiProcess, secret string, status int) {
		t.Helper()
		sent++
		by := api.caller
		by.secret = secret
		_, a, err := by.trySend(t.Context(), stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
			ID: fmt.Sprintf("sub_%d", sent), UserID: "u_1", PeriodStart: now(), PeriodEnd: now().Add(day),
		}))
		require.NoError(t, err)
		require.Equal(t, status, a.status, "%s", a.body)
	}
	api := s.startAPI(t)
	send(api, old, http.StatusOK)
	send(api, next, http.StatusBadRequest)
	api.stops(t, syscall.SIGTERM)

	both := s.startAPI(t, "STRIPE_WEBHOOK_SECRETS="+next+","+old)
	send(both, old, http.StatusOK)
	require.Equal(t, 1, used(t, both.ops, old))
	for range 3 {
		send(both, next, http.StatusOK)
	}
	require.Equal(t, 1, used(t, both.ops, old), "the old one stands still")
	require.Equal(t, 3, used(t, both.ops, next))
	both.stops(t, syscall.SIGTERM)

	after := s.startAPI(t, "STRIPE_WEBHOOK_SECRETS="+next)
	send(after, next, http.StatusOK)
	send(after, old, http.StatusBadRequest)
	s.awaitEventsDone(t)
	require.Equal(t, 6, s.count(t, `SELECT count(*) FROM payment_webhook_events`), "nothing is stored of what was refused")
}

// used is the counter of a secret at the ops address, by the label that docs/operations.md computes.
func used(t *testing.T, ops, secret string) int {
	t.Helper()
	sum := sha256.Sum256([]byte(secret))
	response, err := http.Get("http://" + ops + "/metrics") //nolint:noctx // A process of the test on this machine.
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), `termkeeper_webhook_secret_used_total{secret="`+hex.EncodeToString(sum[:4])+`"} `)
	if !found {
		return 0
	}
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return n
}
