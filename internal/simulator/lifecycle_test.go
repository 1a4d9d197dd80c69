package simulator_test

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// catalog makes a price and a customer; what is sold by it is a subscription with the changes.
func catalog(t *testing.T, sim *simulator.Simulator) func(change url.Values) map[string]any {
	t.Helper()
	price := submit(t, sim, "prices", url.Values{
		"product_data[name]": {"Pro"}, "currency": {"usd"}, "unit_amount": {"2000"}, "recurring[interval]": {"month"},
	}, http.StatusOK)
	customer := ask(t, sim, "customers", url.Values{"email": {"mei@example.com"}})
	require.Equal(t, price["product"], get(t, sim, "products")["data"].([]any)[0].(map[string]any)["id"])
	require.Len(t, get(t, sim, "prices?product="+price["product"].(string))["data"], 1)
	require.Len(t, get(t, sim, "customers?email=mei@example.com")["data"], 1)
	return func(change url.Values) map[string]any {
		values := url.Values{"customer": {customer}, "items[0][price]": {price["id"].(string)}, "metadata[user_id]": {"u_1"}}
		for name, value := range change {
			values[name] = value
		}
		return submit(t, sim, "subscriptions", values, http.StatusOK)
	}
}

func instant(value any) time.Time { return time.Unix(int64(value.(float64)), 0).UTC() }

// since are the types of the events after the first n.
func since(t *testing.T, sim *simulator.Simulator, n int) []string {
	t.Helper()
	return kinds(t, sim)[n:]
}

// Pausing the collection leaves the status: the period rolls over, and its invoice is not charged.
func TestPausedCollection(t *testing.T) {
	t.Parallel()
	for behavior, status := range map[string]string{"void": "void", "mark_uncollectible": "uncollectible", "keep_as_draft": "draft"} {
		sim := start(t, simulator.Options{})
		sub := catalog(t, sim)(nil)
		path := "subscriptions/" + sub["id"].(string)
		paused := submit(t, sim, path, url.Values{"pause_collection[behavior]": {behavior}}, http.StatusOK)
		require.Equal(t, "active", paused["status"])
		require.Equal(t, behavior, paused["pause_collection"].(map[string]any)["behavior"])
		sim.AdvanceTo(instant(sub["current_period_end"]).Add(2 * time.Hour))
		got := get(t, sim, path+"?expand[]=latest_invoice")
		require.Equal(t, "active", got["status"])
		require.Equal(t, sub["current_period_end"], got["current_period_start"])
		require.Equal(t, status, got["latest_invoice"].(map[string]any)["status"])
		require.Nil(t, submit(t, sim, path, url.Values{"pause_collection": {""}}, http.StatusOK)["pause_collection"])
		submit(t, sim, path, url.Values{"pause_collection[behavior]": {"nap"}}, http.StatusBadRequest)
	}
}

// The status paused stops everything until the subscription is resumed.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	sub := catalog(t, sim)(nil)
	id := sub["id"].(string)
	submit(t, sim, "subscriptions/"+id+"/resume", nil, http.StatusBadRequest)
	submit(t, sim, "subscriptions/sub_none/resume", nil, http.StatusNotFound)
	require.Error(t, sim.ResumeSubscription(id))

	steer(t, sim, "subscriptions/"+id+"/pause", "")
	steer(t, sim, "subscriptions/"+id+"/resume", "")
	got := get(t, sim, "subscriptions/"+id)
	require.Equal(t, "active", got["status"])
	require.Equal(t, sub["current_period_end"], got["current_period_end"])
	require.Equal(t, []string{
		"customer.subscription.updated", "customer.subscription.paused", "customer.subscription.updated", "customer.subscription.resumed",
	}, since(t, sim, 4))

	require.NoError(t, sim.PauseSubscription(id))
	require.Error(t, sim.PauseSubscription(id))
	sim.AdvanceTo(instant(sub["current_period_end"]).Add(48 * time.Hour))
	got = get(t, sim, "subscriptions/"+id)
	require.Equal(t, "paused", got["status"])
	require.Equal(t, sub["current_period_end"], got["current_period_end"], "a paused one does not roll over")
	before := len(kinds(t, sim))
	got = submit(t, sim, "subscriptions/"+id+"/resume", nil, http.StatusOK)
	require.Equal(t, "active", got["status"])
	require.WithinDuration(t, sim.Now(), instant(got["current_period_start"]), 5*time.Second)
	require.Equal(t, []string{
		"invoice.created", "customer.subscription.resumed", "invoice.paid", "invoice.payment_succeeded", "customer.subscription.updated",
	}, since(t, sim, before))
}

