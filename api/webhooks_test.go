package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
	"termkeeper/internal/telemetry"
)

// signature is what Stripe sends: https://docs.stripe.com/webhooks#verify-manually.
func signature(key string, at time.Time, body string) string {
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "%d.%s", at.Unix(), body)
	return fmt.Sprintf("t=%d,v1=%s", at.Unix(), hex.EncodeToString(mac.Sum(nil)))
}

func (s *system) deliver(t *testing.T, body, header string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/webhooks/stripe", strings.NewReader(body))
	if header != "" {
		r.Header.Set("Stripe-Signature", header)
	}
	return s.send(r)
}

func (s *system) count(t *testing.T, query string) int {
	t.Helper()
	var n int
	require.NoError(t, s.pool.QueryRow(t.Context(), query).Scan(&n))
	return n
}

// counted is the value of a counter.
func counted(t *testing.T, c prometheus.Counter) int {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return int(m.GetCounter().GetValue())
}

func subscriptionEvent(id, user string, created time.Time) string {
	return fmt.Sprintf(`{"id":%q,"object":"event","type":"customer.subscription.created","api_version":"2023-10-16","created":%d,"livemode":false,
		"data":{"object":{"id":"sub_%s","object":"subscription","customer":"cus_1","status":"active","start_date":%d,"current_period_start":%d,
		"current_period_end":%d,"collection_method":"charge_automatically","items":{"data":[{"price":{"id":"price_1"}}]},"metadata":{"user_id":%q}}}}`,
		id, created.Unix(), user, created.Unix(), created.Unix(), created.Add(720*time.Hour).Unix(), user)
}

func TestASignedEventGivesAccess(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, features, stripe_price_ids) VALUES ('pro', '{images}', '{price_1}')`)
	now := time.Now()
	body := subscriptionEvent("evt_1", "u_1", now)
	require.JSONEq(t, `{"received":true,"duplicate":false}`, string(s.deliver(t, body, signature(secretNew, now, body)).body))
	require.Eventually(t, func() bool {
		return s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1&feature=images", "").field(t, "allowed") == true
	}, 5*time.Second, 20*time.Millisecond)
	again := s.deliver(t, body, signature(secretOld, now, body))
	require.Equal(t, http.StatusOK, again.status)
	require.JSONEq(t, `{"received":true,"duplicate":true}`, string(again.body))

	list := s.must(t, http.StatusOK, http.MethodGet, "/v1/webhook-events?external_event_id=evt_1", "")["data"].([]any)
	require.Len(t, list, 1)
	listed := list[0].(map[string]any)
	require.Equal(t, "processed", listed["status"])
	require.NotContains(t, listed, "payload")
	path := "/v1/webhook-events/" + listed["id"].(string)
	one := s.must(t, http.StatusOK, http.MethodGet, path, "")
	for _, field := range []string{"id", "provider", "external_event_id", "type", "api_version", "status", "reason", "attempts", "last_error", "received_at", "processed_at", "payload"} {
		require.Contains(t, one, field)
	}
	payload, err := json.Marshal(one["payload"])
	require.NoError(t, err)
	require.JSONEq(t, body, string(payload))
	replayed := s.must(t, http.StatusOK, http.MethodPost, path+"/replay", "")
	require.Equal(t, "processed", replayed["status"])
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscription_events WHERE event_type = 'created'`), "a replay has no second effect")
	s.do(t, roleOperator, http.MethodPost, "/v1/webhook-events/01980000-0000-7000-8000-000000000000/replay", "").requireProblem(t, http.StatusNotFound, "not_found")
	s.exec(t, `UPDATE payment_webhook_events SET status = 'pending', leased_until = now() + interval '1 minute', lease_owner = 'another'`)
	s.do(t, roleOperator, http.MethodPost, path+"/replay", "").requireProblem(t, http.StatusConflict, "conflict")

	for _, key := range []string{secretNew, secretOld} {
		require.Equal(t, 1, counted(t, s.metrics.WebhookSecretUsed.WithLabelValues(payment.Fingerprint(key))))
	}
	received := func(outcome string) int {
		return counted(t, s.metrics.WebhookReceived.WithLabelValues("stripe", "customer.subscription.created", outcome))
	}
	require.Equal(t, []int{1, 1}, []int{received(telemetry.WebhookStored), received(telemetry.WebhookDuplicate)})
}

