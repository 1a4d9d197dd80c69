package payment

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/subscription"
)

var (
	november = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	december = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	june     = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
)

// plain is what the undecorated fixtures say, in either shape.
func plain() subscription.Provider {
	return subscription.Provider{
		ExternalID: "sub_1PqExample", CustomerID: "cus_Example", UserID: "u_1", Status: "active",
		PriceIDs: []string{"price_pro_month"}, PeriodStart: november, PeriodEnd: december, StartDate: june,
	}
}

// Both payload shapes of one subscription must read as the same thing, or the endpoint's version would decide the access.
func TestSubscriptionInBothShapes(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*subscription.Provider){
		"": func(*subscription.Provider) {},
		"_cancel_at_period_end": func(p *subscription.Provider) {
			p.CancelAtPeriodEnd, p.CancelAt = true, december
		},
		"_past_due_by_invoice": func(p *subscription.Provider) {
			p.Status, p.SendInvoice, p.DaysUntilDue = "past_due", true, 14
			p.Invoice = subscription.Invoice{
				ID: "in_1PqExample", BillingReason: "subscription_cycle", Status: "open", DueDate: november.AddDate(0, 0, 14),
			}
		},
		"_paused":           func(p *subscription.Provider) { p.Status = "paused" },
		"_pause_collection": func(*subscription.Provider) {},
		"_incomplete":       func(p *subscription.Provider) { p.Status = "incomplete" },
		"_canceled": func(p *subscription.Provider) {
			p.Status, p.EndedAt = "canceled", november.AddDate(0, 0, 5)
		},
		"_unknown_status": func(p *subscription.Provider) { p.Status = "hibernating" },
		"_expanded_customer": func(p *subscription.Provider) {
			p.UserID, p.CustomerUserID, p.Email, p.Name = "", "u_from_customer", "mei@example.com", "Mei Lin"
		},
		"_deleted_customer": func(p *subscription.Provider) { p.UserID = "" },
		"_no_customer":      func(p *subscription.Provider) { p.UserID, p.CustomerID = "", "" },
	}
	for suffix, change := range cases {
		for _, version := range []string{"2023-10-16", "2025-03-31"} {
			t.Run(version+suffix, func(t *testing.T) {
				t.Parallel()
				got, err := Subscription(fixture(t, "subscription_"+version+suffix+".json"))
				require.NoError(t, err)
				want := plain()
				change(&want)
				require.Equal(t, want, got)
			})
		}
	}
}

func TestSubscriptionOfOneShapeOnly(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*subscription.Provider){
		// Flexible billing: the portal sets cancel_at and leaves the flag false.
		"2025-03-31_flexible_cancel_at": func(p *subscription.Provider) { p.CancelAt = december },
		"2025-03-31_several_items": func(p *subscription.Provider) {
			p.PriceIDs = []string{"price_storage_year", "price_pro_month", "price_seat_month"}
		},
		"2023-10-16_plans_and_ids": func(p *subscription.Provider) { p.PriceIDs = []string{"price_bare_id", "plan_old"} },
		"2023-10-16_zero_period":   func(p *subscription.Provider) { p.PeriodStart, p.PeriodEnd = time.Time{}, time.Time{} },
		"no_period":                func(p *subscription.Provider) { p.PeriodStart, p.PeriodEnd = time.Time{}, time.Time{} },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Subscription(fixture(t, "subscription_"+name+".json"))
			require.NoError(t, err)
			want := plain()
			change(&want)
			require.Equal(t, want, got)
		})
	}
}

func TestSubscriptionPeriod(t *testing.T) {
	t.Parallel()
	at := func(n int64) time.Time { return time.Unix(n, 0).UTC() }
	cases := map[string]struct {
		body       string
		start, end time.Time
	}{
		"top":                             {`"current_period_start":10,"current_period_end":20`, at(10), at(20)},
		"top without a start":             {`"current_period_end":20`, time.Time{}, at(20)},
		"top with a start only":           {`"current_period_start":10`, time.Time{}, time.Time{}},
		"top is 0":                        {`"current_period_start":0,"current_period_end":0`, time.Time{}, time.Time{}},
		"top is null":                     {`"current_period_end":null`, time.Time{}, time.Time{}},
		"top is text":                     {`"current_period_end":"20"`, time.Time{}, time.Time{}},
		"top is negative":                 {`"current_period_end":-20`, time.Time{}, time.Time{}},
		"top is after 9999":               {`"current_period_end":253402300800`, time.Time{}, time.Time{}},
		"top is beyond every number":      {`"current_period_end":1e999`, time.Time{}, time.Time{}},
		"item":                            {`"items":{"data":[{"current_period_start":10,"current_period_end":20}]}`, at(10), at(20)},
		"earliest of three":               {`"items":{"data":[{"current_period_start":1,"current_period_end":30},{"current_period_start":2,"current_period_end":20},{"current_period_start":3,"current_period_end":25}]}`, at(2), at(20)},
		"an item of 0 does not win":       {`"items":{"data":[{"current_period_start":1,"current_period_end":0},{"current_period_start":2,"current_period_end":20}]}`, at(2), at(20)},
		"the first of equal ends":         {`"items":{"data":[{"current_period_start":1,"current_period_end":20},{"current_period_start":2,"current_period_end":20}]}`, at(1), at(20)},
		"start of another item not taken": {`"items":{"data":[{"current_period_start":1,"current_period_end":30},{"current_period_end":20}]}`, time.Time{}, at(20)},
		"items before the top":            {`"current_period_start":1,"current_period_end":99,"items":{"data":[{"current_period_start":2,"current_period_end":20}]}`, at(2), at(20)},
		"items without, then the top":     {`"current_period_start":1,"current_period_end":99,"items":{"data":[{"id":"si_1"}]}`, at(1), at(99)},
		"items are a list":                {`"items":[{"current_period_end":20}]`, time.Time{}, time.Time{}},
		"items are odd":                   {`"items":{"data":[null,5,"x",[],{"current_period_end":{}}]}`, time.Time{}, time.Time{}},
		"no items":                        {`"items":{"data":[]}`, time.Time{}, time.Time{}},
		"nothing":                         {`"status":"active"`, time.Time{}, time.Time{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Subscription(json.RawMessage(`{"id":"sub_1",` + c.body + `}`))
			require.NoError(t, err)
			require.Equal(t, c.start, got.PeriodStart)
			require.Equal(t, c.end, got.PeriodEnd)
		})
	}
}

