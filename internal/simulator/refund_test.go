package simulator_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// bought is a payment of 2000 that was captured in a session.
func bought(t *testing.T, sim *simulator.Simulator) simulator.PaymentIntentFixture {
	t.Helper()
	paid, err := sim.PayCheckout(ask(t, sim, "checkout/sessions", order(nil)), simulator.PayOptions{})
	require.NoError(t, err)
	return paid
}

func TestRefunds(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	paid := bought(t, sim)
	part := submit(t, sim, "refunds", url.Values{"payment_intent": {paid.ID}, "amount": {"500"}, "metadata[order_id]": {"order_1"}}, http.StatusOK)
	require.Equal(t, "succeeded", part["status"])
	require.Equal(t, paid.ChargeID, part["charge"])
	require.Equal(t, map[string]any{"order_id": "order_1"}, part["metadata"])
	charge := get(t, sim, "charges/"+paid.ChargeID)
	require.EqualValues(t, 500, charge["amount_refunded"])
	require.Equal(t, false, charge["refunded"])

	code, param := refusedWith(t, submit(t, sim, "refunds", url.Values{"charge": {paid.ChargeID}, "amount": {"1501"}}, http.StatusBadRequest))
	require.Nil(t, code)
	require.Equal(t, "amount", param)
	rest := submit(t, sim, "refunds", url.Values{"charge": {paid.ChargeID}, "expand[]": {"payment_intent"}}, http.StatusOK)
	require.EqualValues(t, 1500, rest["amount"])
	require.Equal(t, paid.ID, rest["payment_intent"].(map[string]any)["id"])
	charge = get(t, sim, "charges/"+paid.ChargeID+"?expand[]=refunds")
	require.Equal(t, true, charge["refunded"])
	require.Len(t, charge["refunds"].(map[string]any)["data"], 2)
	code, _ = refusedWith(t, submit(t, sim, "refunds", url.Values{"payment_intent": {paid.ID}}, http.StatusBadRequest))
	require.Equal(t, "charge_already_refunded", code)

	bought(t, sim)
	list := get(t, sim, "refunds?payment_intent="+paid.ID)["data"].([]any)
	require.Len(t, list, 2)
	require.Equal(t, rest["id"], list[0].(map[string]any)["id"])
	require.Equal(t, []string{"refund.created", "charge.refunded", "refund.created", "charge.refunded"}, kinds(t, sim)[4:8])
	for values, want := range map[string]string{"payment_intent=pi_none": "resource_missing", "charge=ch_none": "resource_missing", "": "parameter_missing"} {
		query, err := url.ParseQuery(values)
		require.NoError(t, err)
		code, _ = refusedWith(t, submit(t, sim, "refunds", query, http.StatusBadRequest))
		require.Equal(t, want, code)
	}
	unpaid, err := sim.PayCheckout(ask(t, sim, "checkout/sessions", order(nil)), simulator.PayOptions{Fail: true})
	require.NoError(t, err)
	code, _ = refusedWith(t, submit(t, sim, "refunds", url.Values{"payment_intent": {unpaid.ID}}, http.StatusBadRequest))
	require.Equal(t, "payment_intent_unexpected_state", code)
	code, _ = refusedWith(t, call(t, http.MethodGet, sim.StripeURL()+"/v1/refunds/re_none", "", "", http.StatusNotFound))
	require.Equal(t, "resource_missing", code)
}

// The same Idempotency-Key gives money back once; with other parameters it is refused.
func TestARefundIsMadeOnceForItsKey(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	paid := bought(t, sim)
	keyed := func(body string) (status int, replayed string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, sim.StripeURL()+"/v1/refunds", strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Content-Type", formType)
		request.Header.Set("Authorization", "Bearer sk_test_simulated")
		request.Header.Set("Idempotency-Key", "refund-1")
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode, response.Header.Get("Idempotent-Replayed")
	}
	status, replayed := keyed("payment_intent=" + paid.ID + "&amount=700")
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, replayed)
	status, replayed = keyed("payment_intent=" + paid.ID + "&amount=700")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "true", replayed)
	status, _ = keyed("payment_intent=" + paid.ID + "&amount=701")
	require.Equal(t, http.StatusBadRequest, status)
	require.EqualValues(t, 700, get(t, sim, "charges/"+paid.ChargeID)["amount_refunded"])
}

func TestRefundsThatTakeTime(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	paid := bought(t, sim)
	steer(t, sim, "refunds", `{"hold":true}`)
	for _, succeeds := range []string{"false", "true"} {
		id := ask(t, sim, "refunds", url.Values{"payment_intent": {paid.ID}})
		require.Equal(t, "pending", get(t, sim, "refunds/"+id)["status"])
		require.Equal(t, true, get(t, sim, "charges/"+paid.ChargeID)["refunded"])
		steer(t, sim, "refunds/"+id+"/finish", `{"succeeds":`+succeeds+`}`)
		require.Equal(t, map[string]string{"true": "succeeded", "false": "failed"}[succeeds], get(t, sim, "refunds/"+id)["status"])
		require.Equal(t, succeeds == "true", get(t, sim, "charges/"+paid.ChargeID)["refunded"], "what failed is taken back")
	}
	require.Equal(t, []string{
		"refund.created", "charge.refunded", "refund.updated", "charge.refund.updated", "refund.failed",
		"refund.created", "charge.refunded", "refund.updated", "charge.refund.updated",
	}, kinds(t, sim)[4:])
}

