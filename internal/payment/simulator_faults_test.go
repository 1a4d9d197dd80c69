package payment_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
)

func TestSimulatorKeepsIdempotencyKeys(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{})
	create := func(key, name string) (*stripe.Customer, error) {
		params := &stripe.CustomerParams{Name: &name}
		params.SetIdempotencyKey(key)
		return api.Customers.New(params)
	}
	first, err := create("k1", "Mei")
	require.NoError(t, err)
	require.Empty(t, first.LastResponse.Header.Get("Idempotent-Replayed"))
	again, err := create("k1", "Mei")
	require.NoError(t, err)
	require.Equal(t, first.ID, again.ID)
	require.Equal(t, "true", again.LastResponse.Header.Get("Idempotent-Replayed"))
	_, err = create("k1", "Ada")
	var refused *stripe.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, stripe.ErrorTypeIdempotency, refused.Type)
	other, err := create("k2", "Mei")
	require.NoError(t, err)
	require.NotEqual(t, first.ID, other.ID)

	calls := sim.Calls()
	require.Len(t, calls, 4)
	require.Equal(t, simulator.Call{Method: http.MethodPost, Path: "/v1/customers", Body: "name=Mei", Key: "k1"}, calls[0])

	// A fault is kept too: only another key does it again. What was refused for now is not.
	require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500}))
	_, err = create("k3", "Mei")
	requireStripeError(t, err, http.StatusInternalServerError, "")
	_, err = create("k3", "Mei")
	requireStripeError(t, err, http.StatusInternalServerError, "")
	require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status429, RetryAfter: 7 * time.Second}))
	_, err = create("k4", "Mei")
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusTooManyRequests, refused.HTTPStatusCode)
	require.Equal(t, "7", refused.LastResponse.Header.Get("Retry-After"))
	_, err = create("k4", "Mei")
	require.NoError(t, err)
}

func TestSimulatorLosesAnswers(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{})
	c := payment.NewClient(secret.NewText(stripeKey), sim.StripeURL())
	t.Cleanup(c.Close)
	price := makePrice(t, api)
	for _, fault := range []simulator.RESTFault{
		{Kind: simulator.Status500},
		{Kind: simulator.Status429},
		{Kind: simulator.Status401},
		{Kind: simulator.HTML},
		{Kind: simulator.Reset},
		{Kind: simulator.Truncated},
		{Kind: simulator.Hang},
		{Kind: simulator.Status500, After: true},
		{Kind: simulator.HTML, After: true},
		{Kind: simulator.Reset, After: true},
		{Kind: simulator.Hang, After: true},
	} {
		sub := makeSubscription(t, api, price, nil)
		// Until it is cleared, because net/http sends a request with an Idempotency-Key again when a connection was reset.
		fault.Method, fault.Path, fault.Count = http.MethodPost, "/v1/subscriptions/"+sub.ID, -1
		require.NoError(t, sim.AddRESTFault(fault))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if fault.Kind == simulator.Hang {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		_, err := c.CancelAtPeriodEnd(ctx, sub.ID, "end "+sub.ID)
		cancel()
		require.ErrorIs(t, err, payment.ErrNoAnswer, "%+v", fault)
		now, _, err := c.Subscription(t.Context(), sub.ID)
		require.NoError(t, err, "a fetch does not go wrong")
		sim.ClearRESTFaults()
		require.Equal(t, fault.After || fault.Kind == simulator.Truncated, now.CancelAtPeriodEnd, "%+v", fault)

		_, err = c.CancelAtPeriodEnd(t.Context(), sub.ID, "end "+sub.ID)
		if fault.Kind == simulator.Status500 {
			require.ErrorIs(t, err, payment.ErrNoAnswer, "the fault is repeated")
		} else {
			require.NoError(t, err, "%+v", fault)
		}
	}
}

func TestSimulatorFaultsFitCalls(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{})
	require.Error(t, sim.AddRESTFault(simulator.RESTFault{Kind: "gremlins"}))
	require.Error(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status401, After: true}))
	require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Path: "/v1/products", Count: 2}))
	makeProduct := func() error {
		_, err := api.Products.New(&stripe.ProductParams{Name: stripe.String("Pro")})
		return err
	}
	_, err := api.Customers.New(nil)
	require.NoError(t, err, "another path")
	require.Error(t, makeProduct())
	require.Error(t, makeProduct())
	require.NoError(t, makeProduct())
	require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: -1}))
	for range 3 {
		require.Error(t, makeProduct())
	}
	sim.ClearRESTFaults()
	require.NoError(t, makeProduct())
}

// TestSimulatorClosesWhileACallHangs: it must not wait for a caller who waits for it.
func TestSimulatorClosesWhileACallHangs(t *testing.T) {
	t.Parallel()
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Hang}))
	c := payment.NewClient(secret.NewText(stripeKey), sim.StripeURL())
	t.Cleanup(c.Close)
	told := make(chan error, 1)
	go func() {
		_, _, err := c.Subscription(t.Context(), "sub_1")
		told <- err
	}()
	require.Eventually(t, func() bool { return len(sim.Calls()) == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, sim.Close(context.Background()))
	require.ErrorIs(t, <-told, payment.ErrNoAnswer)
}
