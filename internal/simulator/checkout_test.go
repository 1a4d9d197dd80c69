package simulator_test

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

const formType = "application/x-www-form-urlencoded"

// order is what a checkout session for a payment is made with.
func order(change url.Values) url.Values {
	values := url.Values{
		"mode": {"payment"}, "success_url": {"https://shop.example/ok"}, "cancel_url": {"https://shop.example/no"}, "client_reference_id": {"u_1"},
		"customer_email":                                {"mei@example.com"},
		"metadata[order_id]":                            {"order_1"},
		"payment_intent_data[metadata][order_id]":       {"order_1"},
		"line_items[0][quantity]":                       {"1"},
		"line_items[0][price_data][currency]":           {"usd"},
		"line_items[0][price_data][unit_amount]":        {"2000"},
		"line_items[0][price_data][product_data][name]": {"Pro"},
	}
	maps.Copy(values, change)
	return values
}

// get fetches an object; submit sends a form and expects a status.
func get(t *testing.T, sim *simulator.Simulator, path string) map[string]any {
	t.Helper()
	return call(t, http.MethodGet, sim.StripeURL()+"/v1/"+path, "", "", http.StatusOK)
}

func submit(t *testing.T, sim *simulator.Simulator, path string, values url.Values, want int) map[string]any {
	t.Helper()
	return call(t, http.MethodPost, sim.StripeURL()+"/v1/"+path, formType, values.Encode(), want)
}

// refusedWith is the code and the parameter of a refusal.
func refusedWith(t *testing.T, said map[string]any) (code, param any) {
	t.Helper()
	problem, ok := said["error"].(map[string]any)
	require.True(t, ok, "%v", said)
	require.NotEmpty(t, problem["message"])
	return problem["code"], problem["param"]
}

// kinds are the types of the events so far, oldest first.
func kinds(t *testing.T, sim *simulator.Simulator) []string {
	t.Helper()
	var types []string
	for _, e := range get(t, sim, "events?limit=100")["data"].([]any) {
		types = append(types, e.(map[string]any)["type"].(string))
	}
	slices.Reverse(types)
	return types
}

func TestCheckoutOfAPayment(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	id := ask(t, sim, "checkout/sessions", order(nil))
	session := get(t, sim, "checkout/sessions/"+id+"?expand[]=line_items&expand[]=payment_intent")
	require.Equal(t, "open", session["status"])
	require.Equal(t, "unpaid", session["payment_status"])
	require.EqualValues(t, 2000, session["amount_total"])
	require.Equal(t, "usd", session["currency"])
	require.Equal(t, "u_1", session["client_reference_id"])
	require.Equal(t, map[string]any{"order_id": "order_1"}, session["metadata"])
	require.NotEmpty(t, session["url"])
	require.Nil(t, session["payment_intent"], "there is none before somebody pays")
	require.Len(t, session["line_items"].(map[string]any)["data"], 1)

	paid, err := sim.PayCheckout(id, simulator.PayOptions{})
	require.NoError(t, err)
	session = get(t, sim, "checkout/sessions/"+id+"?expand[]=payment_intent.latest_charge")
	require.Equal(t, "complete", session["status"])
	require.Equal(t, "paid", session["payment_status"])
	require.Nil(t, session["url"])
	require.Equal(t, "mei@example.com", session["customer_details"].(map[string]any)["email"])
	intent := session["payment_intent"].(map[string]any)
	require.Equal(t, paid.ID, intent["id"])
	require.Equal(t, "succeeded", intent["status"])
	require.EqualValues(t, 2000, intent["amount_received"])
	require.Equal(t, map[string]any{"order_id": "order_1"}, intent["metadata"])
	charge := intent["latest_charge"].(map[string]any)
	require.Equal(t, true, charge["paid"])
	require.Equal(t, false, charge["refunded"])
	require.Equal(t, paid.ID, charge["payment_intent"])
	require.Equal(t, charge["id"], get(t, sim, "charges/"+paid.ChargeID)["id"])
	require.Equal(t, []string{"payment_intent.created", "charge.succeeded", "payment_intent.succeeded", "checkout.session.completed"}, kinds(t, sim))

	_, err = sim.PayCheckout(id, simulator.PayOptions{})
	require.ErrorContains(t, err, "complete")
	_, err = sim.PayCheckout("cs_none", simulator.PayOptions{})
	require.Error(t, err)
	code, _ := refusedWith(t, submit(t, sim, "checkout/sessions/"+id+"/expire", nil, http.StatusBadRequest))
	require.Equal(t, "checkout_session_not_open", code)
	code, _ = refusedWith(t, submit(t, sim, "checkout/sessions/cs_none/expire", nil, http.StatusNotFound))
	require.Equal(t, "resource_missing", code)
}