// A trial is told of three days before its end, a shorter one at once; then it is billed, paused or ended.
func TestTrials(t *testing.T) {
	t.Parallel()
	const notice = "customer.subscription.trial_will_end"
	sim := start(t, simulator.Options{})
	sell := catalog(t, sim)
	short := sell(url.Values{"trial_period_days": {"2"}})
	require.Contains(t, kinds(t, sim), notice)
	steer(t, sim, "subscriptions/"+short["id"].(string), `{"status":"canceled"}`)

	const after = "trial_settings[end_behavior][missing_payment_method]"
	billed := sell(url.Values{"trial_period_days": {"7"}, after: {"create_invoice"}})
	pausing := sell(url.Values{"trial_period_days": {"7"}, after: {"pause"}})
	ending := sell(url.Values{"trial_period_days": {"7"}, after: {"cancel"}})
	before := len(kinds(t, sim))
	ends := instant(billed["trial_end"])
	sim.AdvanceTo(ends.Add(-72*time.Hour - time.Minute))
	require.Empty(t, since(t, sim, before))
	sim.AdvanceTo(ends.Add(-71 * time.Hour))
	require.Equal(t, []string{notice, notice, notice}, since(t, sim, before))
	sim.AdvanceTo(ends.Add(time.Minute))
	for id, status := range map[any]string{billed["id"]: "active", pausing["id"]: "paused", ending["id"]: "canceled"} {
		require.Equal(t, status, get(t, sim, "subscriptions/"+id.(string))["status"])
	}
	types := since(t, sim, before+3)
	require.Contains(t, types, "customer.subscription.paused")
	require.Contains(t, types, "customer.subscription.deleted")
	require.NotContains(t, types, notice, "once")
}

// An invoice that is sent is paid when the customer does, and past due only after its due date.
func TestSentInvoices(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	sub := catalog(t, sim)(url.Values{"collection_method": {"send_invoice"}, "days_until_due": {"14"}})
	id := sub["id"].(string)
	first := get(t, sim, "subscriptions/"+id+"?expand[]=latest_invoice")["latest_invoice"].(map[string]any)
	require.Equal(t, "active", sub["status"])
	require.Equal(t, "draft", first["status"])
	sim.Advance(2 * time.Hour)
	require.Equal(t, "paid", get(t, sim, "invoices/"+first["id"].(string))["status"])

	steer(t, sim, "subscriptions/"+id, `{"fails":true}`)
	sim.AdvanceTo(instant(sub["current_period_end"]).Add(2 * time.Hour))
	got := get(t, sim, "subscriptions/"+id+"?expand[]=latest_invoice")
	invoice := got["latest_invoice"].(map[string]any)
	require.Equal(t, "active", got["status"])
	require.Equal(t, "open", invoice["status"])
	require.Equal(t, instant(sub["current_period_end"]).Add(time.Hour).AddDate(0, 0, 14), instant(invoice["due_date"]))
	sim.AdvanceTo(instant(invoice["due_date"]))
	require.Equal(t, "past_due", get(t, sim, "subscriptions/"+id)["status"])
	require.Equal(t, []string{"invoice.overdue", "customer.subscription.updated"}, since(t, sim, len(kinds(t, sim))-2))
	steer(t, sim, "subscriptions/"+id, `{"pay":true}`)
	require.Equal(t, "active", get(t, sim, "subscriptions/"+id)["status"])
}

// Invoices of nothing have no payment; those of a change of price have one, and no new period.
func TestInvoicesThatBuyNoPeriod(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	sell := catalog(t, sim)
	trial := sell(url.Values{"trial_period_days": {"7"}, "expand[]": {"latest_invoice"}})["latest_invoice"].(map[string]any)
	require.Equal(t, "paid", trial["status"])
	require.EqualValues(t, 0, trial["total"])
	require.Nil(t, trial["payment_intent"])

	sub := sell(nil)
	dearer := ask(t, sim, "prices", url.Values{"product_data[name]": {"Max"}, "currency": {"usd"}, "unit_amount": {"5000"}, "recurring[interval]": {"month"}})
	item := sub["items"].(map[string]any)["data"].([]any)[0].(map[string]any)["id"].(string)
	after := submit(t, sim, "subscriptions/"+sub["id"].(string), url.Values{
		"items[0][id]": {item}, "items[0][price]": {dearer}, "proration_behavior": {"always_invoice"}, "expand[]": {"latest_invoice.payment_intent"},
	}, http.StatusOK)
	require.Equal(t, sub["current_period_end"], after["current_period_end"])
	invoice := after["latest_invoice"].(map[string]any)
	require.Equal(t, "subscription_update", invoice["billing_reason"])
	for _, line := range invoice["lines"].(map[string]any)["data"].([]any) {
		require.Equal(t, true, line.(map[string]any)["proration"])
	}
	require.Equal(t, invoice["total"], invoice["payment_intent"].(map[string]any)["amount"])
}

