package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/access"
	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

// shop is an API with the offline Stripe behind it, whose webhooks come in over HTTP.
type shop struct {
	*system
	sim      *simulator.Simulator
	external string       // id of the subscription at Stripe
	id       string       // of our row
	down     atomic.Int32 // the status with which Stripe answers changes; 0 is normal
	held     atomic.Bool  // webhooks are kept back by answering them with a 503
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{system: newSystem(t)}
	var err error
	s.sim, err = simulator.Start(t.Context(), simulator.Options{RetryDelay: 20 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.sim.Close(context.Background())) })
	target, err := url.Parse(s.sim.StripeURL())
	require.NoError(t, err)
	// Between the API and Stripe stands a door that can be shut for changes.
	through := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := int(s.down.Load()); status != 0 && r.Method != http.MethodGet {
			w.WriteHeader(status)
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	client := payment.NewClient(secret.NewText("sk_test_1"), front.URL)
	t.Cleanup(client.Close)

	reader := access.NewReader(s.store)
	t.Cleanup(reader.Close)
	in := intake.New(s.store, intake.Settings{Owner: "shop", Leeway: time.Hour, Fetch: client.Subscription}, zap.NewNop())
	temporal, err := temporalclient.Lazy(temporalclient.Options{Environ: []string{"TEMPORAL_ADDRESS=127.0.0.1:1"}, Identity: "test", Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(temporal.Close)
	s.server = New(Parts{
		Access: reader, Keys: s.store, Store: s.store,
		Webhooks: Webhooks{Intake: in, Secrets: []string{secretNew}, Provider: Provider{
			Client: client, Leeway: time.Hour, Orders: &settlement.Settler{Store: s.store, Provider: client, Owner: "shop", Log: zap.NewNop()},
		}},
		Schedules: temporalclient.NewSchedules(temporal, workflows.JobIDs()), Telemetry: Telemetry{Log: zap.NewNop(), Metrics: s.metrics},
	})
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.held.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s.server.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		back.Close()
		require.NoError(t, in.Drain(context.Background()))
	})
	require.NoError(t, s.sim.SetEndpoint(simulator.Endpoint{URL: back.URL + "/v1/webhooks/stripe", Secret: secretNew, Shape: simulator.Shape2025}))
	return s
}

// stripe calls the simulated REST API as an operator of Stripe would.
func (s *shop) stripe(t *testing.T, path string, form url.Values) map[string]any {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.sim.StripeURL()+path, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "Bearer sk_test_1")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	var object map[string]any
	require.NoError(t, json.NewDecoder(response.Body).Decode(&object))
	require.Equal(t, http.StatusOK, response.StatusCode, object)
	return object
}

func (s *shop) price(t *testing.T, interval string) string {
	t.Helper()
	product := s.stripe(t, "/v1/products", url.Values{"name": {"Pro"}})
	price := s.stripe(t, "/v1/prices", url.Values{
		"product": {product["id"].(string)}, "currency": {"usd"}, "unit_amount": {"900"}, "recurring[interval]": {interval},
	})
	return price["id"].(string)
}

// sells makes the plans pro and team, which are sold by the month, and year, and one subscription of pro that is known here.
func (s *shop) sells(t *testing.T) {
	t.Helper()
	pro, team, year := s.price(t, "month"), s.price(t, "month"), s.price(t, "year")
	s.exec(t, `INSERT INTO plans (key, stripe_price_ids) VALUES ('pro', $1), ('team', $2), ('year', $3), ('unsold', '{}')`, []string{pro}, []string{team}, []string{year})
	customer := s.stripe(t, "/v1/customers", url.Values{"email": {"mei@example.org"}})
	made := s.stripe(t, "/v1/subscriptions", url.Values{
		"customer": {customer["id"].(string)}, "items[0][price]": {pro}, "metadata[user_id]": {"u_1"},
	})
	s.external = made["id"].(string)
	require.Eventually(t, func() bool {
		return s.pool.QueryRow(t.Context(), `SELECT id FROM subscriptions WHERE external_id = $1`, s.external).Scan(&s.id) == nil
	}, 20*time.Second, 5*time.Millisecond)
}

func (s *shop) row(t *testing.T) map[string]any {
	t.Helper()
	return s.must(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+s.id, "")
}

func (s *shop) act(t *testing.T, status int, action, body string) map[string]any {
	t.Helper()
	return s.must(t, status, http.MethodPost, "/v1/subscriptions/"+s.id+"/"+action, body)
}

// history lists the types of the entries, oldest first.
func (s *shop) history(t *testing.T) []string {
	t.Helper()
	var types []string
	page := s.must(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+s.id+"/history", "")
	for _, entry := range page["data"].([]any) {
		types = append(types, entry.(map[string]any)["event_type"].(string))
	}
	return types
}