func TestCheckoutRefusesAsStripeDoes(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	in := func(d time.Duration) url.Values {
		return url.Values{"expires_at": {strconv.FormatInt(sim.Now().Add(d).Unix(), 10)}}
	}
	for name, c := range map[string]struct {
		change url.Values
		param  string
	}{
		"too soon":       {in(29 * time.Minute), "expires_at"},
		"too late":       {in(24*time.Hour + time.Minute), "expires_at"},
		"no instant":     {url.Values{"expires_at": {"soon"}}, "expires_at"},
		"no mode":        {url.Values{"mode": {""}}, "mode"},
		"other mode":     {url.Values{"mode": {"setup"}}, "mode"},
		"no way out":     {url.Values{"success_url": {""}}, "success_url"},
		"no quantity":    {url.Values{"line_items[0][quantity]": {""}}, "line_items[0][quantity]"},
		"no currency":    {url.Values{"line_items[0][price_data][currency]": {""}}, "line_items[0][price_data][currency]"},
		"odd currency":   {url.Values{"line_items[0][price_data][currency]": {"dollars"}}, "line_items[0][price_data][currency]"},
		"no amount":      {url.Values{"line_items[0][price_data][unit_amount]": {""}}, "line_items[0][price_data][unit_amount]"},
		"odd amount":     {url.Values{"line_items[0][price_data][unit_amount]": {"19.99"}}, "line_items[0][price_data][unit_amount]"},
		"no name":        {url.Values{"line_items[0][price_data][product_data][name]": {""}}, "line_items[0][price_data][product_data][name]"},
		"no such price":  {url.Values{"line_items[0][price]": {"price_none"}}, "line_items[0][price]"},
		"no customer":    {url.Values{"customer": {"cus_none"}, "customer_email": nil}, "customer"},
		"two currencies": {url.Values{"line_items[1][quantity]": {"1"}, "line_items[1][price_data][currency]": {"eur"}, "line_items[1][price_data][unit_amount]": {"1"}, "line_items[1][price_data][product_data][name]": {"x"}}, "line_items"},
	} {
		_, param := refusedWith(t, submit(t, sim, "checkout/sessions", order(c.change), http.StatusBadRequest))
		require.Equal(t, c.param, param, name)
	}
	for _, d := range []time.Duration{31 * time.Minute, 24*time.Hour - time.Second} {
		ask(t, sim, "checkout/sessions", order(in(d)))
	}
	code, _ := refusedWith(t, submit(t, sim, "checkout/sessions/cs_none", nil, http.StatusNotFound))
	require.Nil(t, code, "a session is not updated here")
	_, param := refusedWith(t, call(t, http.MethodGet, sim.StripeURL()+"/v1/checkout/sessions?expand[]=data.status", "", "", http.StatusBadRequest))
	require.Equal(t, "expand", param)
}

// A session expires by the simulator's own clock, or when it is told to; then nobody can pay in it.
func TestCheckoutExpires(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	byClock := ask(t, sim, "checkout/sessions", order(url.Values{"expires_at": {strconv.FormatInt(sim.Now().Add(time.Hour).Unix(), 10)}}))
	told := ask(t, sim, "checkout/sessions", order(nil))
	require.Equal(t, "expired", submit(t, sim, "checkout/sessions/"+told+"/expire", nil, http.StatusOK)["status"])
	sim.Advance(59 * time.Minute)
	require.Equal(t, "open", get(t, sim, "checkout/sessions/"+byClock)["status"])
	sim.Advance(time.Minute)
	require.Equal(t, "expired", get(t, sim, "checkout/sessions/"+byClock)["status"])
	require.Equal(t, []string{"checkout.session.expired", "checkout.session.expired"}, kinds(t, sim))
	for _, id := range []string{byClock, told} {
		_, err := sim.PayCheckout(id, simulator.PayOptions{})
		require.ErrorContains(t, err, "expired")
	}
}