// A first payment that does not come ends the subscription after 23 hours; an unpaid one bills nothing any more.
func TestPaymentsThatNeverCome(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	sell := catalog(t, sim)
	late, paid := sell(url.Values{"payment_behavior": {"default_incomplete"}})["id"].(string), sell(url.Values{"payment_behavior": {"default_incomplete"}})["id"].(string)
	require.Equal(t, "incomplete", get(t, sim, "subscriptions/"+paid)["status"])
	steer(t, sim, "subscriptions/"+paid, `{"pay":true}`)
	sim.Advance(24 * time.Hour)
	require.Equal(t, "active", get(t, sim, "subscriptions/"+paid)["status"])
	got := get(t, sim, "subscriptions/"+late+"?expand[]=latest_invoice")
	require.Equal(t, "incomplete_expired", got["status"])
	require.Equal(t, "void", got["latest_invoice"].(map[string]any)["status"])

	steer(t, sim, "subscriptions/"+paid, `{"status":"unpaid"}`)
	sim.AdvanceTo(sim.Now().AddDate(0, 1, 1))
	got = get(t, sim, "subscriptions/"+paid+"?expand[]=latest_invoice")
	require.Equal(t, "unpaid", got["status"])
	require.Equal(t, "draft", got["latest_invoice"].(map[string]any)["status"])
}

// A price that is paid once buys no subscription, and a recurring one no single payment.
func TestPricesOfTheOtherKind(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	sub := catalog(t, sim)(nil)
	item := sub["items"].(map[string]any)["data"].([]any)[0].(map[string]any)
	once := ask(t, sim, "prices", url.Values{"product_data[name]": {"Book"}, "currency": {"usd"}, "unit_amount": {"900"}})
	recurring := item["price"].(map[string]any)["id"].(string)
	submit(t, sim, "subscriptions", url.Values{"customer": {sub["customer"].(string)}, "items[0][price]": {once}}, http.StatusBadRequest)
	submit(t, sim, "subscriptions/"+sub["id"].(string), url.Values{"items[0][id]": {item["id"].(string)}, "items[0][price]": {once}}, http.StatusBadRequest)
	session := url.Values{"mode": {"payment"}, "success_url": {"https://shop.example/ok"}, "line_items[0][quantity]": {"2"}, "line_items[0][price]": {recurring}}
	submit(t, sim, "checkout/sessions", session, http.StatusBadRequest)
	session.Set("line_items[0][price]", once)
	require.EqualValues(t, 1800, submit(t, sim, "checkout/sessions", session, http.StatusOK)["amount_total"])
	session.Set("mode", "subscription")
	submit(t, sim, "checkout/sessions", session, http.StatusBadRequest)
	session.Set("line_items[0][price]", recurring)
	session.Set("subscription_data[trial_period_days]", "7")
	require.EqualValues(t, 0, submit(t, sim, "checkout/sessions", session, http.StatusOK)["amount_total"])
}

