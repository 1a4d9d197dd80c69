package api

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"termkeeper/client"
	"termkeeper/internal/simulator"
)

// paidPlans makes pro, which costs 19.00 USD for 30 days and ends with its refund, and some that cannot be sold as they are.
func (s *system) paidPlans(t *testing.T) {
	t.Helper()
	s.exec(t, `INSERT INTO plans (key, name, price_amount, price_currency, duration, lifetime, refund_policy) VALUES
		('pro', 'Pro', 1900, 'USD', '720 hours', false, 'end'), ('free', 'Free', NULL, NULL, '720 hours', false, 'keep'),
		('endless', 'Endless', 100, 'USD', NULL, false, 'keep'), ('life', 'Life', 9900, 'JPY', NULL, true, 'keep')`)
}

// order makes an order of u_1 and returns its fields.
func (s *shop) order(t *testing.T, extra string) map[string]any {
	t.Helper()
	return s.must(t, http.StatusCreated, http.MethodPost, "/v1/orders", `{"user_id":"u_1","plan":"pro","expires_in":"1h"`+extra+`}`)
}

func orderPath(o map[string]any, action string) string {
	return strings.TrimSuffix("/v1/orders/"+o["id"].(string)+"/"+action, "/")
}

// asks makes the provider be asked as if nobody had for a while.
func (s *system) asks(t *testing.T) {
	t.Helper()
	s.exec(t, `UPDATE payment_orders SET asked_at = asked_at - interval '1 hour'`)
}

func TestOrderIsPaidAndRefunded(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true) // no webhook is needed
	s.paidPlans(t)
	s.must(t, http.StatusCreated, http.MethodPut, "/v1/users/u_1", `{"email":"mei@example.org"}`)
	made := s.order(t, `,"success_url":"https://shop.example/thanks?a=b","late_payment":"review"`)
	require.Equal(t, "pending", made["status"])
	require.Equal(t, "review", made["late_payment"])
	require.EqualValues(t, 1900, made["amount"])
	require.Equal(t, "USD", made["currency"])
	require.NotEmpty(t, made["checkout_url"])
	require.Equal(t, []any{}, made["payments"])
	expires, err := time.Parse(time.RFC3339, made["expires_at"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), expires, time.Minute)
	var sent string
	for _, call := range s.sim.Calls() {
		if call.Path == "/v1/checkout/sessions" {
			sent = call.Body
		}
	}
	for _, part := range []string{"mode=payment", "customer_email=mei%40example.org", "unit_amount%5D=1900", "success_url=https%3A%2F%2Fshop.example%2Fthanks%3Fa%3Db", "name%5D=Pro"} {
		require.Contains(t, sent, part)
	}

	_, err = s.sim.PayCheckout(made["provider_session_id"].(string), simulator.PayOptions{})
	require.NoError(t, err)
	paid := s.must(t, http.StatusOK, http.MethodGet, orderPath(made, ""), "")
	require.Equal(t, "fulfilled", paid["status"], "reading a pending order asks at once")
	require.Nil(t, paid["checkout_url"])
	require.NotNil(t, paid["paid_at"])
	payments := paid["payments"].([]any)
	require.Len(t, payments, 1)
	require.Equal(t, "fulfilled", payments[0].(map[string]any)["state"])
	require.EqualValues(t, 1900, payments[0].(map[string]any)["amount"])
	subscription := s.must(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+paid["subscription_id"].(string), "")
	require.Equal(t, "u_1", subscription["user_id"])
	require.Equal(t, "active", subscription["status"])
	require.Nil(t, subscription["provider"])
	access := s.must(t, http.StatusOK, http.MethodGet, "/v1/access?user_id=u_1&plan=pro", "")
	require.Equal(t, true, access["allowed"])

	s.do(t, roleOperator, http.MethodPost, orderPath(made, "cancel"), "").requireProblem(t, http.StatusConflict, "conflict")
	s.do(t, roleOperator, http.MethodPost, orderPath(made, "resolve"), `{"as":"fulfilled"}`).requireProblem(t, http.StatusConflict, "conflict")
	back := s.must(t, http.StatusOK, http.MethodPost, orderPath(made, "refund"), "")
	require.Equal(t, "refunded", back["status"])
	payment := back["payments"].([]any)[0].(map[string]any)
	require.Equal(t, "refunded", payment["state"])
	require.EqualValues(t, 1900, payment["refunded"])
	access = s.must(t, http.StatusOK, http.MethodGet, "/v1/access?user_id=u_1&plan=pro", "")
	require.Equal(t, false, access["allowed"], "the plan ends with its refund")
	s.do(t, roleOperator, http.MethodPost, orderPath(made, "refund"), "").requireProblem(t, http.StatusConflict, "conflict")
}