// TestAnEventPastItsRetentionIsNotReplayed: its body is gone, and the answer says so.
func TestAnEventPastItsRetentionIsNotReplayed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO payment_webhook_events (id, external_event_id, type, payload, status, received_at) VALUES ($1, 'evt_1', 'x', '', 'processed', now() - interval '31 days')`, goldenID)
	require.Nil(t, s.must(t, http.StatusOK, http.MethodGet, "/v1/webhook-events/"+goldenID, "")["payload"])
	s.do(t, roleOperator, http.MethodPost, "/v1/webhook-events/"+goldenID+"/replay", "").requireProblem(t, http.StatusConflict, "payload_gone")
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
}

func TestUnsignedEventsAreRefusedAndNotKept(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	now := time.Now()
	body := subscriptionEvent("evt_1", "u_1", now)
	good := signature(secretNew, now, body)
	for name, c := range map[string]struct{ body, header, code string }{
		"no header":           {body, "", "bad_signature"},
		"nonsense":            {body, "nonsense", "bad_signature"},
		"another secret":      {body, signature("whsec_test_cccccccccccccccccccccc", now, body), "bad_signature"},
		"an empty secret":     {body, signature("", now, body), "bad_signature"},
		"a changed body":      {strings.Replace(body, "u_1", "u_2", 1), good, "bad_signature"},
		"a changed signature": {body, good[:len(good)-1] + map[bool]string{true: "0", false: "1"}[good[len(good)-1] != '0'], "bad_signature"},
		"too old":             {body, signature(secretNew, now.Add(-302*time.Second), body), "signature_time"},
		"from the future":     {body, signature(secretNew, now.Add(310*time.Second), body), "signature_time"},
		"no JSON":             {"x", signature(secretNew, now, "x"), "malformed_event"},
		"no id":               {`{"object":"event"}`, signature(secretNew, now, `{"object":"event"}`), "malformed_event"},
		"an empty body":       {"", signature(secretNew, now, ""), "malformed_event"},
		"a list":              {"[]", signature(secretNew, now, "[]"), "malformed_event"},
	} {
		a := s.deliver(t, c.body, c.header)
		require.Equal(t, http.StatusBadRequest, a.status, name)
		a.requireProblem(t, http.StatusBadRequest, c.code)
	}
	large := strings.Repeat(" ", maxBody) + body
	s.deliver(t, large, signature(secretNew, now, large)).requireProblem(t, http.StatusRequestEntityTooLarge, "payload_too_large")
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_webhook_events`))
	require.Equal(t, 1, counted(t, s.metrics.WebhookReceived.WithLabelValues("stripe", "unknown", telemetry.WebhookTooLarge)))
	require.Equal(t, 12, counted(t, s.metrics.WebhookReceived.WithLabelValues("stripe", "unknown", telemetry.WebhookRefused)))

	several := fmt.Sprintf("t=%d,v1=00,%s,v0=11", now.Unix(), strings.SplitN(good, ",", 2)[1])
	require.Equal(t, http.StatusOK, s.deliver(t, body, several).status, "one good signature among several is enough")
}

func TestEventsThatChangeNothingAreKept(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	now := time.Now()
	for i, body := range []string{
		`{"id":"evt_0","type":"some.new.type","data":{"object":{}}}`, `{"id":"evt_1","object":"v2.core.event","type":"v1.billing.meter.error"}`,
		strings.Replace(subscriptionEvent("evt_2", "u", now), `"livemode":false`, `"livemode":true`, 1), `{"id":"evt_3"}`,
		strings.Replace(subscriptionEvent("evt_4", "u", now), `"livemode":false`, `"livemode":false,"account":"acct_1"`, 1),
		`{"id":"evt_5","type":"customer.subscription.updated","livemode":false}`, `{"id":"evt_6","type":"x\u0000y"}`,
	} {
		a := s.deliver(t, body, signature(secretNew, now, body))
		require.Equal(t, http.StatusOK, a.status, "%d: %s", i, a.body)
	}
	require.Len(t, s.walk(t, "/v1/webhook-events?status=ignored&", "id", 3), 7)
	require.Zero(t, s.count(t, `SELECT count(*) FROM subscriptions`))
}

// TestOneEventAtOnceIsOneEvent delivers copies at the same time: all are 200, one is the first.
func TestOneEventAtOnceIsOneEvent(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, stripe_price_ids) VALUES ('pro', '{price_1}')`)
	now := time.Now()
	body := subscriptionEvent("evt_1", "u_1", now)
	header := signature(secretNew, now, body)
	var first atomic.Int32
	var wait sync.WaitGroup
	for range 200 {
		wait.Go(func() {
			a := s.deliver(t, body, header)
			if a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.body)
				return
			}
			if a.field(t, "duplicate") == false {
				first.Add(1)
			}
		})
	}
	wait.Wait()
	require.Equal(t, int32(1), first.Load())
	require.Eventually(t, func() bool {
		return s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`) == 1
	}, 5*time.Second, 20*time.Millisecond)
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscriptions`))
}