func TestDisputes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		open, closing, status string
		kinds                 []string
		refundable            bool
	}{
		{`{}`, `{"won":false}`, "lost", []string{"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed"}, false},
		{`{"amount":500}`, `{"won":true}`, "won", []string{
			"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed", "charge.dispute.funds_reinstated",
		}, true},
		{`{"inquiry":true}`, `{}`, "warning_closed", []string{"charge.dispute.created", "charge.dispute.closed"}, true},
	} {
		sim := start(t, simulator.Options{})
		paid := bought(t, sim)
		dispute := steer(t, sim, "payments/"+paid.ID+"/dispute", c.open)
		require.Equal(t, paid.ChargeID, dispute["charge"])
		require.Equal(t, true, get(t, sim, "charges/"+paid.ChargeID)["disputed"])
		code, _ := refusedWith(t, submit(t, sim, "refunds", url.Values{"payment_intent": {paid.ID}}, http.StatusBadRequest))
		require.Equal(t, "charge_disputed", code)
		id := dispute["id"].(string)
		steer(t, sim, "disputes/"+id+"/close", c.closing)
		require.Equal(t, c.status, get(t, sim, "disputes/"+id)["status"])
		require.Len(t, get(t, sim, "disputes?charge="+paid.ChargeID+"&expand[]=data.charge")["data"], 1)
		require.Equal(t, c.kinds, kinds(t, sim)[4:])
		_, err := sim.CloseDispute(id, true, false)
		require.Error(t, err, "it is decided")
		_, err = sim.RefundPayment(paid.ChargeID, simulator.RefundOptions{Amount: 1})
		require.Equal(t, c.refundable, err == nil)
		_, err = sim.OpenDispute(paid.ID, simulator.DisputeOptions{})
		require.Error(t, err, "one dispute for a charge")
	}
}

// A period is paid by a payment that the invoice names, and can be given back by it.
func TestPaymentsOfInvoices(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	steer(t, sim, "payment-events", `{"tell":true}`)
	sub := subscribe(t, sim)()
	require.Equal(t, []string{
		"payment_intent.created", "charge.succeeded", "payment_intent.succeeded", "invoice_payment.paid",
		"customer.subscription.created", "invoice.created", "invoice.paid", "invoice.payment_succeeded",
	}, kinds(t, sim))
	got := get(t, sim, "subscriptions/"+sub+"?expand[]=latest_invoice.payment_intent.latest_charge&expand[]=customer&expand[]=items.data.price.product")
	require.Equal(t, "Pro", got["items"].(map[string]any)["data"].([]any)[0].(map[string]any)["price"].(map[string]any)["product"].(map[string]any)["name"])
	require.Equal(t, "mei@example.com", got["customer"].(map[string]any)["email"])
	invoice := got["latest_invoice"].(map[string]any)
	intent := invoice["payment_intent"].(map[string]any)
	require.Equal(t, invoice["id"], intent["invoice"])
	charge := intent["latest_charge"].(map[string]any)
	require.Equal(t, invoice["charge"], charge["id"])
	require.EqualValues(t, 2000, charge["amount"])
	one := get(t, sim, "invoices/"+invoice["id"].(string)+"?expand[]=payment_intent.latest_charge&expand[]=charge&expand[]=subscription")
	require.Equal(t, sub, one["subscription"].(map[string]any)["id"])
	require.Equal(t, charge, one["charge"])
	_, err := sim.RefundPayment(invoice["id"].(string), simulator.RefundOptions{DropWebhook: true})
	require.NoError(t, err)
	require.Equal(t, true, get(t, sim, "charges/"+charge["id"].(string))["refunded"])

	steer(t, sim, "subscriptions/"+sub, `{"fails":true}`)
	sim.AdvanceTo(sim.Now().AddDate(0, 1, 1))
	failed := get(t, sim, "subscriptions/"+sub+"?expand[]=latest_invoice.payment_intent")["latest_invoice"].(map[string]any)["payment_intent"].(map[string]any)
	require.Equal(t, "requires_payment_method", failed["status"])
	_, err = sim.RefundPayment(failed["id"].(string), simulator.RefundOptions{})
	require.Error(t, err)
	steer(t, sim, "subscriptions/"+sub, `{"pay":true}`)
	require.Equal(t, "succeeded", get(t, sim, "payment_intents/"+failed["id"].(string))["status"], "the same payment is tried again")
}
