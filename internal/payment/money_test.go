package payment

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAChargeReadsAlikeInBothShapes(t *testing.T) {
	t.Parallel()
	const common = `{"id":"ch_1","object":"charge","amount":900,"amount_captured":900,"amount_refunded":300,"currency":"usd","customer":"cus_1","payment_intent":"pi_1",
		"created":1790812800,"metadata":{}`
	want := Charge{
		ID: "ch_1", PaymentID: "pi_1", CustomerID: "cus_1", Amount: 900, Refunded: 300, Currency: "USD", Created: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC),
	}
	got, err := ReadCharge(json.RawMessage(common + `}`))
	require.NoError(t, err)
	require.Equal(t, want, got)
	want.InvoiceID = "in_1"
	for _, invoice := range []string{`"in_1"`, `{"id":"in_1","object":"invoice"}`} {
		got, err = ReadCharge(json.RawMessage(common + `,"invoice":` + invoice + `}`))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	got, err = ReadCharge(json.RawMessage(`{"id":"ch_1","amount":5,"amount_refunded":0,"currency":"jpy","payment_intent":{"id":"pi_2"},"metadata":{"order_id":"o_1"}}`))
	require.NoError(t, err)
	require.Equal(t, Charge{ID: "ch_1", PaymentID: "pi_2", OrderID: "o_1", Amount: 5, Currency: "JPY"}, got)
}

func TestAnInvoicePaymentSaysWhatPaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ payment, want string }{
		"a payment intent": {`{"type":"payment_intent","payment_intent":"pi_1"}`, "pi_1"},
		"expanded":         {`{"type":"payment_intent","payment_intent":{"id":"pi_1"}}`, "pi_1"},
		"a charge":         {`{"type":"charge","charge":"ch_1"}`, "ch_1"},
		"money elsewhere":  {`{"type":"payment_record","payment_record":"prec_1"}`, ""},
	} {
		got, err := ReadInvoicePayment(json.RawMessage(`{"id":"inpay_1","object":"invoice_payment","invoice":"in_1","amount_paid":900,"currency":"usd",
			"status_transitions":{"paid_at":1790812800},"payment":` + c.payment + `}`))
		require.NoError(t, err, name)
		want := InvoicePayment{ID: "inpay_1", InvoiceID: "in_1", PaymentID: c.want, Amount: 900, Currency: "USD", Paid: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)}
		require.Equal(t, want, got, name)
	}
}

func TestADisputeReads(t *testing.T) {
	t.Parallel()
	got, err := ReadDispute(json.RawMessage(`{"id":"dp_1","object":"dispute","amount":900,"currency":"eur","charge":"ch_1","payment_intent":"pi_1","status":"needs_response",
		"reason":"fraudulent","created":1790812800}`))
	require.NoError(t, err)
	require.Equal(t, Dispute{
		ID: "dp_1", PaymentID: "pi_1", ChargeID: "ch_1", Status: "needs_response", Reason: "fraudulent", Amount: 900, Currency: "EUR",
		Created: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC),
	}, got)
}

// What is half known about money is no amount of 0.
func TestMoneyThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"id":"x","amount":-1,"amount_refunded":0,"currency":"usd","status":"lost"}`, `{"id":"x","amount":"900","amount_refunded":0,"currency":"usd","status":"lost"}`,
		`{"id":"x","amount":1.5,"amount_refunded":0,"currency":"usd","status":"lost"}`, `{"id":"x","amount":900,"amount_refunded":0,"status":"lost"}`,
		`{"id":"x","amount":900,"currency":"u$d","amount_refunded":0,"status":"lost"}`, `{"amount":900,"amount_refunded":0,"currency":"usd","status":"lost"}`,
		`{"id":"x","object":"invoice","amount":900,"amount_refunded":0,"currency":"usd","status":"lost"}`, `[]`, `{`,
	} {
		_, err := ReadCharge(json.RawMessage(body))
		require.ErrorIs(t, err, ErrMalformed, body)
		_, err = ReadDispute(json.RawMessage(body))
		require.ErrorIs(t, err, ErrMalformed, body)
		_, err = ReadInvoicePayment(json.RawMessage(body))
		require.ErrorIs(t, err, ErrMalformed, body)
	}
	_, err := ReadCharge(json.RawMessage(`{"id":"x","amount":900,"currency":"usd"}`))
	require.ErrorIs(t, err, ErrMalformed, "what was given back is not told")
	_, err = ReadDispute(json.RawMessage(`{"id":"x","amount":900,"currency":"usd"}`))
	require.ErrorIs(t, err, ErrMalformed, "its state is not told")
	_, err = ReadInvoicePayment(json.RawMessage(`{"id":"x","amount_paid":900,"currency":"usd"}`))
	require.ErrorIs(t, err, ErrMalformed, "its invoice is not told")
}