func TestOrderIsVerifiedAndCanceled(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true)
	s.paidPlans(t)
	unpaid, late := s.order(t, ""), s.order(t, `,"amount":700,"currency":"eur"`)
	require.Equal(t, "EUR", late["currency"])
	require.Equal(t, "pending", s.must(t, http.StatusOK, http.MethodPost, orderPath(unpaid, "verify"), "{}")["status"])
	_, err := s.sim.PayCheckout(late["provider_session_id"].(string), simulator.PayOptions{})
	require.NoError(t, err)
	s.do(t, roleOperator, http.MethodPost, orderPath(late, "cancel"), "").requireProblem(t, http.StatusConflict, "conflict")
	require.Equal(t, "fulfilled", s.must(t, http.StatusOK, http.MethodGet, orderPath(late, ""), "")["status"], "the payment was faster")

	canceled := s.must(t, http.StatusOK, http.MethodPost, orderPath(unpaid, "cancel"), "")
	require.Equal(t, "canceled", canceled["status"])
	require.NotNil(t, canceled["finished_at"])
	_, err = s.sim.PayCheckout(unpaid["provider_session_id"].(string), simulator.PayOptions{})
	require.Error(t, err, "it is closed at the provider")
	s.do(t, roleOperator, http.MethodPost, orderPath(unpaid, "cancel"), "").requireProblem(t, http.StatusConflict, "conflict")
}

