package payment_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
	"go.uber.org/goleak"

	"termkeeper/internal/payment"
	"termkeeper/internal/simulator"
)

// stripeClient is stripe-go's own client against the simulator: what it sends and reads is what production will.
func stripeClient(t *testing.T, options simulator.Options) (*simulator.Simulator, *client.API) {
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

func makePrice(t *testing.T, api *client.API) *stripe.Price {
	t.Helper()
	product, err := api.Products.New(&stripe.ProductParams{Name: stripe.String("Pro")})
	require.NoError(t, err)
	price, err := api.Prices.New(&stripe.PriceParams{
		Product: &product.ID, Currency: stripe.String("usd"), UnitAmount: stripe.Int64(2000),
		Recurring: &stripe.PriceRecurringParams{Interval: stripe.String("month")},
	})
	require.NoError(t, err)
	got, err := api.Prices.Get(price.ID, nil)
	require.NoError(t, err)
	require.Equal(t, product.ID, got.Product.ID)
	require.EqualValues(t, 2000, got.UnitAmount)
	return price
}

func makeSubscription(t *testing.T, api *client.API, price *stripe.Price, change func(*stripe.SubscriptionParams)) *stripe.Subscription {
	t.Helper()
	customer, err := api.Customers.New(&stripe.CustomerParams{
		Email: stripe.String("mei@example.com"), Name: stripe.String("Mei Lin"), Metadata: map[string]string{"user_id": "u_customer"},
	})
	require.NoError(t, err)
	params := &stripe.SubscriptionParams{
		Customer: &customer.ID, Items: []*stripe.SubscriptionItemsParams{{Price: &price.ID}}, Metadata: map[string]string{"user_id": "u_1"},
	}
	if change != nil {
		change(params)
	}
	sub, err := api.Subscriptions.New(params)
	require.NoError(t, err)
	return sub
}

// eventTypes lists the types of the events so far, oldest first.
func eventTypes(t *testing.T, api *client.API) []string {
	t.Helper()
	var types []string
	events := api.Events.List(&stripe.EventListParams{ListParams: stripe.ListParams{Limit: stripe.Int64(2)}})
	for events.Next() {
		types = append([]string{string(events.Event().Type)}, types...)
	}
	require.NoError(t, events.Err())
	return types
}

func TestSimulatorSpeaksToStripeGo(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC)
	sim, api := stripeClient(t, simulator.Options{ClockStart: start})
	price := makePrice(t, api)
	sub := makeSubscription(t, api, price, nil)
	require.Equal(t, stripe.SubscriptionStatusActive, sub.Status)
	require.Equal(t, "u_1", sub.Metadata["user_id"])
	require.Equal(t, price.ID, sub.Items.Data[0].Price.ID)
	began := time.Unix(sub.CurrentPeriodStart, 0).UTC()
	require.Equal(t, time.Date(2026, 2, 28, began.Hour(), began.Minute(), began.Second(), 0, time.UTC), time.Unix(sub.CurrentPeriodEnd, 0).UTC())

	params := &stripe.SubscriptionParams{}
	params.AddExpand("customer")
	params.AddExpand("latest_invoice")
	got, err := api.Subscriptions.Get(sub.ID, params)
	require.NoError(t, err)
	require.Equal(t, "mei@example.com", got.Customer.Email)
	require.Equal(t, stripe.InvoiceBillingReasonSubscriptionCreate, got.LatestInvoice.BillingReason)
	provider, err := payment.Subscription(got.LastResponse.RawJSON)
	require.NoError(t, err)
	require.Equal(t, "u_1", provider.UserID)
	require.Equal(t, "Mei Lin", provider.Name)
	require.Equal(t, "subscription_create", provider.Invoice.BillingReason)
	require.Equal(t, []string{price.ID}, provider.PriceIDs)
	require.Equal(t, sub.CurrentPeriodEnd, provider.PeriodEnd.Unix())
	// How new the fetched truth is comes from this header.
	date, err := http.ParseTime(got.LastResponse.Header.Get("Date"))
	require.NoError(t, err)
	require.WithinDuration(t, sim.Now(), date, time.Minute)

	customer, err := api.Customers.Update(sub.Customer.ID, &stripe.CustomerParams{Name: stripe.String("Mei"), Metadata: map[string]string{"user_id": "", "k": "v"}})
	require.NoError(t, err)
	require.Equal(t, "Mei", customer.Name)
	require.Equal(t, "mei@example.com", customer.Email)
	require.Equal(t, map[string]string{"k": "v"}, customer.Metadata)

	updated, err := api.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAtPeriodEnd: stripe.Bool(true)})
	require.NoError(t, err)
	require.True(t, updated.CancelAtPeriodEnd)
	require.Equal(t, sub.CurrentPeriodEnd, updated.CancelAt)
	_, err = api.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAtPeriodEnd: stripe.Bool(false), CancelAt: stripe.Int64(sub.CurrentPeriodEnd)})
	requireStripeError(t, err, http.StatusBadRequest, "")
	updated, err = api.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAtPeriodEnd: stripe.Bool(false)})
	require.NoError(t, err)
	require.False(t, updated.CancelAtPeriodEnd)
	require.Zero(t, updated.CancelAt)

	ended, err := api.Subscriptions.Cancel(sub.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.SubscriptionStatusCanceled, ended.Status)
	require.NotZero(t, ended.EndedAt)
	require.Equal(t, []string{
		"customer.subscription.created", "invoice.created", "invoice.paid", "invoice.payment_succeeded",
		"customer.subscription.updated", "customer.subscription.updated", "customer.subscription.deleted",
	}, eventTypes(t, api))

	events := api.Events.List(&stripe.EventListParams{Types: stripe.StringSlice([]string{"customer.subscription.deleted"})})
	require.True(t, events.Next())
	event, err := api.Events.Get(events.Event().ID, nil)
	require.NoError(t, err)
	require.Equal(t, sub.ID, event.Data.Object["id"])
	require.Equal(t, stripe.APIVersion, event.APIVersion)
}