func TestAsynchronousPayments(t *testing.T) {
	t.Parallel()
	for succeeds, want := range map[bool][]string{
		true:  {"payment_intent.created", "payment_intent.processing", "checkout.session.completed", "charge.succeeded", "payment_intent.succeeded", "checkout.session.async_payment_succeeded"},
		false: {"payment_intent.created", "payment_intent.processing", "checkout.session.completed", "charge.failed", "payment_intent.payment_failed", "checkout.session.async_payment_failed"},
	} {
		sim := start(t, simulator.Options{})
		id := ask(t, sim, "checkout/sessions", order(nil))
		paid, err := sim.PayCheckout(id, simulator.PayOptions{Async: true})
		require.NoError(t, err)
		session := get(t, sim, "checkout/sessions/"+id+"?expand[]=payment_intent")
		require.Equal(t, "complete", session["status"])
		require.Equal(t, "unpaid", session["payment_status"])
		require.Equal(t, "processing", session["payment_intent"].(map[string]any)["status"])
		require.EqualValues(t, 0, session["payment_intent"].(map[string]any)["amount_received"])
		refusedWith(t, submit(t, sim, "checkout/sessions/"+id+"/expire", nil, http.StatusBadRequest))

		_, err = sim.FinishPayment(paid.ID, succeeds, false)
		require.NoError(t, err)
		_, err = sim.FinishPayment(paid.ID, succeeds, false)
		require.Error(t, err, "it is over")
		require.Equal(t, map[bool]string{true: "paid", false: "unpaid"}[succeeds], get(t, sim, "checkout/sessions/"+id)["payment_status"])
		require.Equal(t, want, kinds(t, sim))
	}
}

// A declined attempt leaves the session open, and the next one uses the same payment.
func TestADeclinedPayment(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	id := ask(t, sim, "checkout/sessions", order(nil))
	declined, err := sim.PayCheckout(id, simulator.PayOptions{Fail: true})
	require.NoError(t, err)
	require.Equal(t, "requires_payment_method", declined.Status)
	require.Equal(t, "open", get(t, sim, "checkout/sessions/"+id)["status"])
	paid, err := sim.PayCheckout(id, simulator.PayOptions{})
	require.NoError(t, err)
	require.Equal(t, declined.ID, paid.ID)
	require.Len(t, get(t, sim, "charges?payment_intent="+paid.ID)["data"], 2)
}

// Money that does not fit: another amount, another currency, twice, and after the session was closed.
func TestPaymentsThatDoNotFit(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	id := ask(t, sim, "checkout/sessions", order(nil))
	steer(t, sim, "checkout-sessions/"+id+"/pay", `{"amount":1999,"currency":"JPY"}`)
	session := get(t, sim, "checkout/sessions/"+id+"?expand[]=payment_intent")
	require.EqualValues(t, 2000, session["amount_total"], "the session says what it asked for")
	intent := session["payment_intent"].(map[string]any)
	require.EqualValues(t, 1999, intent["amount_received"])
	require.Equal(t, "jpy", intent["currency"])

	second := steer(t, sim, "checkout-sessions/"+id+"/extra-payment", `{}`)
	require.NotEqual(t, intent["id"], second["id"])
	require.Equal(t, intent["metadata"], second["metadata"])
	late := ask(t, sim, "checkout/sessions", order(url.Values{"metadata[order_id]": {"order_2"}, "payment_intent_data[metadata][order_id]": {"order_2"}}))
	submit(t, sim, "checkout/sessions/"+late+"/expire", nil, http.StatusOK)
	third, err := sim.ExtraPayment("order_2", simulator.PayOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"order_id": "order_2"}, third.Metadata)
	require.Equal(t, "expired", get(t, sim, "checkout/sessions/"+late)["status"])
	_, err = sim.ExtraPayment("order_none", simulator.PayOptions{})
	require.Error(t, err)
	call(t, http.MethodPost, sim.StripeURL()+"/_sim/payment-intents/"+third.ID+"/finish", "application/json", `{"succeeds":true}`, http.StatusBadRequest)
}