// Many subscriptions are there without a word, in a list of pages; what is changed in silence is in no event.
func TestManySubscriptions(t *testing.T) {
	t.Parallel()
	const many = 10_000
	r := newReceiver(t)
	sim := start(t, simulator.Options{Endpoint: simulator.Endpoint{URL: r.URL, Secret: secret}})
	added := steer(t, sim, "subscriptions", `{"count":`+strconv.Itoa(many)+`,"price":"price_pro","user_prefix":"u_"}`)["data"].([]any)
	require.Len(t, added, many)
	page, seen := map[string]any{"has_more": true}, make([]any, 0, many)
	for after := ""; page["has_more"] == true; after = "&starting_after=" + seen[len(seen)-1].(string) {
		page = get(t, sim, "subscriptions?status=all&limit=100&expand[]=data.latest_invoice&expand[]=data.customer"+after)
		for _, one := range page["data"].([]any) {
			seen = append(seen, one.(map[string]any)["id"])
		}
	}
	slices.Reverse(seen)
	require.Equal(t, added, seen)
	last := get(t, sim, "subscriptions/"+added[many-1].(string)+"?expand[]=latest_invoice.payment_intent")
	require.Equal(t, "u_9999", last["metadata"].(map[string]any)["user_id"])
	require.Equal(t, "succeeded", last["latest_invoice"].(map[string]any)["payment_intent"].(map[string]any)["status"])

	ended, before, price, user := "canceled", sim.Now().Add(-time.Hour), "price_other", "u_other"
	require.True(t, sim.ChangeSubscription(added[0].(string), simulator.SubscriptionChange{Status: &ended, EndedAt: &before, PriceID: &price, UserID: &user, Silent: true}))
	got := get(t, sim, "subscriptions/"+added[0].(string))
	require.Equal(t, "canceled", got["status"])
	require.Equal(t, before, instant(got["ended_at"]))
	require.Equal(t, "u_other", got["metadata"].(map[string]any)["user_id"])
	require.Equal(t, "price_other", got["items"].(map[string]any)["data"].([]any)[0].(map[string]any)["price"].(map[string]any)["id"])
	require.True(t, sim.RemoveSubscription(added[1].(string)))
	require.False(t, sim.RemoveSubscription(added[1].(string)))
	call(t, http.MethodGet, sim.StripeURL()+"/v1/subscriptions/"+added[1].(string), "", "", http.StatusNotFound)
	require.Equal(t, added[2], get(t, sim, "subscriptions/"+added[2].(string))["id"])
	require.Empty(t, kinds(t, sim))
	require.Empty(t, sim.Deliveries())

	// All of them renew and are told of.
	require.NoError(t, sim.SetEndpoint(simulator.Endpoint{}))
	sim.AdvanceTo(sim.Now().AddDate(0, 1, 1))
	require.Equal(t, true, get(t, sim, "events?limit=100&types[]=invoice.paid&delivery_success=true")["has_more"])
	require.Equal(t, "paid", get(t, sim, "invoices?limit=1")["data"].([]any)[0].(map[string]any)["status"])
	for _, change := range []string{`{"count":0}`, `{"count":100001}`} {
		call(t, http.MethodPost, sim.StripeURL()+"/_sim/subscriptions", "application/json", change, http.StatusBadRequest)
	}
	_, err := sim.AddSubscriptions(simulator.SubscriptionFixture{ID: added[2].(string)})
	require.ErrorContains(t, err, "already")
}

// What is added is as the fixture says, with an invoice that fits.
func TestAddedSubscriptions(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	from := sim.Now().Add(-10 * 24 * time.Hour)
	added, err := sim.AddSubscriptions(
		simulator.SubscriptionFixture{ID: "sub_late", Status: "past_due", PeriodStart: from, StartDate: from.AddDate(0, -1, 0)},
		simulator.SubscriptionFixture{ID: "sub_over", Status: "canceled", UserID: "u_2", Customer: &simulator.CustomerFixture{ID: "cus_2", Email: "mei@example.com"}},
		simulator.SubscriptionFixture{ID: "sub_ends", CancelAtPeriodEnd: true, PeriodStart: from, PeriodEnd: from.AddDate(0, 0, 20)},
		simulator.SubscriptionFixture{ID: "sub_trial", Status: "trialing", PeriodEnd: sim.Now().Add(5 * 24 * time.Hour)},
	)
	require.NoError(t, err)
	require.Len(t, added, 4)
	late := get(t, sim, "subscriptions/sub_late?expand[]=latest_invoice")
	require.Equal(t, "past_due", late["status"])
	require.Equal(t, from.AddDate(0, 1, 0), instant(late["current_period_end"]))
	require.Equal(t, "open", late["latest_invoice"].(map[string]any)["status"])
	require.Equal(t, "subscription_cycle", late["latest_invoice"].(map[string]any)["billing_reason"])
	over := get(t, sim, "subscriptions/sub_over?expand[]=customer")
	require.Equal(t, "mei@example.com", over["customer"].(map[string]any)["email"])
	require.NotNil(t, over["ended_at"])
	require.Empty(t, kinds(t, sim))

	sim.Advance(11 * 24 * time.Hour)
	require.Equal(t, "canceled", get(t, sim, "subscriptions/sub_ends")["status"])
	require.Contains(t, kinds(t, sim), "customer.subscription.trial_will_end")
}