func TestSimulatorListsSubscriptions(t *testing.T) {
	t.Parallel()
	_, api := stripeClient(t, simulator.Options{})
	price := makePrice(t, api)
	var made []string
	for range 5 {
		made = append([]string{makeSubscription(t, api, price, nil).ID}, made...)
	}
	_, err := api.Subscriptions.Cancel(made[2], nil)
	require.NoError(t, err)
	list := func(status string) []string {
		var ids []string
		params := &stripe.SubscriptionListParams{ListParams: stripe.ListParams{Limit: stripe.Int64(2)}}
		if status != "" {
			params.Status = &status
		}
		for subs := api.Subscriptions.List(params); subs.Next(); {
			ids = append(ids, subs.Subscription().ID)
		}
		return ids
	}
	require.Equal(t, made, list("all"))
	require.Equal(t, []string{made[0], made[1], made[3], made[4]}, list(""))
	require.Equal(t, []string{made[2]}, list("canceled"))
}

func requireStripeError(t *testing.T, err error, status int, code stripe.ErrorCode) {
	t.Helper()
	var refused *stripe.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, status, refused.HTTPStatusCode)
	require.Equal(t, code, refused.Code)
}

func TestSimulatorRefusesAsStripeDoes(t *testing.T) {
	t.Parallel()
	_, api := stripeClient(t, simulator.Options{})
	_, err := api.Subscriptions.Get("sub_none", nil)
	requireStripeError(t, err, http.StatusNotFound, stripe.ErrorCodeResourceMissing)
	_, err = api.Customers.Get("cus_none", nil)
	requireStripeError(t, err, http.StatusNotFound, stripe.ErrorCodeResourceMissing)
	_, err = api.Events.Get("evt_none", nil)
	requireStripeError(t, err, http.StatusNotFound, stripe.ErrorCodeResourceMissing)
	_, err = api.Subscriptions.New(&stripe.SubscriptionParams{Customer: stripe.String("cus_none")})
	requireStripeError(t, err, http.StatusBadRequest, stripe.ErrorCodeResourceMissing)
	_, err = api.Refunds.Get("re_none", nil)
	requireStripeError(t, err, http.StatusNotFound, stripe.ErrorCodeResourceMissing)
}

