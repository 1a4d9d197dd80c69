package payment

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The two shapes of one invoice of a renewal: up to acacia, and from basil on.
const (
	renewal2023 = `{"id":"in_1","object":"invoice","billing_reason":"subscription_cycle","created":1790812800,"status":"paid","paid":true,"total":900,
		"subscription":"sub_1","lines":{"object":"list","data":[
			{"id":"il_1","type":"subscription","proration":false,"subscription":"sub_1","price":{"id":"price_1"},"period":{"start":1790812800,"end":1793491200}}]}}`
	renewal2025 = `{"id":"in_1","object":"invoice","billing_reason":"subscription_cycle","created":1790812800,"status":"paid","total":900,
		"parent":{"type":"subscription_details","subscription_details":{"subscription":"sub_1","metadata":{"user_id":"u_1"}}},"lines":{"object":"list","data":[
			{"id":"il_1","parent":{"type":"subscription_item_details","subscription_item_details":{"subscription":"sub_1","proration":false}},
			 "pricing":{"price_details":{"price":"price_1"}},"period":{"start":1790812800,"end":1793491200}}]}}`
)

func TestAnInvoiceReadsAlikeInBothShapes(t *testing.T) {
	t.Parallel()
	october, november := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	want := Invoice{ID: "in_1", SubscriptionID: "sub_1", Created: october, PaidFrom: october, PaidUntil: november}
	for name, body := range map[string]string{"2023-10-16": renewal2023, "2025-03-31": renewal2025} {
		got, err := ReadInvoice(json.RawMessage(body))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
}

func TestWhichSubscriptionAnInvoiceIsOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, want string }{
		"expanded, old":          {`"subscription":{"id":"sub_2","object":"subscription"}`, "sub_2"},
		"expanded, new":          {`"parent":{"subscription_details":{"subscription":{"id":"sub_3"}}}`, "sub_3"},
		"only a line, new":       {`"lines":{"data":[{"parent":{"subscription_item_details":{"subscription":"sub_4"}}}]}`, "sub_4"},
		"only a line, old":       {`"lines":{"data":[{"subscription":"sub_5"}]}`, "sub_5"},
		"second line":            {`"lines":{"data":[{"subscription":null},{"subscription":"sub_6"}]}`, "sub_6"},
		"parent before the line": {`"parent":{"subscription_details":{"subscription":"sub_7"}},"lines":{"data":[{"subscription":"sub_8"}]}`, "sub_7"},
		"one-off":                {`"subscription":null,"parent":null,"lines":{"data":[]}`, ""},
		"quote's parent":         {`"parent":{"type":"quote_details","quote_details":{"quote":"qt_1"}}`, ""},
		"wrong types":            {`"subscription":7,"parent":[],"lines":"many"`, ""},
	} {
		got, err := ReadInvoice(json.RawMessage(`{"id":"in_1",` + c.body + `}`))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.SubscriptionID, name)
	}
}

func TestWhatAnInvoicePaysFor(t *testing.T) {
	t.Parallel()
	november := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	line := func(end, more string) string { return `{"period":{"start":1,"end":` + end + `}` + more + `}` }
	const november1, december1 = "1793491200", "1796083200"
	for name, c := range map[string]struct {
		lines, total string
		until        time.Time
		nothing      bool
	}{
		"earliest of several":     {line(december1, "") + "," + line(november1, ""), "900", november, false},
		"nothing to pay":          {line(november1, ""), "0", november, true},
		"only prorations, old":    {line(november1, `,"proration":true`), "300", time.Time{}, true},
		"only prorations, new":    {line(november1, `,"parent":{"subscription_item_details":{"proration":true}}`), "300", time.Time{}, true},
		"invoice item's":          {line(november1, `,"parent":{"invoice_item_details":{"proration":true}}`), "300", time.Time{}, true},
		"proration and renewal":   {line(december1, `,"proration":true`) + "," + line(november1, ""), "900", november, false},
		"usage of the last month": {line("1790812800", ""), "900", time.Time{}, false},
		"no lines":                {"", "900", time.Time{}, false},
		"period of 0":             {line("0", ""), "900", time.Time{}, false},
		"negative total":          {line(november1, ""), "-100", november, false},
		"giant total":             {line(november1, ""), "1e300", november, false},
	} {
		got, err := ReadInvoice(json.RawMessage(`{"id":"in_1","created":1790812800,"total":` + c.total + `,"lines":{"data":[` + c.lines + `]}}`))
		require.NoError(t, err, name)
		require.Equal(t, c.until, got.PaidUntil, name)
		require.Equal(t, c.nothing, got.Nothing, name)
	}
}