// A payment whose webhooks are lost is told of in the list of events, as not delivered.
func TestAPaymentWithLostWebhooks(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	sim := start(t, simulator.Options{Endpoint: simulator.Endpoint{URL: r.URL, Secret: secret}})
	lost, told := ask(t, sim, "checkout/sessions", order(nil)), ask(t, sim, "checkout/sessions", order(nil))
	_, err := sim.PayCheckout(lost, simulator.PayOptions{DropWebhook: true})
	require.NoError(t, err)
	_, err = sim.PayCheckout(told, simulator.PayOptions{})
	require.NoError(t, err)
	r.wait(t, sim, 4)
	require.Len(t, get(t, sim, "events?delivery_success=true")["data"], 4)
	undelivered := get(t, sim, "events?delivery_success=false&types[]=checkout.session.completed&types[]=charge.*")["data"].([]any)
	require.Len(t, undelivered, 2)
	completed := undelivered[0].(map[string]any)
	require.EqualValues(t, 1, completed["pending_webhooks"])
	require.Equal(t, lost, completed["data"].(map[string]any)["object"].(map[string]any)["id"])
	steer(t, sim, "events/"+completed["id"].(string)+"/resend", "")
	r.wait(t, sim, 5)
	require.EqualValues(t, 0, get(t, sim, "events/"+completed["id"].(string))["pending_webhooks"])
}

func TestListsOfSessionsAndPayments(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	var sessions, intents []string // newest first
	var from time.Time
	for n := range 5 {
		if n == 2 {
			from = sim.Advance(time.Minute)
		}
		id := ask(t, sim, "checkout/sessions", order(nil))
		paid, err := sim.PayCheckout(id, simulator.PayOptions{})
		require.NoError(t, err)
		sessions, intents = append([]string{id}, sessions...), append([]string{paid.ID}, intents...)
	}
	for path, want := range map[string][]string{"checkout/sessions": sessions, "payment_intents": intents} {
		walk := func(query string) (ids []string, pages int) {
			for after := ""; ; pages++ {
				page := get(t, sim, path+"?limit=2"+query+after)
				data := page["data"].([]any)
				for _, one := range data {
					ids = append(ids, one.(map[string]any)["id"].(string))
				}
				if page["has_more"] == false {
					return ids, pages + 1
				}
				after = "&starting_after=" + ids[len(ids)-1]
			}
		}
		ids, pages := walk("")
		require.Equal(t, want, ids)
		require.Equal(t, 3, pages)
		ids, _ = walk("&created[gte]=" + strconv.FormatInt(from.Unix(), 10))
		require.Equal(t, want[:3], ids)
		back := get(t, sim, path+"?limit=2&ending_before="+want[3])
		require.Equal(t, want[1], back["data"].([]any)[0].(map[string]any)["id"])
		require.Equal(t, true, back["has_more"])
		for _, query := range []string{"?limit=0", "?limit=101", "?starting_after=none"} {
			call(t, http.MethodGet, sim.StripeURL()+"/v1/"+path+query, "", "", http.StatusBadRequest)
		}
	}
	list := get(t, sim, "checkout/sessions?payment_intent="+intents[1]+"&expand[]=data.payment_intent")["data"].([]any)
	require.Len(t, list, 1)
	require.Equal(t, intents[1], list[0].(map[string]any)["payment_intent"].(map[string]any)["id"])
	code, _ := refusedWith(t, call(t, http.MethodGet, sim.StripeURL()+"/v1/payment_intents/pi_none", "", "", http.StatusNotFound))
	require.Equal(t, "resource_missing", code)
}