func TestOrderIsResolved(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true)
	s.paidPlans(t)
	pay := func(o map[string]any, in simulator.PayOptions) map[string]any {
		_, err := s.sim.PayCheckout(o["provider_session_id"].(string), in)
		require.NoError(t, err)
		s.asks(t)
		return s.must(t, http.StatusOK, http.MethodPost, orderPath(o, "verify"), "")
	}
	cheap := pay(s.order(t, ""), simulator.PayOptions{Amount: 100})
	require.Equal(t, "review", cheap["status"])
	require.Equal(t, "amount_mismatch", cheap["reason"])
	require.Nil(t, cheap["subscription_id"])
	s.do(t, roleOperator, http.MethodPost, orderPath(cheap, "resolve"), `{"as":"canceled"}`).requireProblem(t, http.StatusConflict, "conflict")
	require.Equal(t, "refunded", s.must(t, http.StatusOK, http.MethodPost, orderPath(cheap, "resolve"), `{"as":"refunded"}`)["status"])

	yen := pay(s.order(t, ""), simulator.PayOptions{Currency: "jpy"})
	require.Equal(t, "currency_mismatch", yen["reason"])
	given := s.must(t, http.StatusOK, http.MethodPost, orderPath(yen, "resolve"), `{"as":"fulfilled"}`)
	require.Equal(t, "fulfilled", given["status"])
	require.NotNil(t, given["subscription_id"])

	twice := s.order(t, "")
	_, err := s.sim.ExtraPayment(twice["provider_session_id"].(string), simulator.PayOptions{})
	require.NoError(t, err)
	after := pay(twice, simulator.PayOptions{})
	require.Equal(t, "fulfilled", after["status"])
	states := func(o map[string]any) []any {
		var all []any
		for _, p := range o["payments"].([]any) {
			all = append(all, p.(map[string]any)["state"])
		}
		return all
	}
	require.ElementsMatch(t, []any{"fulfilled", "review"}, states(after))
	after = s.must(t, http.StatusOK, http.MethodPost, orderPath(twice, "resolve"), `{"as":"refunded"}`)
	require.Equal(t, "fulfilled", after["status"], "the surplus is given back")
	require.ElementsMatch(t, []any{"fulfilled", "refunded"}, states(after))
	n, err := s.store.UnsettledMoney(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestOrderAndASilentProvider: no answer is not no.
func TestOrderAndASilentProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true)
	s.paidPlans(t)
	o := s.order(t, "")
	for _, kind := range []string{simulator.Status500, simulator.HTML, simulator.Truncated, simulator.Status401, simulator.Status429} {
		s.asks(t)
		require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: kind, Count: -1, RetryAfter: 7 * time.Second}))
		a := s.do(t, roleOperator, http.MethodPost, orderPath(o, "verify"), "")
		a.requireProblem(t, http.StatusServiceUnavailable, "provider_unavailable")
		require.Equal(t, map[bool]string{true: "7", false: "5"}[kind == simulator.Status429], a.header.Get("Retry-After"), kind)
		s.asks(t)
		require.Equal(t, "pending", s.must(t, http.StatusOK, http.MethodGet, orderPath(o, ""), "")["status"], kind)
		s.sim.ClearRESTFaults()
	}
	s.down.Store(http.StatusInternalServerError)
	s.do(t, roleOperator, http.MethodPost, orderPath(o, "cancel"), "").requireProblem(t, http.StatusServiceUnavailable, "provider_unavailable")
	require.Equal(t, "pending", s.must(t, http.StatusOK, http.MethodGet, orderPath(o, ""), "")["status"])
	s.down.Store(0)
	require.Equal(t, "canceled", s.must(t, http.StatusOK, http.MethodPost, orderPath(o, "cancel"), "")["status"])

	paid := s.order(t, "")
	_, err := s.sim.PayCheckout(paid["provider_session_id"].(string), simulator.PayOptions{})
	require.NoError(t, err)
	require.Equal(t, "fulfilled", s.must(t, http.StatusOK, http.MethodPost, orderPath(paid, "verify"), "")["status"])
	slow := s.order(t, "")
	_, err = s.sim.PayCheckout(slow["provider_session_id"].(string), simulator.PayOptions{})
	require.NoError(t, err)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: -1, Path: "/v1/payment_intents"}))
	require.Equal(t, "fulfilled", s.must(t, http.StatusOK, http.MethodPost, orderPath(slow, "verify"), "")["status"], "what the checkout says is enough")
	s.sim.ClearRESTFaults()
	s.down.Store(http.StatusBadGateway)
	require.Equal(t, "refunding", s.must(t, http.StatusOK, http.MethodPost, orderPath(paid, "refund"), "")["status"], "it is refunded later")
	s.down.Store(0)
	s.exec(t, `UPDATE payment_orders SET leased_until = NULL, lease_owner = NULL WHERE status = 'refunding'`)
	s.asks(t)
	require.Equal(t, "refunded", s.must(t, http.StatusOK, http.MethodPost, orderPath(paid, "verify"), "")["status"])
}

func TestReadingAPendingOrderAsksSeldom(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true)
	s.paidPlans(t)
	o := s.order(t, "")
	s.must(t, http.StatusOK, http.MethodGet, orderPath(o, ""), "")
	s.exec(t, `UPDATE payment_orders SET asked_at = now() + interval '1 hour'`) // as if somebody had just asked
	before := len(s.sim.Calls())
	for range 5 {
		s.must(t, http.StatusOK, http.MethodGet, orderPath(o, ""), "")
		s.must(t, http.StatusOK, http.MethodPost, orderPath(o, "verify"), "")
	}
	require.Len(t, s.sim.Calls(), before)
	s.asks(t)
	s.exec(t, `UPDATE payment_orders SET asked_at = now() - interval '1 hour'`)
	s.must(t, http.StatusOK, http.MethodGet, orderPath(o, ""), "")
	require.Greater(t, len(s.sim.Calls()), before)
}

