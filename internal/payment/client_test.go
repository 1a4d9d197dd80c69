package payment_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
)

const stripeKey = "sk_test_never_to_be_seen"

// provider answers every request in one way.
func provider(t *testing.T, answer http.HandlerFunc) *payment.Client {
	t.Helper()
	server := httptest.NewServer(answer)
	c := payment.NewClient(secret.NewText(stripeKey), server.URL)
	t.Cleanup(func() { c.Close(); server.CloseClientConnections(); server.Close() })
	return c
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func problem(kind, message string) string {
	return `{"error":{"type":"` + kind + `","code":"resource_missing","message":"` + message + `"}}`
}

func TestWhatIsNoAnswer(t *testing.T) {
	t.Parallel()
	whole := string(simulator.SubscriptionFixture{ID: "sub_1", CustomerID: "cus_1", PeriodStart: time.Unix(1, 0), PeriodEnd: time.Unix(2, 0)}.JSON(simulator.Shape2023))
	for name, answer := range map[string]http.HandlerFunc{
		"fault":           says(500, problem("api_error", "sorry")),
		"fault in HTML":   says(502, "<html>bad gateway</html>"),
		"HTML with 200":   says(200, "<html>hello</html>"),
		"truncated":       says(200, whole[:len(whole)/2]),
		"empty":           says(200, ""),
		"a list":          says(200, `[]`),
		"another object":  says(200, `{"id":"sub_1","object":"invoice"}`),
		"another id":      says(200, strings.ReplaceAll(whole, "sub_1", "sub_2")),
		"not known there": says(404, problem("invalid_request_error", "No such subscription")),
		"our key":         says(401, problem("invalid_request_error", "Invalid API Key provided: "+stripeKey)),
		"busy":            says(409, problem("idempotency_error", "locked")),
		"no Date": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Date"] = nil
			_, _ = io.WriteString(w, whole)
		},
		"cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"id":"sub_1","padding":"`+strings.Repeat("x", 5<<20)+`"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := provider(t, answer).Subscription(t.Context(), "sub_1")
			require.ErrorIs(t, err, payment.ErrNoAnswer)
			require.Equal(t, name == "not known there", errors.Is(err, payment.ErrNotFound))
			require.NotContains(t, err.Error(), stripeKey)
		})
	}
}

func TestAnAnswerThatDoesNotComeInTime(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	c := provider(t, func(http.ResponseWriter, *http.Request) { <-let })
	t.Cleanup(func() { close(let) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := c.Subscription(ctx, "sub_1")
	require.ErrorIs(t, err, payment.ErrNoAnswer)
}

func TestTooManyRequestsSayWhenToComeAgain(t *testing.T) {
	t.Parallel()
	c := provider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		says(429, problem("rate_limit_error", "slow down"))(w, r)
	})
	_, _, err := c.Subscription(t.Context(), "sub_1")
	var no *payment.NoAnswerError
	require.ErrorAs(t, err, &no)
	require.Equal(t, 7*time.Second, no.RetryAfter)
}

func TestARefusalIsNotSilence(t *testing.T) {
	t.Parallel()
	c := provider(t, says(400, problem("invalid_request_error", "A canceled subscription can only update its metadata.")))
	_, err := c.CancelAtPeriodEnd(t.Context(), "sub_1", "key")
	var refused *payment.RefusalError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "A canceled subscription can only update its metadata.", refused.Message)
	require.NotErrorIs(t, err, payment.ErrNoAnswer)
}

// TestChangesAtTheProvider makes every change against the simulator, which refuses what Stripe refuses.
func TestChangesAtTheProvider(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{})
	c := payment.NewClient(secret.NewText(stripeKey), sim.StripeURL())
	t.Cleanup(c.Close)
	price, other := makePrice(t, api), makePrice(t, api)
	sub := makeSubscription(t, api, price, nil)

	fetched, asked, err := c.Subscription(t.Context(), sub.ID)
	require.NoError(t, err)
	require.Equal(t, "u_1", fetched.UserID)
	require.Equal(t, "u_customer", fetched.CustomerUserID, "the customer is expanded")
	require.Equal(t, "mei@example.com", fetched.Email)
	require.Equal(t, "subscription_create", fetched.Invoice.BillingReason, "the invoice is expanded")
	require.False(t, asked.After(sim.Now()))
	require.WithinDuration(t, sim.Now(), asked, 5*time.Second)
	require.Zero(t, asked.Nanosecond())

	ending, err := c.CancelAtPeriodEnd(t.Context(), sub.ID, "k1")
	require.NoError(t, err)
	require.True(t, ending.Provider.CancelAtPeriodEnd)
	going, err := c.Uncancel(t.Context(), sub.ID, "k2")
	require.NoError(t, err)
	require.False(t, going.Provider.CancelAtPeriodEnd)
	require.True(t, going.Provider.CancelAt.IsZero())

	// The portal of flexible billing sets an instant and leaves the flag false.
	_, err = api.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAt: stripe.Int64(fetched.PeriodEnd.Unix())})
	require.NoError(t, err)
	going, err = c.Uncancel(t.Context(), sub.ID, "k3")
	require.NoError(t, err)
	require.True(t, going.Provider.CancelAt.IsZero())

	moved, err := c.ChangePrice(t.Context(), sub.ID, other.ID, "k4")
	require.NoError(t, err)
	require.Equal(t, []string{other.ID}, moved.Provider.PriceIDs)

	back, err := c.ChangePriceAtRenewal(t.Context(), sub.ID, price.ID, "k7")
	require.NoError(t, err)
	require.Equal(t, []string{price.ID}, back.Provider.PriceIDs)
	require.Equal(t, fetched.PeriodEnd, back.Provider.PeriodEnd)
	yearly, err := api.Prices.New(&stripe.PriceParams{
		Product: &price.Product.ID, Currency: stripe.String("usd"), UnitAmount: stripe.Int64(20000), Recurring: &stripe.PriceRecurringParams{Interval: stripe.String("year")},
	})
	require.NoError(t, err)
	var refused *payment.RefusalError
	_, err = c.ChangePriceAtRenewal(t.Context(), sub.ID, yearly.ID, "k8")
	require.ErrorAs(t, err, &refused, "Stripe would begin a new period at once")

	ended, err := c.CancelNow(t.Context(), sub.ID, "k5")
	require.NoError(t, err)
	require.Equal(t, "canceled", ended.Provider.Status)
	_, err = c.CancelAtPeriodEnd(t.Context(), sub.ID, "k6")
	require.ErrorAs(t, err, &refused)
}
