package simulator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

const secret = "whsec_simulated_0123456789abcdef"

// receiver records what it is sent and answers as told.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
	answers  []int // used up first; then 200
}

type received struct {
	id, version, userPeriodAt string
	livemode                  bool
	signed                    bool          // with the endpoint's secret
	ahead                     time.Duration // of the signature's time
}

func newReceiver(t *testing.T, answers ...int) *receiver {
	t.Helper()
	r := &receiver{answers: answers}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	var event struct {
		ID         string
		APIVersion string `json:"api_version"`
		Livemode   bool
		Data       struct {
			Object struct {
				End   int64 `json:"current_period_end"`
				Items struct {
					Data []struct {
						End int64 `json:"current_period_end"`
					}
				}
			}
		}
	}
	_ = json.Unmarshal(body, &event)
	got := received{id: event.ID, version: event.APIVersion, livemode: event.Livemode}
	if event.Data.Object.End != 0 {
		got.userPeriodAt = "top"
	} else if items := event.Data.Object.Items.Data; len(items) > 0 && items[0].End != 0 {
		got.userPeriodAt = "item"
	}
	header := request.Header.Get("Stripe-Signature")
	stamp, _, _ := strings.Cut(strings.TrimPrefix(header, "t="), ",")
	n, _ := strconv.ParseInt(stamp, 10, 64)
	got.signed = simulator.SignatureHeader(body, secret, time.Unix(n, 0)) == header
	got.ahead = time.Until(time.Unix(n, 0))

	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, got)
	if len(r.answers) > 0 {
		w.WriteHeader(r.answers[0])
		r.answers = r.answers[1:]
	}
}

// wait returns the requests once there are n of them and every delivery is over.
func (r *receiver) wait(t *testing.T, sim *simulator.Simulator, n int) []received {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, d := range sim.Deliveries() {
			if d.State == "pending" {
				return false
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.requests) >= n
	}, 20*time.Second, 5*time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.requests, n)
	return append([]received{}, r.requests...)
}

func start(t *testing.T, options simulator.Options) *simulator.Simulator {
	t.Helper()
	options.RetryDelay = time.Millisecond
	sim, err := simulator.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.Background())) })
	return sim
}

// call sends a request and returns the decoded answer.
func call(t *testing.T, method, url, contentType, body string, want int) map[string]any {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Authorization", "Bearer sk_test_simulated")
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, want, response.StatusCode, "%s", raw)
	var decoded map[string]any
	if len(bytes.TrimSpace(raw)) > 0 {
		require.NoError(t, json.Unmarshal(raw, &decoded))
	}
	return decoded
}

func steer(t *testing.T, sim *simulator.Simulator, path, body string) map[string]any {
	t.Helper()
	return call(t, http.MethodPost, sim.StripeURL()+"/_sim/"+path, "application/json", body, http.StatusOK)
}

// ask sends a form to the REST API and returns the id of what it made.
func ask(t *testing.T, sim *simulator.Simulator, path string, values url.Values) string {
	t.Helper()
	id, _ := call(t, http.MethodPost, sim.StripeURL()+"/v1/"+path, "application/x-www-form-urlencoded", values.Encode(), http.StatusOK)["id"].(string)
	require.NotEmpty(t, id)
	return id
}

// told makes a subscription that the receiver hears nothing of, and returns a function that changes it, which is one event.
func told(t *testing.T, sim *simulator.Simulator, to simulator.Endpoint) func() {
	t.Helper()
	require.NoError(t, sim.SetEndpoint(simulator.Endpoint{}))
	id := subscribe(t, sim)()
	require.NoError(t, sim.SetEndpoint(to))
	return func() { ask(t, sim, "subscriptions/"+id, url.Values{"metadata[at]": {simulator.NewID("n")}}) }
}

