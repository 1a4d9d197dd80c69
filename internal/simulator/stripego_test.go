package simulator_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"termkeeper/internal/simulator"
)

// official is Stripe's own client against the simulator.
func official(t *testing.T, options simulator.Options) (*simulator.Simulator, *client.API) {
	t.Helper()
	sim, err := simulator.Start(t.Context(), options)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, sim.Close(context.Background()))
	})
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: stripe.String(sim.StripeURL()), HTTPClient: &http.Client{Transport: transport},
		MaxNetworkRetries: stripe.Int64(0), LeveledLogger: &stripe.LeveledLogger{},
	})
	return sim, client.New("sk_test_simulated", &stripe.Backends{API: backend, Connect: backend, Uploads: backend})
}

func sessionFor(sim *simulator.Simulator) *stripe.CheckoutSessionParams {
	return &stripe.CheckoutSessionParams{
		Mode: stripe.String("payment"), SuccessURL: stripe.String("https://shop.example/ok"), ExpiresAt: stripe.Int64(sim.Now().Add(time.Hour).Unix()),
		ClientReferenceID: stripe.String("u_1"), Metadata: map[string]string{"order_id": "order_1"},
		PaymentIntentData: &stripe.CheckoutSessionPaymentIntentDataParams{Metadata: map[string]string{"order_id": "order_1"}},
		LineItems: []*stripe.CheckoutSessionLineItemParams{{Quantity: stripe.Int64(2), PriceData: &stripe.CheckoutSessionLineItemPriceDataParams{
			Currency: stripe.String("jpy"), UnitAmount: stripe.Int64(500), ProductData: &stripe.CheckoutSessionLineItemPriceDataProductDataParams{Name: stripe.String("Pro")},
		}}},
	}
}

// What the simulator says of money reads back in Stripe's own types.
func TestStripesOwnClientReadsMoney(t *testing.T) {
	t.Parallel()
	sim, api := official(t, simulator.Options{})
	made, err := api.CheckoutSessions.New(sessionFor(sim))
	require.NoError(t, err)
	require.EqualValues(t, 1000, made.AmountTotal)
	require.Nil(t, made.PaymentIntent)
	_, err = sim.PayCheckout(made.ID, simulator.PayOptions{Email: "mei@example.com"})
	require.NoError(t, err)

	params := &stripe.CheckoutSessionParams{}
	params.AddExpand("payment_intent.latest_charge")
	session, err := api.CheckoutSessions.Get(made.ID, params)
	require.NoError(t, err)
	require.Equal(t, stripe.CheckoutSessionPaymentStatusPaid, session.PaymentStatus)
	require.Equal(t, "order_1", session.PaymentIntent.Metadata["order_id"])
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, session.PaymentIntent.Status)
	charge := session.PaymentIntent.LatestCharge
	require.True(t, charge.Paid)
	require.Equal(t, stripe.CurrencyJPY, charge.Currency)

	_, err = api.CheckoutSessions.Expire(made.ID, nil)
	var refused *stripe.Error
	require.ErrorAs(t, err, &refused)
	require.EqualValues(t, "checkout_session_not_open", refused.Code)
	open, err := api.CheckoutSessions.New(sessionFor(sim))
	require.NoError(t, err)
	closed, err := api.CheckoutSessions.Expire(open.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.CheckoutSessionStatusExpired, closed.Status)

	_, err = sim.ExtraPayment(made.ID, simulator.PayOptions{})
	require.NoError(t, err)
	n := 0
	for list := api.PaymentIntents.List(&stripe.PaymentIntentListParams{
		ListParams:   stripe.ListParams{Limit: stripe.Int64(1)},
		CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: made.Created},
	}); list.Next(); n++ {
		require.Equal(t, "order_1", list.PaymentIntent().Metadata["order_id"])
	}
	require.Equal(t, 2, n)

	refund, err := api.Refunds.New(&stripe.RefundParams{PaymentIntent: &session.PaymentIntent.ID, Amount: stripe.Int64(400)})
	require.NoError(t, err)
	require.Equal(t, stripe.RefundStatusSucceeded, refund.Status)
	got, err := api.Charges.Get(charge.ID, nil)
	require.NoError(t, err)
	require.EqualValues(t, 400, got.AmountRefunded)
	opened, err := sim.OpenDispute(charge.ID, simulator.DisputeOptions{})
	require.NoError(t, err)
	_, err = sim.CloseDispute(opened.ID, false, false)
	require.NoError(t, err)
	dispute, err := api.Disputes.Get(opened.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.DisputeStatusLost, dispute.Status)
	require.Equal(t, charge.ID, dispute.Charge.ID)
	events := api.Events.List(&stripe.EventListParams{
		Types: stripe.StringSlice([]string{"charge.dispute.closed"}), DeliverySuccess: stripe.Bool(true),
	})
	require.True(t, events.Next())
	require.Equal(t, opened.ID, events.Event().Data.Object["id"])
}

// Stripe remembers a key for a day. The same call makes a second refund after that.
func TestKeysAreRememberedForADay(t *testing.T) {
	t.Parallel()
	sim, api := official(t, simulator.Options{})
	paid := bought(t, sim)
	refund := func() string {
		params := &stripe.RefundParams{PaymentIntent: &paid.ID, Amount: stripe.Int64(400)}
		params.SetIdempotencyKey("refund-1")
		made, err := api.Refunds.New(params)
		require.NoError(t, err)
		return made.ID
	}
	first := refund()
	sim.Advance(23 * time.Hour)
	require.Equal(t, first, refund())
	sim.Advance(2 * time.Hour)
	require.NotEqual(t, first, refund())
}

// What is refused on demand has the status and the code that Stripe gives it, and nothing happens.
func TestRefusalsOnDemand(t *testing.T) {
	t.Parallel()
	sim, api := official(t, simulator.Options{})
	paid := bought(t, sim)
	for kind, want := range map[string]struct {
		status int
		code   stripe.ErrorCode
	}{
		simulator.Status402: {http.StatusPaymentRequired, stripe.ErrorCodeCardDeclined},
		simulator.Status404: {http.StatusNotFound, stripe.ErrorCodeResourceMissing},
		simulator.Status409: {http.StatusConflict, stripe.ErrorCodeLockTimeout},
		simulator.Status429: {http.StatusTooManyRequests, stripe.ErrorCodeRateLimit},
	} {
		require.Error(t, sim.AddRESTFault(simulator.RESTFault{Kind: kind, After: true}))
		require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: kind, Path: "/v1/refunds"}))
		_, err := api.Refunds.New(&stripe.RefundParams{PaymentIntent: &paid.ID})
		var refused *stripe.Error
		require.ErrorAs(t, err, &refused, kind)
		require.Equal(t, want.status, refused.HTTPStatusCode)
		require.Equal(t, want.code, refused.Code)
	}
	charge, err := api.Charges.Get(paid.ChargeID, nil)
	require.NoError(t, err)
	require.Zero(t, charge.AmountRefunded)
}
