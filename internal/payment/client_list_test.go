package payment_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
)

// lister answers each call of a list with the same, and keeps what was asked.
func lister(t *testing.T, status int, body string) (*payment.Client, func() url.Values) {
	t.Helper()
	asked := make(chan url.Values, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", "Tue, 01 Dec 2026 12:00:00 GMT")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	client := payment.NewClient(secret.NewText("sk_test_1"), server.URL)
	t.Cleanup(client.Close)
	return client, func() url.Values { return <-asked }
}

func TestListOfSubscriptions(t *testing.T) {
	t.Parallel()
	client, asked := lister(t, http.StatusOK, `{"object":"list","has_more":true,"data":[
		{"id":"sub_2","object":"subscription","status":"canceled","customer":{"id":"cus_1","metadata":{"user_id":"u_1"}},"latest_invoice":{"id":"in_1","billing_reason":"subscription_cycle"}},
		{"id":"sub_1","object":"subscription","status":"active"}]}`)
	page, err := client.Subscriptions(t.Context(), "sub_3")
	require.NoError(t, err)
	require.Equal(t, url.Values{
		"status": {"all"}, "limit": {"100"}, "starting_after": {"sub_3"}, "expand[0]": {"data.latest_invoice"}, "expand[1]": {"data.customer"},
	}, asked())
	require.True(t, page.More)
	require.Len(t, page.Subscriptions, 2)
	require.Equal(t, "u_1", page.Subscriptions[0].CustomerUserID)
	require.Equal(t, "subscription_cycle", page.Subscriptions[0].Invoice.BillingReason)
	require.WithinRange(t, page.Asked, time.Date(2026, time.December, 1, 11, 59, 0, 0, time.UTC), time.Date(2026, time.December, 1, 12, 0, 0, 0, time.UTC))
	_, err = client.Subscriptions(t.Context(), "")
	require.NoError(t, err)
	require.NotContains(t, asked(), "starting_after")
}

func TestListOfEvents(t *testing.T) {
	t.Parallel()
	const event = `{"id":"evt_1","object":"event","type":"invoice.paid","created":1764590400,"data":{"object":{"id":"in_1","object":"invoice"}}}`
	client, asked := lister(t, http.StatusOK, `{"object":"list","has_more":false,"data":[`+event+`]}`)
	from := time.Unix(1764590000, 0)
	page, err := client.Events(t.Context(), payment.EventQuery{From: from, Until: from.Add(time.Hour), Undelivered: true, After: "evt_2"})
	require.NoError(t, err)
	require.Equal(t, url.Values{
		"created[gte]": {"1764590000"}, "created[lte]": {"1764593600"}, "delivery_success": {"false"}, "limit": {"100"}, "starting_after": {"evt_2"},
	}, asked())
	require.False(t, page.More)
	require.Len(t, page.Events, 1)
	require.Equal(t, "invoice.paid", page.Events[0].Type)
	require.JSONEq(t, event, string(page.Events[0].Body))
	_, err = client.Events(t.Context(), payment.EventQuery{})
	require.NoError(t, err)
	require.Equal(t, url.Values{"limit": {"100"}}, asked())
}

func TestListWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	const gone = `{"error":{"type":"invalid_request_error","code":"resource_missing","message":"No such subscription"}}`
	for name, c := range map[string]struct {
		status int
		body   string
		retry  time.Duration
	}{
		"too many requests":           {http.StatusTooManyRequests, gone, 7 * time.Second},
		"a fault":                     {http.StatusInternalServerError, gone, 7 * time.Second},
		"another key":                 {http.StatusUnauthorized, gone, 0},
		"not found":                   {http.StatusNotFound, gone, 0},
		"a page":                      {http.StatusOK, "<html>", 0},
		"half of it":                  {http.StatusOK, `{"object":"list","has_more":false,"data":[{"id":"sub_1","object":"subscr`, 0},
		"no list":                     {http.StatusOK, `{"object":"subscription","id":"sub_1"}`, 0},
		"a list that does not end":    {http.StatusOK, `{"object":"list","data":[]}`, 0},
		"more of nothing":             {http.StatusOK, `{"object":"list","has_more":true,"data":[]}`, 0},
		"a list of something else":    {http.StatusOK, `{"object":"list","has_more":false,"data":[{"object":"charge","id":"ch_1"}]}`, 0},
		"a list of things unnamed":    {http.StatusOK, `{"object":"list","has_more":false,"data":[{"object":"subscription"}]}`, 0},
		"a list with a nothing in it": {http.StatusOK, `{"object":"list","has_more":false,"data":[null]}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, _ := lister(t, c.status, c.body)
			_, err := client.Subscriptions(t.Context(), "")
			var silent *payment.NoAnswerError
			require.ErrorAs(t, err, &silent)
			require.Equal(t, c.retry, silent.RetryAfter)
			require.False(t, silent.NotFound)
		})
	}
	client, _ := lister(t, http.StatusBadRequest, gone)
	_, err := client.Subscriptions(t.Context(), "sub_gone")
	var refused *payment.RefusalError
	require.ErrorAs(t, err, &refused, "it does not know what to go on from")
	_, err = client.Events(t.Context(), payment.EventQuery{After: "evt_gone"})
	require.ErrorAs(t, err, &refused)
}