// settled waits until every event that Stripe has sent is applied.
func (s *shop) settled(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, d := range s.sim.Deliveries() {
			var done bool
			err := s.pool.QueryRow(t.Context(), `SELECT status IN ('processed', 'ignored') FROM payment_webhook_events WHERE external_event_id = $1`, d.EventID).Scan(&done)
			if err != nil || !done {
				return false
			}
		}
		return true
	}, 20*time.Second, 10*time.Millisecond)
}

func TestCancelAndUncancelAtTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sells(t)
	s.settled(t)
	s.held.Store(true)
	ending := s.act(t, http.StatusOK, "cancel", `{"at_period_end":true}`)
	require.Equal(t, true, ending["cancel_at_period_end"], "the provider's answer is applied, without waiting for its webhook")
	require.Nil(t, ending["leeway_until"], "what is set to end has no leeway")
	s.act(t, http.StatusConflict, "cancel", `{"at_period_end":true}`)
	s.held.Store(false)
	s.settled(t)
	after := s.row(t)
	for _, field := range []string{"status", "expires_at", "leeway_until", "access_until", "cancel_at_period_end", "plan"} {
		require.Equal(t, ending[field], after[field], "the news of it tells nothing new: %s", field)
	}
	require.Equal(t, []string{"created", "canceled"}, s.history(t))

	going := s.act(t, http.StatusOK, "uncancel", ``)
	require.Equal(t, false, going["cancel_at_period_end"])
	require.NotNil(t, going["leeway_until"])
	s.act(t, http.StatusConflict, "uncancel", ``)
	ended := s.act(t, http.StatusOK, "cancel", `{}`)
	require.Equal(t, "canceled", ended["status"])
	s.settled(t)
	require.Equal(t, "canceled", s.row(t)["status"])
	require.Equal(t, []string{"created", "canceled", "uncanceled", "canceled"}, s.history(t))
	require.Equal(t, "canceled", s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1", "").field(t, "reason"))
	s.act(t, http.StatusConflict, "change-plan", `{"plan":"team","when":"now"}`)
}

func TestUncancelClearsAnInstantThatThePortalHasSet(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sells(t)
	end := instantOf(t, s.row(t)["expires_at"])
	s.stripe(t, "/v1/subscriptions/"+s.external, url.Values{"cancel_at": {strconv.FormatInt(end.Unix(), 10)}})
	require.Eventually(t, func() bool { return s.row(t)["cancel_at_period_end"] == true }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, false, s.act(t, http.StatusOK, "uncancel", ``)["cancel_at_period_end"])
}

func TestAProviderThatGivesNoAnswerChangesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sells(t)
	s.settled(t)
	before := s.row(t)
	for _, status := range []int{http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusUnauthorized, http.StatusBadGateway} {
		s.down.Store(int32(status))
		a := s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+s.id+"/cancel", `{"at_period_end":true}`)
		a.requireProblem(t, http.StatusServiceUnavailable, "provider_unavailable")
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	after := s.row(t)
	require.Equal(t, true, after["needs_reconcile"], "the change may have been made")
	for _, field := range []string{"status", "cancel_at_period_end", "access_until"} {
		require.Equal(t, before[field], after[field])
	}
	s.down.Store(0)
	s.act(t, http.StatusOK, "cancel", `{"at_period_end":true}`)
	require.Eventually(t, func() bool { return s.row(t)["needs_reconcile"] == false }, 20*time.Second, 10*time.Millisecond, "the provider has spoken")
}

func TestChangePlanAtTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sells(t)
	s.settled(t)
	for body, code := range map[string]string{
		`{"plan":"pro","when":"now"}`:      "conflict",
		`{"plan":"unsold","when":"now"}`:   "plan_not_sold",
		`{"plan":"year","when":"renewal"}`: "provider_refused",
	} {
		s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+s.id+"/change-plan", body).requireProblem(t, http.StatusConflict, code)
	}
	require.Nil(t, s.row(t)["next_plan"], "what was refused is not to come")
	require.Equal(t, []string{"/plan", "/when"}, s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+s.id+"/change-plan", `{}`).requireProblem(t, http.StatusBadRequest, "invalid_request"))
	require.Equal(t, []string{"/plan"}, s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+s.id+"/change-plan", `{"plan":"none","when":"now"}`).requireProblem(t, http.StatusBadRequest, "invalid_request"))

	require.Equal(t, "team", s.act(t, http.StatusOK, "change-plan", `{"plan":"team","when":"now"}`)["plan"])
	s.settled(t)

	coming := s.act(t, http.StatusOK, "change-plan", `{"plan":"pro","when":"renewal"}`)
	require.Equal(t, "team", coming["plan"], "until the renewal the plan is what was paid for")
	require.Equal(t, "pro", coming["next_plan"])
	s.settled(t)
	require.Equal(t, "team", s.row(t)["plan"], "the news of the new price is not the renewal")
	s.act(t, http.StatusConflict, "change-plan", `{"plan":"year","when":"now"}`)
	back := s.act(t, http.StatusOK, "change-plan", `{"plan":"team","when":"now"}`)
	require.Nil(t, back["next_plan"], "taken back")
	require.Equal(t, "team", back["plan"])
	s.act(t, http.StatusOK, "change-plan", `{"plan":"pro","when":"renewal"}`)
	s.settled(t)

	s.sim.Advance(32 * 24 * time.Hour)
	require.Eventually(t, func() bool { return s.row(t)["plan"] == "pro" }, 20*time.Second, 10*time.Millisecond, "it is renewed")
	require.Nil(t, s.row(t)["next_plan"])
	require.Equal(t, 2, count(s.history(t), "plan_changed"))
}