func TestACheckoutReadsWhoBoughtWhat(t *testing.T) {
	t.Parallel()
	got, err := ReadCheckout(json.RawMessage(`{"id":"cs_1","object":"checkout.session","mode":"subscription","subscription":"sub_1","customer":"cus_1",
		"client_reference_id":"u_1","metadata":{"user_id":"u_2"},"customer_email":"set@example.org",
		"customer_details":{"email":"typed@example.org","name":"Mei Lin"}}`))
	require.NoError(t, err)
	require.Equal(t, Checkout{ID: "cs_1", SubscriptionID: "sub_1", CustomerID: "cus_1", UserID: "u_1", Email: "typed@example.org", Name: "Mei Lin"}, got)
	for name, c := range map[string]struct {
		body string
		want Checkout
	}{
		"expanded":        {`"subscription":{"id":"sub_2"},"customer":{"id":"cus_2"}`, Checkout{ID: "cs_1", SubscriptionID: "sub_2", CustomerID: "cus_2"}},
		"metadata":        {`"client_reference_id":null,"metadata":{"user_id":"u_3"}`, Checkout{ID: "cs_1", UserID: "u_3"}},
		"e-mail it had":   {`"customer_email":"set@example.org","customer_details":null`, Checkout{ID: "cs_1", Email: "set@example.org"}},
		"no usable mail":  {`"customer_details":{"email":"Mei <mei@example.org>","name":"a\nb"}`, Checkout{ID: "cs_1"}},
		"name turned":     {`"customer_details":{"name":"Mei \u202eniL"}`, Checkout{ID: "cs_1"}},
		"name of lines":   {`"customer_details":{"name":"Mei\u2028Lin"}`, Checkout{ID: "cs_1"}},
		"name in Hebrew":  {`"customer_details":{"name":"\u05de\u05d9\u05d9"}`, Checkout{ID: "cs_1", Name: "\u05de\u05d9\u05d9"}},
		"a payment":       {`"mode":"payment","subscription":null,"payment_intent":"pi_1"`, Checkout{ID: "cs_1"}},
		"wrong types":     {`"subscription":[1],"customer":true,"client_reference_id":{},"metadata":"x","customer_details":[]`, Checkout{ID: "cs_1"}},
		"U+0000 in an id": {`"client_reference_id":"u\u0000","subscription":"sub\u0000"`, Checkout{ID: "cs_1"}},
	} {
		got, err := ReadCheckout(json.RawMessage(`{"id":"cs_1",` + c.body + `}`))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

func TestObjectsOfAnotherKindAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{}`, `[]`, `null`, `{"id":""}`, `{"id":7}`, `{"id":"x","object":"charge"}`, `"in_1"`, `{"id":"in_1"`} {
		_, err := ReadInvoice(json.RawMessage(body))
		require.ErrorIs(t, err, ErrMalformed, body)
		_, err = ReadCheckout(json.RawMessage(body))
		require.ErrorIs(t, err, ErrMalformed, body)
	}
}

// FuzzObjects holds all readers to their promise: any JSON is read or refused with ErrMalformed, and what is read can be
// stored.
func FuzzObjects(f *testing.F) {
	for _, seed := range []string{renewal2023, renewal2025, `{"id":"cs_1","subscription":{"id":"sub_2"}}`, `{"id":"a","items":{"data":[{"price":{"id":1e999}}]}}`, `{"id":"\u0000"}`, `[[[[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := ReadInvoice(body); err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		}
		if charge, err := ReadCharge(body); err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		} else {
			require.GreaterOrEqual(t, min(charge.Amount, charge.Refunded), int64(0))
		}
		if _, err := ReadDispute(body); err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		}
		if _, err := ReadInvoicePayment(body); err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		}
		if checkout, err := ReadCheckout(body); err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		} else {
			require.NotContains(t, checkout.UserID+checkout.Name+checkout.SubscriptionID+checkout.CustomerID, "\x00")
		}
		if sub, err := Subscription(body); err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		} else if !sub.PeriodEnd.IsZero() {
			require.Positive(t, sub.PeriodEnd.Unix(), "a period of 0 is no time")
		}
	})
}
