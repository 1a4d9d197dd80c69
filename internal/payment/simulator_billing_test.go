package payment_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"termkeeper/internal/payment"
	"termkeeper/internal/simulator"
)

// invoices lists the invoices of a subscription as we read them, newest first.
func invoices(t *testing.T, api *client.API, subscription string) (read []payment.Invoice, reasons []stripe.InvoiceBillingReason) {
	t.Helper()
	for list := api.Invoices.List(&stripe.InvoiceListParams{Subscription: &subscription}); list.Next(); {
		one, err := api.Invoices.Get(list.Invoice().ID, nil)
		require.NoError(t, err)
		invoice, err := payment.ReadInvoice(one.LastResponse.RawJSON)
		require.NoError(t, err)
		require.Equal(t, subscription, invoice.SubscriptionID)
		read, reasons = append(read, invoice), append(reasons, one.BillingReason)
	}
	return read, reasons
}

func TestSimulatorBillsEachPeriod(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{ClockStart: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
	price := makePrice(t, api)
	sub := makeSubscription(t, api, price, nil)
	trial := makeSubscription(t, api, price, func(p *stripe.SubscriptionParams) { p.TrialPeriodDays = stripe.Int64(7) })
	end := time.Unix(sub.CurrentPeriodEnd, 0).UTC()
	bills, reasons := invoices(t, api, sub.ID)
	require.Len(t, bills, 1)
	require.Equal(t, sub.LatestInvoice.ID, bills[0].ID)
	require.Equal(t, end, bills[0].PaidUntil)
	require.NotEmpty(t, bills[0].PaymentID, "what is fetched says what paid for it")
	require.Positive(t, bills[0].Paid)
	require.Equal(t, []stripe.InvoiceBillingReason{"subscription_create"}, reasons)
	bills, _ = invoices(t, api, trial.ID)
	require.True(t, bills[0].Nothing, "a trial costs nothing")

	sim.AdvanceTo(end.Add(2 * time.Hour))
	bills, reasons = invoices(t, api, sub.ID)
	require.Equal(t, []stripe.InvoiceBillingReason{"subscription_cycle", "subscription_create"}, reasons)
	require.True(t, bills[0].PaidUntil.After(end))
	require.Equal(t, end, bills[1].PaidUntil, "an older invoice stays as it was")
	for status, want := range map[string]int{"paid": 4, "open": 0} {
		n := 0
		for list := api.Invoices.List(&stripe.InvoiceListParams{Status: stripe.String(status)}); list.Next(); {
			n++
		}
		require.Equal(t, want, n, status)
	}
	_, err := api.Invoices.Get("in_none", nil)
	requireStripeError(t, err, http.StatusNotFound, stripe.ErrorCodeResourceMissing)
}

// reprice changes the price of a subscription's item.
func reprice(t *testing.T, api *client.API, sub *stripe.Subscription, to *stripe.Price, behavior string) *stripe.Subscription {
	t.Helper()
	after, err := api.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{
		Items: []*stripe.SubscriptionItemsParams{{ID: &sub.Items.Data[0].ID, Price: &to.ID}}, ProrationBehavior: &behavior,
	})
	require.NoError(t, err)
	require.Equal(t, to.ID, after.Items.Data[0].Price.ID)
	return after
}