func TestARepeatedChangeAtTheProviderIsMadeOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sells(t)
	send := func() answer {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/subscriptions/"+s.id+"/cancel", strings.NewReader(`{"at_period_end":true}`))
		r.Header.Set("Authorization", "Bearer "+s.keys[roleOperator])
		r.Header.Set("Idempotency-Key", "once")
		return s.send(r)
	}
	first := send()
	require.Equal(t, http.StatusOK, first.status, string(first.body))
	second := send()
	require.Equal(t, first.body, second.body)
	require.Equal(t, "true", second.header.Get("Idempotency-Replayed"))
}

// TestARepeatedChangeWhoseAnswerWasLost: the change was made, its answer was lost, and its webhook came before the repetition.
func TestARepeatedChangeWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sells(t)
	s.settled(t)
	send := func(key, action, body string) answer {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/subscriptions/"+s.id+"/"+action, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+s.keys[roleOperator])
		r.Header.Set("Idempotency-Key", key)
		return s.send(r)
	}
	for _, c := range []struct{ action, body, field string }{
		{"change-plan", `{"plan":"team","when":"now"}`, "plan"},
		{"cancel", `{"at_period_end":true}`, "cancel_at_period_end"},
		{"cancel", `{}`, "status"},
	} {
		before := s.row(t)[c.field]
		require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.HTML, After: true, Method: http.MethodPost}))
		require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.HTML, After: true, Method: http.MethodDelete}))
		send(c.body, c.action, c.body).requireProblem(t, http.StatusServiceUnavailable, "provider_unavailable")
		s.sim.ClearRESTFaults()
		require.Eventually(t, func() bool { return s.row(t)[c.field] != before }, 20*time.Second, 10*time.Millisecond, "its webhook tells")
		send(c.body, c.action, `{"at_period_end":false,"x":1}`).requireProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
		again := send(c.body, c.action, c.body)
		require.Equal(t, http.StatusOK, again.status, "%s: %s", c.action, again.body)
		require.NotEqual(t, before, again.field(t, c.field))
		send("another", c.action, c.body).requireProblem(t, http.StatusConflict, "conflict")
	}
}

// TestARepeatedChangeThatSomethingElseStandsInTheWayOf: it was not made, and is not said to be.
func TestARepeatedChangeThatSomethingElseStandsInTheWayOf(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sells(t)
	s.settled(t)
	send := func() answer {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/subscriptions/"+s.id+"/change-plan", strings.NewReader(`{"plan":"team","when":"now"}`))
		r.Header.Set("Authorization", "Bearer "+s.keys[roleOperator])
		r.Header.Set("Idempotency-Key", "once")
		return s.send(r)
	}
	s.down.Store(http.StatusInternalServerError)
	send().requireProblem(t, http.StatusServiceUnavailable, "provider_unavailable")
	s.down.Store(0)
	require.Equal(t, "canceled", s.act(t, http.StatusOK, "cancel", `{}`)["status"])
	send().requireProblem(t, http.StatusConflict, "conflict")
}

func TestChangePlanOfOurs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key) VALUES ('pro'), ('team')`)
	id, made := s.subscribe(t, `{"user_id":"u_1","plan":"pro","duration":"720h"}`)
	act := func(action, body string) answer {
		return s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+id+"/"+action, body)
	}
	act("change-plan", `{"plan":"pro","when":"now"}`).requireProblem(t, http.StatusConflict, "conflict")
	coming := act("change-plan", `{"plan":"team","when":"renewal"}`)
	require.Equal(t, "pro", coming.field(t, "plan"))
	require.Equal(t, "team", coming.field(t, "next_plan"))
	require.Equal(t, "plan_mismatch", s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1&plan=team", "").field(t, "reason"))
	extended := act("extend", `{"duration":"720h"}`)
	require.Equal(t, "team", extended.field(t, "plan"), "the extension is its renewal")
	require.Nil(t, extended.field(t, "next_plan"))
	now := act("change-plan", `{"plan":"pro","when":"now"}`)
	require.Equal(t, "pro", now.field(t, "plan"))
	require.Equal(t, extended.field(t, "expires_at"), now.field(t, "expires_at"), "the end stays")
	require.NotEqual(t, made["expires_at"], now.field(t, "expires_at"))
}

func count(list []string, wanted string) int {
	n := 0
	for _, one := range list {
		if one == wanted {
			n++
		}
	}
	return n
}
