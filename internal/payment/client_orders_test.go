package payment_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
)

// The objects of an order as the two shapes write them. Only what is read differs: the invoice of a payment is gone in the newer.
const (
	orderIntent = `{"id":"pi_1","object":"payment_intent","status":"succeeded","amount":1000,"amount_received":1000,"currency":"usd","created":1767225600,
		"customer":"cus_1","invoice":null,"metadata":{"order_id":"o_1"},"latest_charge":{"id":"ch_1","object":"charge","amount":1000,"amount_refunded":300}}`
	orderSession = `{"id":"cs_1","object":"checkout.session","mode":"payment","status":"complete","payment_status":"paid","amount_total":1000,"currency":"usd",
		"created":1767225600,"expires_at":1767229200,"url":null,"client_reference_id":"u_1","metadata":{"order_id":"o_1","user_id":"u_2"},"payment_intent":` + orderIntent + `}`
	orderRefund = `{"id":"re_1","object":"refund","status":"succeeded","amount":300,"currency":"jpy","created":1767225600,"payment_intent":"pi_1","charge":"ch_1"}`
)

var created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// with changes fields of a JSON object; null removes one.
func with(t *testing.T, object string, fields ...string) string {
	t.Helper()
	var whole map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(object), &whole))
	for _, field := range fields {
		var change map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte("{"+field+"}"), &change))
		maps.Copy(whole, change)
	}
	raw, err := json.Marshal(whole)
	require.NoError(t, err)
	return string(raw)
}