func TestSimulatorChangesThePrice(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{ClockStart: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
	price, other := makePrice(t, api), makePrice(t, api)
	yearly, err := api.Prices.New(&stripe.PriceParams{
		Product: &price.Product.ID, Currency: stripe.String("usd"), UnitAmount: stripe.Int64(20000),
		Recurring: &stripe.PriceRecurringParams{Interval: stripe.String("year")},
	})
	require.NoError(t, err)
	fails := true

	t.Run("on the next invoice", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		after := reprice(t, api, sub, other, "create_prorations")
		require.Equal(t, sub.CurrentPeriodEnd, after.CurrentPeriodEnd)
		bills, _ := invoices(t, api, sub.ID)
		require.Len(t, bills, 1, "nothing is billed before the renewal")
		sim.AdvanceTo(time.Unix(sub.CurrentPeriodEnd, 0).Add(2 * time.Hour))
		bills, _ = invoices(t, api, sub.ID)
		require.Greater(t, bills[0].PaidUntil.Unix(), sub.CurrentPeriodEnd)
		require.False(t, bills[0].Nothing)
		got, err := api.Invoices.Get(bills[0].ID, nil)
		require.NoError(t, err)
		require.Len(t, got.Lines.Data, 3, "a credit, a charge and the new period")
	})
	t.Run("at once", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		reprice(t, api, sub, other, "always_invoice")
		bills, reasons := invoices(t, api, sub.ID)
		require.EqualValues(t, "subscription_update", reasons[0])
		require.True(t, bills[0].Nothing, "prorations pay for no period")
		require.Equal(t, "invoice.payment_succeeded", eventTypes(t, api)[len(eventTypes(t, api))-1])
	})
	t.Run("at once, and it fails", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		require.True(t, sim.ChangeSubscription(sub.ID, simulator.SubscriptionChange{Fails: &fails}))
		reprice(t, api, sub, other, "always_invoice")
		params := &stripe.SubscriptionParams{}
		params.AddExpand("latest_invoice")
		got, err := api.Subscriptions.Get(sub.ID, params)
		require.NoError(t, err)
		require.Equal(t, stripe.SubscriptionStatusPastDue, got.Status)
		require.EqualValues(t, "subscription_update", got.LatestInvoice.BillingReason)
		require.EqualValues(t, "open", got.LatestInvoice.Status)
		require.Equal(t, sub.CurrentPeriodEnd, got.CurrentPeriodEnd)
	})
	t.Run("without prorations", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		reprice(t, api, sub, other, "none")
		sim.AdvanceTo(time.Unix(sub.CurrentPeriodEnd, 0).Add(2 * time.Hour))
		bills, _ := invoices(t, api, sub.ID)
		got, err := api.Invoices.Get(bills[0].ID, nil)
		require.NoError(t, err)
		require.Len(t, got.Lines.Data, 1)
	})
	t.Run("another interval begins a new period", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		sim.Advance(48 * time.Hour)
		after := reprice(t, api, sub, yearly, "create_prorations")
		require.GreaterOrEqual(t, after.CurrentPeriodStart, sub.CurrentPeriodStart+int64((48*time.Hour).Seconds()))
		bills, reasons := invoices(t, api, sub.ID)
		require.EqualValues(t, "subscription_update", reasons[0])
		require.Equal(t, after.CurrentPeriodEnd, bills[0].PaidUntil.Unix())
	})
	t.Run("refused", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		for _, item := range []*stripe.SubscriptionItemsParams{
			{Price: &other.ID}, {ID: stripe.String("si_none"), Price: &other.ID}, {ID: &sub.Items.Data[0].ID, Price: stripe.String("price_none")},
		} {
			_, err := api.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{Items: []*stripe.SubscriptionItemsParams{item}})
			var refused *stripe.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, http.StatusBadRequest, refused.HTTPStatusCode)
		}
		got, err := api.Subscriptions.Get(sub.ID, nil)
		require.NoError(t, err)
		require.Equal(t, price.ID, got.Items.Data[0].Price.ID)
	})
}

// lastEvent is the newest event of a type, as it is fetched.
func lastEvent(t *testing.T, api *client.API, kind string) json.RawMessage {
	t.Helper()
	list := api.Events.List(&stripe.EventListParams{Type: &kind})
	require.True(t, list.Next(), kind)
	return list.Event().Data.Raw
}