func TestARepeatedOrderIsOne(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true)
	s.paidPlans(t)
	const body = `{"user_id":"u_1","plan":"pro","expires_in":"1h"}`
	first := s.keyed(t, roleOperator, "k1", http.MethodPost, "/v1/orders", body)
	require.Equal(t, http.StatusCreated, first.status, string(first.body))
	id := uuid.MustParse(first.field(t, "id").(string))
	require.EqualValues(t, 7, id.Version())
	require.WithinDuration(t, time.Now(), time.UnixMilli(int64(binary.BigEndian.Uint64(append([]byte{0, 0}, id[:6]...)))), time.Minute, "ids are in the order of time")
	again := s.keyed(t, roleOperator, "k1", http.MethodPost, "/v1/orders", body)
	require.Equal(t, "true", again.header.Get(headerReplayed))
	require.Equal(t, string(first.body), string(again.body))
	s.keyed(t, roleOperator, "k1", http.MethodPost, "/v1/orders", `{"user_id":"u_2","plan":"pro","expires_in":"1h"}`).
		requireProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM payment_orders`))

	// The checkout was made and its answer lost, in each way; the same request finds it.
	for i, kind := range []string{simulator.HTML, simulator.Truncated, simulator.Status500} {
		key := "lost " + kind
		require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: kind, After: true, Method: http.MethodPost}))
		s.keyed(t, roleOperator, key, http.MethodPost, "/v1/orders", body).requireProblem(t, http.StatusServiceUnavailable, "provider_unavailable")
		made := s.keyed(t, roleOperator, key, http.MethodPost, "/v1/orders", body)
		require.Equal(t, http.StatusCreated, made.status, string(made.body))
		require.NotEmpty(t, made.field(t, "checkout_url"))
		require.Equal(t, i+2, s.count(t, `SELECT count(*) FROM payment_orders`), "one order for each key")
		require.Equal(t, i+2, s.checkouts(t), "and one checkout")
	}

	// A process died after each step and left the key: its lease passes, and the same request goes on.
	lapse := func() {
		s.exec(t, `UPDATE idempotency_keys SET response_status = NULL, response_body = NULL, leased_until = now() - interval '1 second'`)
	}
	lapse()
	made := s.keyed(t, roleOperator, "k1", http.MethodPost, "/v1/orders", body)
	require.Equal(t, http.StatusCreated, made.status)
	require.Equal(t, first.field(t, "id"), made.field(t, "id"))
	require.Equal(t, 4, s.count(t, `SELECT count(*) FROM payment_orders`))
	path := "/v1/orders/" + first.field(t, "id").(string)
	canceled := s.keyed(t, roleOperator, "cancel", http.MethodPost, path+"/cancel", "")
	require.Equal(t, http.StatusOK, canceled.status, string(canceled.body))
	lapse()
	repeated := s.keyed(t, roleOperator, "cancel", http.MethodPost, path+"/cancel", "")
	require.Equal(t, http.StatusOK, repeated.status, string(repeated.body))
	require.Equal(t, string(canceled.body), string(repeated.body))
	s.keyed(t, roleOperator, "another", http.MethodPost, path+"/cancel", "").requireProblem(t, http.StatusConflict, "conflict")

	// A day later the key is a new one.
	s.exec(t, `UPDATE idempotency_keys SET created_at = created_at - interval '25 hours'`)
	fresh := s.keyed(t, roleOperator, "k1", http.MethodPost, "/v1/orders", body)
	require.Equal(t, http.StatusCreated, fresh.status, string(fresh.body))
	require.NotEqual(t, first.field(t, "id"), fresh.field(t, "id"))
}

// checkouts counts those at the provider.
func (s *shop) checkouts(t *testing.T) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.sim.StripeURL()+"/v1/checkout/sessions?limit=100", nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer sk_test_1")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	var list struct{ Data []any }
	require.NoError(t, json.NewDecoder(response.Body).Decode(&list))
	return len(list.Data)
}

func TestARefusedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.paidPlans(t)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status402}))
	a := s.do(t, roleOperator, http.MethodPost, "/v1/orders", `{"user_id":"u_1","plan":"pro","expires_in":"1h"}`)
	a.requireProblem(t, http.StatusConflict, "provider_refused")
	failed := s.must(t, http.StatusOK, http.MethodGet, "/v1/orders?status=failed", "")["data"].([]any)
	require.Len(t, failed, 1)
	require.Equal(t, "checkout_refused", failed[0].(map[string]any)["reason"])
}

func TestOrdersWithoutAProvider(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.paidPlans(t)
	s.do(t, roleOperator, http.MethodPost, "/v1/orders", `{"user_id":"u_1","plan":"pro","expires_in":"1h"}`).requireProblem(t, http.StatusConflict, "no_provider")
	s.exec(t, `INSERT INTO payment_orders (id, user_id, plan_key, amount, currency, expires_at) VALUES ($1, 'u_1', 'pro', 1, 'USD', now())`, goldenID)
	require.Equal(t, "pending", s.must(t, http.StatusOK, http.MethodGet, "/v1/orders/"+goldenID, "")["status"])
	for _, action := range []string{"verify", "cancel"} {
		s.asks(t)
		s.do(t, roleOperator, http.MethodPost, "/v1/orders/"+goldenID+"/"+action, "").requireProblem(t, http.StatusConflict, "no_provider")
	}
}

func TestOrderFields(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true)
	s.paidPlans(t)
	const least = `"user_id":"u_1","plan":"pro","expires_in":"1h"`
	for body, pointers := range map[string][]string{
		`{}`: {"/user_id", "/plan", "/expires_in"},
		`{"user_id":" ","plan":"a\nb","expires_in":"1h"}`:                            {"/user_id", "/plan"},
		`{"user_id":"u_1","plan":"pro","expires_in":"0s"}`:                           {"/expires_in"},
		`{"user_id":"u_1","plan":"pro","expires_in":"999ms"}`:                        {"/expires_in"},
		`{"user_id":"u_1","plan":"pro","expires_in":"24h0m1s"}`:                      {"/expires_in"},
		`{"user_id":"u_1","plan":"pro","expires_in":3600}`:                           {"/expires_in"},
		`{"user_id":"u_1","plan":"none","expires_in":"1h"}`:                          {"/plan"},
		`{"user_id":"u_1","plan":"endless","expires_in":"1h"}`:                       {"/plan"},
		`{"user_id":"u_1","plan":"free","expires_in":"1h"}`:                          {"/amount"},
		`{"user_id":"u_1","plan":"free","expires_in":"1h","amount":5}`:               {"/currency"},
		`{` + least + `,"amount":0}`:                                                 {"/amount"},
		`{` + least + `,"amount":-5,"currency":"US"}`:                                {"/amount", "/currency"},
		`{` + least + `,"amount":1000000000000}`:                                     {"/amount"},
		`{` + least + `,"amount":10.5}`:                                              {"/amount"},
		`{` + least + `,"currency":"EUR"}`:                                           {"/amount"},
		`{` + least + `,"late_payment":"keep"}`:                                      {"/late_payment"},
		`{` + least + `,"success_url":"/thanks","cancel_url":"javascript:alert(1)"}`: {"/success_url", "/cancel_url"},
		`{` + least + `,"success_url":""}`:                                           {"/success_url", "/success_url"},
		`{` + least + `,"success_url":"https://u:p@x.example/"}`:                     {"/success_url"},
		`{` + least + `,"more":1}`:                                                   {"/more"},
	} {
		a := s.do(t, roleOperator, http.MethodPost, "/v1/orders", body)
		require.Equal(t, pointers, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
	}
	for body, want := range map[string]string{
		`{` + least + `,"currency":"usd"}`: "1900 USD",
		`{` + least + `,"amount":5}`:       "5 USD",
		`{"user_id":"u_1","plan":"free","expires_in":"1s","amount":5,"currency":"jpy"}`: "5 JPY",
		`{"user_id":"u_1","plan":"life","expires_in":"24h"}`:                            "9900 JPY",
	} {
		made := s.must(t, http.StatusCreated, http.MethodPost, "/v1/orders", body)
		require.Equal(t, want, fmt.Sprintf("%v %v", made["amount"], made["currency"]), body)
	}
	made := s.order(t, "")
	for _, body := range []string{`{}`, `{"as":""}`, `{"as":"paid"}`} {
		require.Equal(t, []string{"/as"}, s.do(t, roleOperator, http.MethodPost, orderPath(made, "resolve"), body).requireProblem(t, http.StatusBadRequest, "invalid_request"))
	}
	require.Equal(t, []string{"/status"}, s.do(t, roleOperator, http.MethodGet, "/v1/orders?status=open", "").requireProblem(t, http.StatusBadRequest, "invalid_request"))
	require.Equal(t, []string{"/limit"}, s.do(t, roleOperator, http.MethodGet, "/v1/orders?limit=0", "").requireProblem(t, http.StatusBadRequest, "invalid_request"))
	require.Equal(t, []string{"/cursor"}, s.do(t, roleOperator, http.MethodGet, "/v1/orders?cursor=x", "").requireProblem(t, http.StatusBadRequest, "invalid_request"))
	for _, id := range []string{goldenID, "1", "x%2Fy"} {
		s.do(t, roleOperator, http.MethodGet, "/v1/orders/"+id, "").requireProblem(t, http.StatusNotFound, "not_found")
		for _, action := range []string{"verify", "cancel", "refund"} {
			s.do(t, roleOperator, http.MethodPost, "/v1/orders/"+id+"/"+action, "").requireProblem(t, http.StatusNotFound, "not_found")
		}
		s.do(t, roleOperator, http.MethodPost, "/v1/orders/"+id+"/resolve", `{"as":"canceled"}`).requireProblem(t, http.StatusNotFound, "not_found")
	}
	thanks := s.do(t, public, http.MethodGet, "/checkout/thanks", "")
	require.Equal(t, http.StatusOK, thanks.status)
	require.Contains(t, thanks.header.Get("Content-Type"), "text/html")
}

func TestOrdersAreListed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.paidPlans(t)
	s.exec(t, `INSERT INTO payment_orders (id, user_id, plan_key, amount, currency, expires_at, status)
		SELECT uuid_v7(now() + n * interval '1 ms'), 'u_' || n % 2, 'pro', n, 'USD', now(), CASE WHEN n <= 3 THEN 'expired' ELSE 'review' END FROM generate_series(1, 7) n`)
	s.exec(t, `INSERT INTO payments (external_id, order_id, amount, currency, captured_at, state) SELECT 'pi_' || amount, id, amount, 'USD', now(), 'review' FROM payment_orders WHERE status = 'review'`)
	walk := func(query string) (amounts []int) {
		cursor := ""
		for {
			page := s.must(t, http.StatusOK, http.MethodGet, "/v1/orders?limit=2"+query+cursor, "")
			for _, row := range page["data"].([]any) {
				o := row.(map[string]any)
				amounts = append(amounts, int(o["amount"].(float64)))
				paid := o["payments"].([]any)
				require.Len(t, paid, map[any]int{"expired": 0, "review": 1}[o["status"]])
				for _, p := range paid {
					require.Equal(t, o["amount"], p.(map[string]any)["amount"])
				}
			}
			next, more := page["next_cursor"].(string)
			if !more {
				return amounts
			}
			cursor = "&cursor=" + next
		}
	}
	require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7}, walk(""))
	require.Equal(t, []int{4, 5, 6, 7}, walk("&status=review"))
	require.Equal(t, []int{1, 3}, walk("&status=expired&user_id=u_1"))
	require.Empty(t, walk("&user_id=nobody"))
}

// TestTheClientSellsAnOrder makes an order as a product written in Go does.
func TestTheClientSellsAnOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.held.Store(true)
	s.paidPlans(t)
	shop, ctx := s.calls(t, roleOperator), t.Context()
	made, err := shop.CreateOrder(ctx, client.OrderRequest{UserID: "u_1", Plan: "pro", ExpiresIn: "30m"}, client.IdempotencyKey("order"))
	require.NoError(t, err)
	require.Equal(t, client.OrderStatusPending, made.Status)
	require.NotEmpty(t, *made.CheckoutURL)
	_, err = s.sim.PayCheckout(*made.ProviderSessionID, simulator.PayOptions{})
	require.NoError(t, err)
	paid, err := shop.VerifyOrder(ctx, made.ID)
	require.NoError(t, err)
	require.Equal(t, client.OrderStatusFulfilled, paid.Status)
	require.EqualValues(t, 1900, paid.Payments[0].Amount)
	page, err := shop.ListOrders(ctx, client.ListOrdersParams{UserID: new("u_1"), Status: new(client.OrderStatusFulfilled)})
	require.NoError(t, err)
	require.Equal(t, made.ID, page.Data[0].ID)
	_, err = shop.ResolveOrder(ctx, made.ID, client.ResolveRequest{As: client.ResolveRequestAsRefunded})
	require.True(t, client.Is(err, client.ProblemCodeConflict), "%v", err)
	back, err := shop.RefundOrder(ctx, made.ID)
	require.NoError(t, err)
	require.Equal(t, client.OrderStatusRefunded, back.Status)
}
