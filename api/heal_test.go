package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// TestAMappingHealsAtOnce: what was quarantined for want of a mapping is applied when a person makes it, with no job running.
func TestAMappingHealsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	now := time.Now().UTC().Truncate(time.Second)
	send := func(event simulator.SubscriptionFixture) {
		body := simulator.EventBody(simulator.Shape2025, simulator.NewID("evt"), "customer.subscription.created", now, event)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/webhooks/stripe", strings.NewReader(string(body)))
		r.Header.Set("Stripe-Signature", simulator.SignatureHeader(body, secretNew, time.Now()))
		require.Equal(t, http.StatusOK, s.send(r).status)
	}
	event := simulator.SubscriptionFixture{ID: "sub_1", CustomerID: "cus_1", PriceID: "price_1", PeriodStart: now, PeriodEnd: now.AddDate(0, 1, 0)}
	send(event)
	reason := func() string {
		var reason *string
		require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT reason FROM payment_webhook_events`).Scan(&reason))
		if reason == nil {
			return ""
		}
		return *reason
	}
	require.Eventually(t, func() bool { return reason() == "user_unmapped" }, 20*time.Second, 5*time.Millisecond)
	s.must(t, http.StatusOK, http.MethodPut, "/v1/users/u_1/stripe-customer", `{"customer_id":"cus_1"}`)
	require.Eventually(t, func() bool { return reason() == "plan_unmapped" }, 20*time.Second, 5*time.Millisecond)
	s.must(t, http.StatusCreated, http.MethodPost, "/v1/plans", `{"key":"pro","stripe_price_ids":["price_1"]}`)
	require.Eventually(t, func() bool {
		return s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1&plan=pro", "").field(t, "allowed") == true
	}, 20*time.Second, 5*time.Millisecond)
}