// A renewal that is paid: the period moves first, the money comes an hour later and moves nothing.
func TestSimulatorRenews(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{ClockStart: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
	sub := makeSubscription(t, api, makePrice(t, api), nil)
	end := time.Unix(sub.CurrentPeriodEnd, 0)

	sim.AdvanceTo(end.Add(time.Minute))
	got, err := api.Subscriptions.Get(sub.ID, nil)
	require.NoError(t, err)
	require.Equal(t, sub.CurrentPeriodEnd, got.CurrentPeriodStart)
	require.Greater(t, got.CurrentPeriodEnd, sub.CurrentPeriodEnd)
	require.Equal(t, stripe.SubscriptionStatusActive, got.Status)
	require.Equal(t, []string{"customer.subscription.updated", "invoice.created"}, eventTypes(t, api), "the list goes back 30 days")

	sim.AdvanceTo(end.Add(time.Hour))
	again, err := api.Subscriptions.Get(sub.ID, nil)
	require.NoError(t, err)
	require.Equal(t, got.CurrentPeriodEnd, again.CurrentPeriodEnd)
	require.Equal(t, []string{"invoice.paid", "invoice.payment_succeeded"}, eventTypes(t, api)[2:])
}

// A renewal that fails: past_due with the end of the new period, which goes on rolling; a payment makes it active again.
func TestSimulatorFailsToRenew(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{ClockStart: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
	sub := makeSubscription(t, api, makePrice(t, api), nil)
	fails := true
	require.True(t, sim.ChangeSubscription(sub.ID, simulator.SubscriptionChange{Fails: &fails}))
	end := time.Unix(sub.CurrentPeriodEnd, 0)
	sim.AdvanceTo(end.Add(2 * time.Hour))
	unpaid, err := api.Subscriptions.Get(sub.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.SubscriptionStatusPastDue, unpaid.Status)
	require.Equal(t, sub.CurrentPeriodEnd, unpaid.CurrentPeriodStart)

	sim.AdvanceTo(time.Unix(unpaid.CurrentPeriodEnd, 0).Add(2 * time.Hour))
	still, err := api.Subscriptions.Get(sub.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.SubscriptionStatusPastDue, still.Status)
	require.Equal(t, unpaid.CurrentPeriodEnd, still.CurrentPeriodStart)

	fails = false
	require.True(t, sim.ChangeSubscription(sub.ID, simulator.SubscriptionChange{Fails: &fails, Pay: true}))
	paid, err := api.Subscriptions.Get(sub.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.SubscriptionStatusActive, paid.Status)
	require.Equal(t, still.CurrentPeriodEnd, paid.CurrentPeriodEnd)
	require.False(t, sim.ChangeSubscription("sub_none", simulator.SubscriptionChange{}))
}

// What is set to end is deleted at its end, to the second, and never rolls over; a trial becomes a paid period.
func TestSimulatorEndsAndTrials(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sim, api := stripeClient(t, simulator.Options{ClockStart: start})
	price := makePrice(t, api)
	ending := makeSubscription(t, api, price, func(p *stripe.SubscriptionParams) { p.CancelAtPeriodEnd = stripe.Bool(true) })
	early := makeSubscription(t, api, price, func(p *stripe.SubscriptionParams) { p.CancelAt = stripe.Int64(start.AddDate(0, 0, 10).Unix()) })
	trial := makeSubscription(t, api, price, func(p *stripe.SubscriptionParams) { p.TrialPeriodDays = stripe.Int64(7) })
	require.Equal(t, stripe.SubscriptionStatusTrialing, trial.Status)
	incomplete := makeSubscription(t, api, price, func(p *stripe.SubscriptionParams) { p.PaymentBehavior = stripe.String("default_incomplete") })
	require.Equal(t, stripe.SubscriptionStatusIncomplete, incomplete.Status)

	sim.AdvanceTo(start.AddDate(0, 0, 8))
	got, err := api.Subscriptions.Get(trial.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.SubscriptionStatusActive, got.Status)
	require.Equal(t, trial.CurrentPeriodEnd, got.CurrentPeriodStart)

	sim.AdvanceTo(start.AddDate(0, 3, 0))
	for id, at := range map[string]int64{ending.ID: ending.CurrentPeriodEnd, early.ID: early.CancelAt} {
		got, err := api.Subscriptions.Get(id, nil)
		require.NoError(t, err)
		require.Equal(t, stripe.SubscriptionStatusCanceled, got.Status)
		require.Equal(t, at, got.EndedAt)
	}
}

// The simulator's payloads, in both shapes, signed by it, read as what they were made from.
func TestSimulatorPayloadsReadBack(t *testing.T) {
	t.Parallel()
	const secret = "whsec_simulated_0123456789abcdef"
	start, end := time.Unix(1793491200, 0).UTC(), time.Unix(1796083200, 0).UTC()
	fixture := simulator.SubscriptionFixture{
		ID: "sub_1", CustomerID: "cus_1", PriceID: "price_1", UserID: "u_1", Status: "past_due", PeriodStart: start, PeriodEnd: end,
		StartDate: start.AddDate(0, -5, 0), CancelAtPeriodEnd: true, CancelAt: end, SendInvoice: true, DaysUntilDue: 14,
		Customer:      &simulator.CustomerFixture{ID: "cus_1", Email: "mei@example.com", Name: "Mei Lin"},
		Invoice:       simulator.InvoiceFixture{ID: "in_1", Status: "open", BillingReason: "subscription_cycle", DueDate: end},
		ExpandInvoice: true,
	}
	for shape, version := range map[simulator.Shape]string{simulator.Shape2023: "2023-10-16", simulator.Shape2025: "2025-03-31.basil"} {
		body := simulator.EventBody(shape, "evt_1", "customer.subscription.updated", start.Add(5*time.Second), fixture)
		request, err := simulator.SignedRequest(t.Context(), "http://127.0.0.1:1", body, secret, start)
		require.NoError(t, err)
		fingerprint, err := payment.Verify(body, request.Header.Get("Stripe-Signature"), []string{secret}, start)
		require.NoError(t, err)
		require.Equal(t, payment.Fingerprint(secret), fingerprint)

		event, err := payment.ParseEvent(body)
		require.NoError(t, err)
		require.Equal(t, version, event.APIVersion)
		require.Equal(t, start.Add(5*time.Second), event.Created)
		require.Equal(t, "sub_1", event.ObjectID)
		provider, err := payment.Subscription(event.Data)
		require.NoError(t, err)
		require.Equal(t, "u_1", provider.UserID)
		require.Equal(t, "mei@example.com", provider.Email)
		require.Equal(t, "cus_1", provider.CustomerID)
		require.Equal(t, start, provider.PeriodStart)
		require.Equal(t, end, provider.PeriodEnd)
		require.Equal(t, end, provider.CancelAt)
		require.Equal(t, start.AddDate(0, -5, 0), provider.StartDate)
		require.True(t, provider.CancelAtPeriodEnd && provider.SendInvoice)
		require.Equal(t, 14, provider.DaysUntilDue)
		require.Equal(t, "subscription_cycle", provider.Invoice.BillingReason)
		require.Equal(t, end, provider.Invoice.DueDate)
	}
	fixture.PeriodStart, fixture.PeriodEnd = time.Time{}, time.Time{}
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		provider, err := payment.Subscription(fixture.JSON(shape))
		require.NoError(t, err)
		require.True(t, provider.PeriodEnd.IsZero(), "a fixture without a period has none anywhere")
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