func TestSimulatorSellsByCheckout(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{})
	price := makePrice(t, api)
	made, err := api.CheckoutSessions.New(&stripe.CheckoutSessionParams{
		Mode: stripe.String("subscription"), SuccessURL: stripe.String("https://shop.example/ok"), ClientReferenceID: stripe.String("u_1"),
		LineItems:        []*stripe.CheckoutSessionLineItemParams{{Price: &price.ID, Quantity: stripe.Int64(1)}},
		SubscriptionData: &stripe.CheckoutSessionSubscriptionDataParams{Metadata: map[string]string{"campaign": "spring"}},
	})
	require.NoError(t, err)
	require.Equal(t, stripe.CheckoutSessionStatusOpen, made.Status)
	require.NotEmpty(t, made.URL)
	require.Nil(t, made.Subscription)

	done, ok := sim.CompleteCheckout(made.ID, simulator.CheckoutCompletion{Email: "mei@example.com", Name: "Mei Lin"})
	require.True(t, ok)
	got, err := payment.ReadCheckout(lastEvent(t, api, "checkout.session.completed"))
	require.NoError(t, err)
	require.Equal(t, payment.Checkout{
		ID: made.ID, SubscriptionID: done.SubscriptionID, CustomerID: done.CustomerID, UserID: "u_1", Email: "mei@example.com", Name: "Mei Lin",
	}, got)
	sub, err := api.Subscriptions.Get(done.SubscriptionID, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"campaign": "spring"}, sub.Metadata, "it names no user: only the session does")
	require.Equal(t, done.CustomerID, sub.Customer.ID)
	session, err := api.CheckoutSessions.Get(made.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.CheckoutSessionStatusComplete, session.Status)
	require.Equal(t, stripe.CheckoutSessionPaymentStatusPaid, session.PaymentStatus)
	require.Equal(t, []string{
		"customer.subscription.created", "invoice.created", "invoice.paid", "invoice.payment_succeeded", "checkout.session.completed",
	}, eventTypes(t, api))

	_, ok = sim.CompleteCheckout(made.ID, simulator.CheckoutCompletion{})
	require.False(t, ok, "it is complete already")
	for name, params := range map[string]*stripe.CheckoutSessionParams{
		"no mode":    {SuccessURL: stripe.String("https://shop.example/ok")},
		"a payment":  {Mode: stripe.String("payment"), SuccessURL: stripe.String("https://shop.example/ok")},
		"no price":   {Mode: stripe.String("subscription"), SuccessURL: stripe.String("https://shop.example/ok")},
		"no way out": {Mode: stripe.String("subscription"), LineItems: []*stripe.CheckoutSessionLineItemParams{{Price: &price.ID}}},
	} {
		_, err := api.CheckoutSessions.New(params)
		var refused *stripe.Error
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, http.StatusBadRequest, refused.HTTPStatusCode, name)
	}
}

func TestSimulatorDeletesCustomers(t *testing.T) {
	t.Parallel()
	_, api := stripeClient(t, simulator.Options{})
	price := makePrice(t, api)
	sub, other := makeSubscription(t, api, price, nil), makeSubscription(t, api, price, nil)
	deleted, err := api.Customers.Del(sub.Customer.ID, nil)
	require.NoError(t, err)
	require.True(t, deleted.Deleted)
	types := eventTypes(t, api)
	require.Equal(t, []string{"customer.subscription.deleted", "customer.deleted"}, types[len(types)-2:])
	var told struct{ ID, Email string }
	require.NoError(t, json.Unmarshal(lastEvent(t, api, "customer.deleted"), &told))
	require.Equal(t, sub.Customer.ID, told.ID)
	require.Equal(t, "mei@example.com", told.Email, "the event has the customer as it was")

	params := &stripe.SubscriptionParams{}
	params.AddExpand("customer")
	got, err := api.Subscriptions.Get(sub.ID, params)
	require.NoError(t, err)
	require.Equal(t, stripe.SubscriptionStatusCanceled, got.Status)
	require.True(t, got.Customer.Deleted)
	provider, err := payment.Subscription(got.LastResponse.RawJSON)
	require.NoError(t, err)
	require.Equal(t, sub.Customer.ID, provider.CustomerID)
	got, err = api.Subscriptions.Get(other.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.SubscriptionStatusActive, got.Status)

	again, err := api.Customers.Get(sub.Customer.ID, nil)
	require.NoError(t, err)
	require.True(t, again.Deleted)
	_, err = api.Customers.Update(sub.Customer.ID, &stripe.CustomerParams{Name: stripe.String("Mei")})
	requireStripeError(t, err, http.StatusNotFound, stripe.ErrorCodeResourceMissing)
	_, err = api.Customers.Del(sub.Customer.ID, nil)
	requireStripeError(t, err, http.StatusNotFound, stripe.ErrorCodeResourceMissing)
	_, err = api.Subscriptions.New(&stripe.SubscriptionParams{Customer: &sub.Customer.ID, Items: []*stripe.SubscriptionItemsParams{{Price: &price.ID}}})
	requireStripeError(t, err, http.StatusBadRequest, stripe.ErrorCodeResourceMissing)
}