func TestSubscriptionToleratesOddTypes(t *testing.T) {
	t.Parallel()
	want := subscription.Provider{ExternalID: "sub_1"}
	fields := []string{
		"customer", "metadata", "status", "items", "start_date", "ended_at", "cancel_at", "cancel_at_period_end",
		"collection_method", "days_until_due", "latest_invoice", "plan", "current_period_end",
	}
	for _, field := range fields {
		for _, value := range []string{"null", "{}", "[]", "[[]]", `""`, "-1", "1e999", "0.5", `"\u0000"`, `{"data":7}`, `{"data":[null,{"price":[],"plan":3}]}`} {
			got, err := Subscription(json.RawMessage(fmt.Sprintf(`{"id":"sub_1",%q:%s}`, field, value)))
			require.NoError(t, err, "%s: %s", field, value)
			require.Equal(t, want, got, "%s: %s", field, value)
		}
	}
}

func TestSubscriptionUser(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ body, want, customers string }{
		"both":                        {`"metadata":{"user_id":"u_1"},"customer":{"id":"c","metadata":{"user_id":"u_2"}}`, "u_1", "u_2"},
		"blank in own metadata":       {`"metadata":{"user_id":"  "},"customer":{"id":"c","metadata":{"user_id":"u_2"}}`, "", "u_2"},
		"number in own metadata":      {`"metadata":{"user_id":7},"customer":{"id":"c","metadata":{"user_id":"u_2"}}`, "", "u_2"},
		"U+0000 is no user":           {`"metadata":{"user_id":"u\u0000"}`, "", ""},
		"customer not expanded":       {`"metadata":{},"customer":"cus_1"`, "", ""},
		"nobody":                      {`"status":"active"`, "", ""},
		"deleted customer's metadata": {`"customer":{"id":"c","deleted":true}`, "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Subscription(json.RawMessage(`{"id":"sub_1",` + c.body + `}`))
			require.NoError(t, err)
			require.Equal(t, c.want, got.UserID)
			require.Equal(t, c.customers, got.CustomerUserID)
		})
	}
}

func TestSubscriptionPricesOfAnOldSinglePlan(t *testing.T) {
	t.Parallel()
	for _, plan := range []string{`"plan_1"`, `{"id":"plan_1"}`} {
		got, err := Subscription(json.RawMessage(`{"id":"sub_1","items":{"data":[]},"plan":` + plan + `}`))
		require.NoError(t, err)
		require.Equal(t, []string{"plan_1"}, got.PriceIDs)
	}
}

func TestSubscriptionRefuses(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "null", "7", `"sub_1"`, "[]", "{", "{}", `{"id":7}`, `{"id":""}`, `{"id":"in_1","object":"invoice"}`} {
		_, err := Subscription(json.RawMessage(raw))
		require.ErrorIs(t, err, ErrMalformed, raw)
	}
	_, err := Subscription(nil)
	require.ErrorIs(t, err, ErrMalformed)
}

func BenchmarkEventToSubscription(b *testing.B) {
	body := fixture(b, "event_2023-10-16.json")
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		event, err := ParseEvent(body)
		require.NoError(b, err)
		_, err = Subscription(event.Data)
		require.NoError(b, err)
	}
}

// What the API refuses to take, it must not find in its tables because a customer typed it in at the provider.
func TestTextsThatCannotBeUsedAreUnknown(t *testing.T) {
	t.Parallel()
	of := func(user, email, name string) subscription.Provider {
		raw, err := json.Marshal(map[string]any{
			"id": "sub_1", "metadata": map[string]string{"user_id": user}, "customer": map[string]string{"id": "cus_1", "email": email, "name": name},
		})
		require.NoError(t, err)
		p, err := Subscription(raw)
		require.NoError(t, err)
		return p
	}
	require.Equal(t, subscription.Provider{ExternalID: "sub_1", CustomerID: "cus_1", UserID: "u 1", Email: "ada@example.com", Name: "Ada Ö."}, of("u 1", "ada@example.com", "Ada Ö."))
	for _, bad := range []string{"a\nb", "a\r\nBcc: b@example.com", "\x00", "a\x7f", "a\u0085b", " ", strings.Repeat("x", 256)} {
		require.Equal(t, subscription.Provider{ExternalID: "sub_1", CustomerID: "cus_1"}, of(bad, bad, bad), "%q", bad)
	}
	for _, bad := range []string{"ada", "Ada <ada@example.com>", "ada@example.com, eve@example.com", "@example.com", "a b@example.com"} {
		require.Empty(t, of("u", bad, "n").Email, bad)
	}
}