// subscribe makes what a subscription needs and returns a function that makes one.
func subscribe(t *testing.T, sim *simulator.Simulator) func() string {
	t.Helper()
	product := ask(t, sim, "products", url.Values{"name": {"Pro"}})
	price := ask(t, sim, "prices", url.Values{"product": {product}, "currency": {"usd"}, "unit_amount": {"2000"}, "recurring[interval]": {"month"}})
	customer := ask(t, sim, "customers", url.Values{"email": {"mei@example.com"}})
	return func() string {
		return ask(t, sim, "subscriptions", url.Values{"customer": {customer}, "items[0][price]": {price}, "metadata[user_id]": {"u_1"}})
	}
}

func TestWebhooksInEitherShape(t *testing.T) {
	t.Parallel()
	for shape, at := range map[simulator.Shape]string{simulator.Shape2023: "top", simulator.Shape2025: "item"} {
		r := newReceiver(t)
		sim := start(t, simulator.Options{})
		told(t, sim, simulator.Endpoint{URL: r.URL, Secret: secret, Shape: shape})()
		got := r.wait(t, sim, 1)[0]
		require.True(t, got.signed)
		require.Equal(t, at, got.userPeriodAt)
		require.True(t, strings.HasPrefix(got.version, string(shape)))
		require.Less(t, got.ahead.Abs(), time.Minute)
		require.False(t, got.livemode)
	}
	_, err := simulator.Start(t.Context(), simulator.Options{Endpoint: simulator.Endpoint{Shape: "2011-01-01"}})
	require.Error(t, err)
}

func TestWebhooksAreTriedAgain(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, http.StatusServiceUnavailable, http.StatusBadRequest, http.StatusFound)
	sim := start(t, simulator.Options{})
	change := told(t, sim, simulator.Endpoint{})
	steer(t, sim, "webhook-endpoint", `{"url":"`+r.URL+`","secret":"`+secret+`"}`)
	change()
	got := r.wait(t, sim, 4)
	for _, request := range got {
		require.Equal(t, got[0].id, request.id)
		require.True(t, request.signed)
	}
	require.Equal(t, []simulator.Delivery{{
		EventID: got[0].id, Type: "customer.subscription.updated", Attempts: 4, Status: 200, State: "delivered",
	}}, sim.Deliveries())
}

func TestWebhooksGiveUpInTheEnd(t *testing.T) {
	t.Parallel()
	nobody := httptest.NewServer(nil)
	nobody.Close()
	sim := start(t, simulator.Options{})
	told(t, sim, simulator.Endpoint{URL: nobody.URL, Secret: secret})()
	require.Eventually(t, func() bool {
		d := sim.Deliveries()
		return len(d) == 1 && d[0].State == "given_up" && d[0].Attempts == 12 && d[0].Status == 0 && d[0].Error != ""
	}, 20*time.Second, 10*time.Millisecond)
}

func TestWebhookFaults(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		fault string
		sent  int   // events made one after another
		order []int // which of them the receiver saw, in this order
		first received
	}{
		"duplicate":      {`{"kind":"duplicate","count":2}`, 3, []int{0, 0, 1, 1, 2}, received{signed: true}},
		"drop":           {`{"kind":"drop"}`, 2, []int{1}, received{signed: true}},
		"reorder":        {`{"kind":"reorder","count":3}`, 4, []int{2, 1, 0, 3}, received{signed: true}},
		"delay":          {`{"kind":"delay","by":"1s"}`, 2, []int{1, 0}, received{signed: true}},
		"livemode":       {`{"kind":"livemode"}`, 2, []int{0, 1}, received{signed: true, livemode: true}},
		"another secret": {`{"kind":"wrong_secret"}`, 2, []int{0, 1}, received{}},
		"past":           {`{"kind":"past","by":"301s"}`, 2, []int{0, 1}, received{signed: true, ahead: -301 * time.Second}},
		"future":         {`{"kind":"future","by":"301s"}`, 2, []int{0, 1}, received{signed: true, ahead: 301 * time.Second}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			sim := start(t, simulator.Options{})
			makeOne := told(t, sim, simulator.Endpoint{URL: r.URL, Secret: secret})
			steer(t, sim, "faults", c.fault)
			var sent []string
			for range c.sent {
				makeOne()
				// The newest event is the one that was just made.
				list := call(t, http.MethodGet, sim.StripeURL()+"/v1/events?limit=1", "", "", http.StatusOK)
				sent = append(sent, list["data"].([]any)[0].(map[string]any)["id"].(string))
			}
			got := r.wait(t, sim, len(c.order))
			for i, request := range got {
				require.Equal(t, sent[c.order[i]], request.id)
				want := c.first
				if i > 0 {
					want = received{signed: true} // one fault spoils one event
				}
				require.Equal(t, want.signed, request.signed)
				require.Equal(t, want.livemode, request.livemode)
				require.InDelta(t, want.ahead.Seconds(), request.ahead.Seconds(), 60)
			}
		})
	}
}