// The payloads of the simulator's other fixtures, in both shapes, read as what they were made from.
func TestSimulatorFixturesReadBack(t *testing.T) {
	t.Parallel()
	at, start, end := time.Unix(1793491300, 0).UTC(), time.Unix(1793491200, 0).UTC(), time.Unix(1796083200, 0).UTC()
	of := simulator.SubscriptionFixture{ID: "sub_1", CustomerID: "cus_1", PriceID: "price_1", UserID: "u_1", PeriodStart: start, PeriodEnd: end}
	of.Invoice = simulator.InvoiceFixture{ID: "in_1", Status: "paid", BillingReason: "subscription_cycle", Created: start}
	object := func(body []byte, kind string) json.RawMessage {
		event, err := payment.ParseEvent(body)
		require.NoError(t, err)
		require.Equal(t, kind, event.Type)
		require.Equal(t, at, event.Created)
		return event.Data
	}
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		invoice := func(change func(*simulator.SubscriptionFixture)) payment.Invoice {
			about := of
			change(&about)
			read, err := payment.ReadInvoice(object(simulator.InvoiceEventBody(shape, "evt_1", "invoice.paid", at, about), "invoice.paid"))
			require.NoError(t, err)
			return read
		}
		renewal := invoice(func(*simulator.SubscriptionFixture) {})
		require.Equal(t, []any{"in_1", "sub_1", start, end, false}, []any{renewal.ID, renewal.SubscriptionID, renewal.PaidFrom, renewal.PaidUntil, renewal.Nothing}, shape)
		require.True(t, invoice(func(f *simulator.SubscriptionFixture) { f.Invoice.Free = true }).Nothing, shape)
		require.Empty(t, invoice(func(f *simulator.SubscriptionFixture) { f.ID = "" }).SubscriptionID, shape)
		proration := invoice(func(f *simulator.SubscriptionFixture) {
			f.Invoice.Lines = []simulator.InvoiceLine{{Amount: 300, PeriodStart: start, PeriodEnd: end, Proration: true}}
		})
		require.True(t, proration.Nothing, shape)
		require.True(t, proration.PaidUntil.IsZero(), shape)

		checkout, err := payment.ReadCheckout(object(simulator.CheckoutEventBody(shape, "evt_2", "checkout.session.completed", at, simulator.CheckoutFixture{
			ID: "cs_1", CustomerID: "cus_1", SubscriptionID: "sub_1", ClientReferenceID: "u_1", Email: "mei@example.com", Name: "Mei Lin",
		}), "checkout.session.completed"))
		require.NoError(t, err)
		require.Equal(t, payment.Checkout{ID: "cs_1", SubscriptionID: "sub_1", CustomerID: "cus_1", UserID: "u_1", Email: "mei@example.com", Name: "Mei Lin"}, checkout, shape)

		raw := object(simulator.CustomerEventBody(shape, "evt_3", "customer.deleted", at, simulator.CustomerFixture{ID: "cus_1", UserID: "u_1"}), "customer.deleted")
		var customer struct {
			ID       string
			Metadata map[string]string
		}
		require.NoError(t, json.Unmarshal(raw, &customer))
		require.Equal(t, "cus_1", customer.ID)
		require.Equal(t, map[string]string{"user_id": "u_1"}, customer.Metadata)
	}
	event, err := payment.ParseEvent(simulator.ThinEventBody("evt_4", "v1.billing.meter.no_meter_found", at, "mtr_1"))
	require.NoError(t, err)
	require.True(t, event.IsThin())
	require.Equal(t, "evt_4", event.ID)
}