func TestReadCheckoutSession(t *testing.T) {
	t.Parallel()
	paid := payment.Payment{ID: "pi_1", OrderID: "o_1", CustomerID: "cus_1", Status: "succeeded", Amount: 1000, Refunded: 300, Currency: "USD", Created: created, ChargeID: "ch_1"}
	whole := payment.CheckoutSession{
		ID: "cs_1", OrderID: "o_1", UserID: "u_1", PaymentIntentID: "pi_1", Status: "complete", PaymentStatus: "paid", Amount: 1000, Currency: "USD",
		ExpiresAt: created.Add(time.Hour), Created: created, Payments: []payment.Payment{paid},
	}
	got, err := payment.ReadCheckoutSession([]byte(orderSession))
	require.NoError(t, err)
	require.Equal(t, whole, got)

	long := "https://checkout.stripe.com/c/pay/cs_1#" + strings.Repeat("x", 600)
	for name, of := range map[string]struct {
		fields []string
		want   func(*payment.CheckoutSession)
	}{
		"the payment as an id": {[]string{`"payment_intent":"pi_1"`}, func(s *payment.CheckoutSession) { s.Payments = nil }},
		"nobody has tried": {
			[]string{`"payment_intent":null`, `"status":"open"`, `"payment_status":"unpaid"`, `"url":"` + long + `"`},
			func(s *payment.CheckoutSession) {
				s.PaymentIntentID, s.Payments, s.Status, s.PaymentStatus, s.URL = "", nil, "open", "unpaid", long
			},
		},
		"an address that is none": {[]string{`"url":"https://x/\ny"`}, func(*payment.CheckoutSession) {}},
		"the user in its metadata": {[]string{`"client_reference_id":null`}, func(s *payment.CheckoutSession) {
			s.UserID = "u_2"
		}},
		"an old payment with a list of charges": {
			[]string{`"payment_intent":` + with(t, orderIntent, `"latest_charge":null`, `"charges":{"data":[{"id":"ch_1","amount_refunded":0},{"id":"ch_0","amount_refunded":300}]}`)},
			func(*payment.CheckoutSession) {},
		},
		"on its way": {
			[]string{`"payment_status":"unpaid"`, `"payment_intent":` + with(t, orderIntent, `"status":"processing"`, `"amount_received":0`)},
			func(s *payment.CheckoutSession) { s.PaymentStatus, s.Payments, s.Processing = "unpaid", nil, true },
		},
		"complete and unpaid, nobody knows why": {
			[]string{`"payment_status":"unpaid"`, `"payment_intent":"pi_1"`},
			func(s *payment.CheckoutSession) { s.PaymentStatus, s.Payments, s.Processing = "unpaid", nil, true },
		},
		"a bank transfer that came to nothing": {
			[]string{`"payment_status":"unpaid"`, `"payment_intent":` + with(t, orderIntent, `"status":"requires_payment_method"`, `"amount_received":0`)},
			func(s *payment.CheckoutSession) { s.PaymentStatus, s.Payments = "unpaid", nil },
		},
		"no decimals": {[]string{`"currency":"jpy"`}, func(s *payment.CheckoutSession) { s.Currency = "JPY" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := whole
			of.want(&want)
			got, err := payment.ReadCheckoutSession([]byte(with(t, orderSession, of.fields...)))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// What is half known must not be taken for unpaid, or for another amount.
func TestWhatIsNoOrderObject(t *testing.T) {
	t.Parallel()
	read := map[string]func([]byte) error{
		"session": func(raw []byte) error { _, err := payment.ReadCheckoutSession(raw); return err },
		"payment": func(raw []byte) error { _, err := payment.ReadPayment(raw); return err },
		"refund":  func(raw []byte) error { _, err := payment.ReadRefund(raw); return err },
	}
	for kind, object := range map[string]string{"session": orderSession, "payment": orderIntent, "refund": orderRefund} {
		require.NoError(t, read[kind]([]byte(object)))
		for _, field := range []string{`"id":7`, `"object":"invoice"`, `"status":null`, `"currency":"dollar"`, `"currency":"US1"`, `"currency":null`} {
			require.ErrorIs(t, read[kind]([]byte(with(t, object, field))), payment.ErrMalformed, "%s with %s", kind, field)
		}
		amount := map[string]string{"session": "amount_total", "payment": "amount_received", "refund": "amount"}[kind]
		for _, value := range []string{`null`, `"1000"`, `10.5`, `-1`, `1e300`} {
			require.ErrorIs(t, read[kind]([]byte(with(t, object, `"`+amount+`":`+value))), payment.ErrMalformed, "%s of %s", kind, value)
		}
	}
	for _, field := range []string{`"status":"new"`, `"payment_status":"new"`, `"payment_intent":{"id":"pi_1","object":"payment_intent"}`} {
		require.ErrorIs(t, read["session"]([]byte(with(t, orderSession, field))), payment.ErrMalformed, field)
	}
}

// orderCalls are the requests of orders, and what each gets from a provider that answers every path with one object or list.
var orderCalls = map[string]func(context.Context, *payment.Client) error{
	"create": func(ctx context.Context, c *payment.Client) error {
		_, err := c.CreateCheckout(ctx, newCheckout("o_1"), "key")
		return err
	},
	"fetch": func(ctx context.Context, c *payment.Client) error {
		_, _, err := c.Checkout(ctx, "cs_1")
		return err
	},
	"find": func(ctx context.Context, c *payment.Client) error {
		_, err := c.FindCheckout(ctx, "o_1", created)
		return err
	},
	"expire": func(ctx context.Context, c *payment.Client) error {
		_, err := c.ExpireCheckout(ctx, "cs_1", "key")
		return err
	},
	"payments": func(ctx context.Context, c *payment.Client) error {
		_, err := c.OrderPayments(ctx, "o_1", created)
		return err
	},
	"refund": func(ctx context.Context, c *payment.Client) error {
		_, err := c.Refund(ctx, "pi_1", 300, "key")
		return err
	},
	"refunds": func(ctx context.Context, c *payment.Client) error {
		_, err := c.Refunds(ctx, "pi_1")
		return err
	},
}

func newCheckout(orderID string) payment.NewCheckout {
	return payment.NewCheckout{
		OrderID: orderID, UserID: "u_1", Email: "mei@example.com", PlanName: "Pro", Amount: 1000, Currency: "USD",
		ExpiresAt: time.Now().Add(time.Hour), SuccessURL: "https://example.com/thanks", CancelURL: "https://example.com/back",
	}
}

// whole is what each request is answered with when all is well.
func whole(r *http.Request) string {
	list := func(object string) string { return `{"object":"list","has_more":false,"data":[` + object + `]}` }
	switch {
	case r.URL.Path == "/v1/refunds" && r.Method == http.MethodPost:
		return orderRefund
	case r.URL.Path == "/v1/refunds":
		return list(orderRefund)
	case r.URL.Path == "/v1/payment_intents":
		return list(orderIntent)
	case r.URL.Path == "/v1/checkout/sessions" && r.Method == http.MethodGet:
		return list(orderSession)
	}
	return orderSession
}

func TestWhatIsNoAnswerAboutAnOrder(t *testing.T) {
	t.Parallel()
	faults := map[string]func(http.ResponseWriter, *http.Request){
		"fault":         says(500, problem("api_error", "sorry")),
		"fault in HTML": says(502, "<html>bad gateway</html>"),
		"HTML with 200": says(200, "<html>hello</html>"),
		"truncated":     func(w http.ResponseWriter, r *http.Request) { s := whole(r); _, _ = io.WriteString(w, s[:len(s)/2]) },
		"empty":         says(200, ""),
		"a bare list":   says(200, `[]`),
		"nothing in it": says(200, `{}`),
		"another kind":  says(200, `{"id":"cs_1","object":"invoice"}`),
		"another object": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.NewReplacer("cs_1", "cs_2", `"payment_intent":"pi_1"`, `"payment_intent":"pi_2"`, `"order_id":"o_1"`, `"order_id":"o_2"`).Replace(whole(r)))
		},
		"its state unknown": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.NewReplacer(`"status":"complete"`, `"status":"new"`, `"status":"succeeded"`, `"status":null`).Replace(whole(r)))
		},
		"not known there": says(404, problem("invalid_request_error", "No such object")),
		"our key":         says(401, problem("invalid_request_error", "Invalid API Key provided: "+stripeKey)),
		"not allowed":     says(403, problem("invalid_request_error", "The key "+stripeKey+" may not do that")),
		"busy":            says(409, problem("idempotency_error", "locked")),
		"reset":           func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"no Date": func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Date"] = nil
			_, _ = io.WriteString(w, whole(r))
		},
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"object":"list","data":[],"has_more":false,"padding":"`+strings.Repeat("x", 5<<20)+`"}`)
		},
	}
	for name, call := range orderCalls {
		require.NoError(t, call(t.Context(), provider(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, whole(r)) })), name)
		for fault, answer := range faults {
			t.Run(name+"/"+fault, func(t *testing.T) {
				t.Parallel()
				err := call(t.Context(), provider(t, answer))
				var refused *payment.RefusalError
				switch {
				case fault == "not known there" && (name == "create" || name == "refund"):
					require.ErrorAs(t, err, &refused, "what a change needs is not there")
					return
				case fault == "another object" && (name == "find" || name == "payments"): // the lists are of all orders
					require.Equal(t, name == "find", errors.Is(err, payment.ErrNotFound))
					return
				}
				require.ErrorIs(t, err, payment.ErrNoAnswer)
				require.Equal(t, fault == "not known there" && (name == "fetch" || name == "expire"), errors.Is(err, payment.ErrNotFound))
				require.NotContains(t, err.Error(), stripeKey)
			})
		}
		t.Run(name+"/429", func(t *testing.T) {
			t.Parallel()
			err := call(t.Context(), provider(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "7")
				says(429, problem("rate_limit_error", "slow down"))(w, r)
			}))
			var silent *payment.NoAnswerError
			require.ErrorAs(t, err, &silent)
			require.Equal(t, 7*time.Second, silent.RetryAfter)
		})
		t.Run(name+"/hang", func(t *testing.T) {
			t.Parallel()
			let := make(chan struct{})
			c := provider(t, func(http.ResponseWriter, *http.Request) { <-let })
			t.Cleanup(func() { close(let) })
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, call(ctx, c), payment.ErrNoAnswer)
		})
	}
}

// A list that cannot be read to its end says nothing about what is on it.
func TestOrdersAreLookedForOnWholeLists(t *testing.T) {
	t.Parallel()
	pages := func(t *testing.T, second http.HandlerFunc) (*payment.Client, *[]string) {
		t.Helper()
		var asked []string
		return provider(t, func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Query().Get("created[gte]"))
			if r.URL.Query().Get("starting_after") != "" {
				second(w, r)
				return
			}
			_, _ = io.WriteString(w, `{"object":"list","has_more":true,"data":[{"id":"x_1","object":"odd","metadata":{"order_id":"o_2"}},{"id":"x_2"}]}`)
		}), &asked
	}
	for name, second := range map[string]http.HandlerFunc{
		"a fault":          says(500, problem("api_error", "sorry")),
		"a lost place":     says(404, problem("invalid_request_error", "No such object: x_2")),
		"the same again":   says(200, `{"object":"list","has_more":true,"data":[{"id":"x_2"}]}`),
		"nothing and more": says(200, `{"object":"list","has_more":true,"data":[]}`),
		"no id and more":   says(200, `{"object":"list","has_more":true,"data":[{}]}`),
		"more unknown":     says(200, `{"object":"list","data":[]}`),
	} {
		c, _ := pages(t, second)
		_, err := c.FindCheckout(t.Context(), "o_1", created)
		require.ErrorIs(t, err, payment.ErrNoAnswer, name)
		require.NotErrorIs(t, err, payment.ErrNotFound, name)
		payments, err := c.OrderPayments(t.Context(), "o_1", created)
		require.ErrorIs(t, err, payment.ErrNoAnswer, name)
		require.Nil(t, payments)
	}

	c, asked := pages(t, says(200, `{"object":"list","has_more":false,"data":[]}`))
	_, err := c.FindCheckout(t.Context(), "o_1", created)
	require.ErrorIs(t, err, payment.ErrNotFound)
	from := strconv.FormatInt(created.Add(-10*time.Minute).Unix(), 10)
	require.Equal(t, []string{from, from}, *asked, "its clock may be behind ours")

	c, _ = pages(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("starting_after") == "x_2" {
			_, _ = io.WriteString(w, whole(r))
		}
	})
	found, err := c.FindCheckout(t.Context(), "o_1", created)
	require.NoError(t, err)
	require.Equal(t, "cs_1", found.ID)
	require.Len(t, found.Payments, 1)
	payments, err := c.OrderPayments(t.Context(), "o_1", created)
	require.NoError(t, err)
	require.Equal(t, found.Payments, payments)
}

// What a key repeats is how things were when it came first.
func TestARepeatedAnswerIsAskedForAgain(t *testing.T) {
	t.Parallel()
	c := provider(t, func(w http.ResponseWriter, r *http.Request) {
		said := whole(r)
		if r.Method == http.MethodPost {
			w.Header().Set("Idempotent-Replayed", "true")
			said = strings.NewReplacer(`"status":"complete"`, `"status":"open"`, `"payment_status":"paid"`, `"payment_status":"unpaid"`).Replace(said)
		} else if r.URL.Path == "/v1/refunds" {
			said = strings.ReplaceAll(said, `"succeeded"`, `"failed"`)
		}
		_, _ = io.WriteString(w, said)
	})
	made, err := c.CreateCheckout(t.Context(), newCheckout("o_1"), "key")
	require.NoError(t, err)
	require.Equal(t, "paid", made.PaymentStatus)
	closed, err := c.ExpireCheckout(t.Context(), "cs_1", "key")
	require.NoError(t, err)
	require.Equal(t, "complete", closed.Status)
	back, err := c.Refund(t.Context(), "pi_1", 300, "key")
	require.NoError(t, err)
	require.Equal(t, payment.Refund{ID: "re_1", PaymentID: "pi_1", ChargeID: "ch_1", Status: "failed", Amount: 300, Currency: "JPY", Created: created}, back)
}

func TestARefusedChangeOfAnOrder(t *testing.T) {
	t.Parallel()
	c := provider(t, says(400, `{"error":{"type":"invalid_request_error","code":"charge_already_refunded","message":"Charge ch_1 has already been refunded."}}`))
	for _, name := range []string{"create", "expire", "refund"} {
		var refused *payment.RefusalError
		require.ErrorAs(t, orderCalls[name](t.Context(), c), &refused, name)
		require.Equal(t, "charge_already_refunded", refused.Code)
	}
	for _, name := range []string{"fetch", "find", "payments", "refunds"} {
		require.ErrorIs(t, orderCalls[name](t.Context(), c), payment.ErrNoAnswer, name)
	}
}