// A wrong signature is Stripe's mistake of one moment: the retry is right.
func TestWrongSecretIsRightAtTheRetry(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, http.StatusBadRequest)
	sim := start(t, simulator.Options{})
	change := told(t, sim, simulator.Endpoint{URL: r.URL, Secret: secret})
	require.NoError(t, sim.AddFault(simulator.Fault{Kind: simulator.WrongSecret}))
	change()
	got := r.wait(t, sim, 2)
	require.False(t, got[0].signed)
	require.True(t, got[1].signed)
}

func TestControlEndpoints(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	sim := start(t, simulator.Options{ClockStart: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
	sub := subscribe(t, sim)()
	require.Empty(t, sim.Deliveries(), "without a URL nothing is sent")
	require.NoError(t, sim.SetEndpoint(simulator.Endpoint{URL: r.URL, Secret: secret}))

	steer(t, sim, "subscriptions/"+sub, `{"fails":true,"period_end":"2026-01-02T00:00:00Z"}`)
	require.Equal(t, "2026-01-01", sim.Now().Format(time.DateOnly))
	told := steer(t, sim, "clock", `{"advance":"26h"}`)
	require.Contains(t, told["now"], "2026-01-02T02:00")
	got := call(t, http.MethodGet, sim.StripeURL()+"/v1/subscriptions/"+sub, "", "", http.StatusOK)
	require.Equal(t, "past_due", got["status"])
	require.EqualValues(t, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC).Unix(), got["current_period_start"])
	told = steer(t, sim, "clock", `{"now":"2026-01-01T00:00:00Z"}`)
	require.Contains(t, told["now"], "2026-01-02T02:00", "the clock never goes back")
	steer(t, sim, "subscriptions/"+sub, `{"pay":true}`)
	got = call(t, http.MethodGet, sim.StripeURL()+"/v1/subscriptions/"+sub, "", "", http.StatusOK)
	require.Equal(t, "active", got["status"])

	before := len(r.wait(t, sim, 8))
	events := call(t, http.MethodGet, sim.StripeURL()+"/v1/events?type=customer.subscription.created", "", "", http.StatusOK)
	id := events["data"].([]any)[0].(map[string]any)["id"].(string)
	steer(t, sim, "events/"+id+"/resend", "")
	require.Equal(t, id, r.wait(t, sim, before+1)[before].id)
	require.Len(t, call(t, http.MethodGet, sim.StripeURL()+"/_sim/deliveries", "", "", http.StatusOK)["data"], before+1)

	base := sim.StripeURL() + "/_sim/"
	call(t, http.MethodPost, base+"clock", "application/json", `{"advance":"-1h"}`, http.StatusBadRequest)
	call(t, http.MethodPost, base+"clock", "application/json", `{"advance":"soon"}`, http.StatusBadRequest)
	call(t, http.MethodPost, base+"faults", "application/json", `{"kind":"gremlins"}`, http.StatusBadRequest)
	call(t, http.MethodPost, base+"faults", "application/json", `{"kind":"past","by":"x"}`, http.StatusBadRequest)
	call(t, http.MethodPost, base+"webhook-endpoint", "application/json", `{"shape":"2011"}`, http.StatusBadRequest)
	call(t, http.MethodPost, base+"subscriptions/sub_none", "application/json", `{}`, http.StatusNotFound)
	call(t, http.MethodPost, base+"events/evt_none/resend", "application/json", ``, http.StatusNotFound)
}

// Events of another API version, and of the newer kind without an object.
func TestWebhooksOfOtherVersions(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	sim := start(t, simulator.Options{})
	told(t, sim, simulator.Endpoint{URL: r.URL, Secret: secret, Shape: simulator.Shape2025, APIVersion: "2031-01-01.tomorrow"})()
	require.Equal(t, "2031-01-01.tomorrow", r.wait(t, sim, 1)[0].version)
	steer(t, sim, "thin-events", `{"type":"v1.billing.meter.no_meter_found","object_id":"mtr_1"}`)
	thin := r.wait(t, sim, 2)[1]
	require.True(t, thin.signed)
	require.Empty(t, thin.version)
	list := call(t, http.MethodGet, sim.StripeURL()+"/v1/events?limit=1", "", "", http.StatusOK)
	require.NotEqual(t, thin.id, list["data"].([]any)[0].(map[string]any)["id"], "the list has none of the newer kind")
}

// What tests do by methods, people do by endpoints.
func TestControlOfTheRESTAPI(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	sub := subscribe(t, sim)()
	base := sim.StripeURL()
	steer(t, sim, "faults", `{"kind":"status_429","count":-1,"method":"GET","path":"/v1/subscriptions/","retry_after":3}`)
	call(t, http.MethodGet, base+"/v1/subscriptions/"+sub, "", "", http.StatusTooManyRequests)
	call(t, http.MethodDelete, base+"/_sim/rest-faults", "", "", http.StatusOK)
	price := call(t, http.MethodGet, base+"/v1/subscriptions/"+sub, "", "", http.StatusOK)["plan"].(map[string]any)["id"].(string)
	require.NotEmpty(t, call(t, http.MethodGet, base+"/_sim/calls", "", "", http.StatusOK)["data"])
	call(t, http.MethodPost, base+"/_sim/faults", "application/json", `{"kind":"delay","path":"/v1/"}`, http.StatusBadRequest)

	session := ask(t, sim, "checkout/sessions", url.Values{
		"mode": {"subscription"}, "success_url": {"https://shop.example/ok"}, "line_items[0][price]": {price}, "customer_email": {"mei@example.com"},
		"subscription_data[trial_period_days]": {"7"},
	})
	done := steer(t, sim, "checkout-sessions/"+session+"/complete", `{"name":"Mei Lin"}`)
	customer := call(t, http.MethodGet, base+"/v1/customers/"+done["customer"].(string), "", "", http.StatusOK)
	require.Equal(t, "mei@example.com", customer["email"])
	require.Equal(t, "trialing", call(t, http.MethodGet, base+"/v1/subscriptions/"+done["subscription"].(string), "", "", http.StatusOK)["status"])
	require.Equal(t, "no_payment_required", call(t, http.MethodGet, base+"/v1/checkout/sessions/"+session, "", "", http.StatusOK)["payment_status"])
	call(t, http.MethodPost, base+"/_sim/checkout-sessions/"+session+"/complete", "application/json", `{}`, http.StatusNotFound)
}

func TestRESTNeedsAKey(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, sim.StripeURL()+"/v1/subscriptions", nil)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}

func TestStartNamesATakenAddress(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	taken := strings.TrimPrefix(sim.MailURL(), "http://")
	_, err := simulator.Start(t.Context(), simulator.Options{SMTPAddr: taken})
	require.ErrorContains(t, err, taken)
}
