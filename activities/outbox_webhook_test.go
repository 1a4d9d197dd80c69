package activities_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"termkeeper/activities"
	"termkeeper/internal/secret"
	"termkeeper/internal/store"
	"termkeeper/internal/webhook"
)

// hookSealer seals the secrets of the endpoints of a test.
func hookSealer(t *testing.T) *secret.Sealer {
	t.Helper()
	s, err := secret.NewSealer(secret.NewText("b2YgdGhlIHRlc3Qgb2YgdGhlIGNvbXBvc2UgZmlsZS4="))
	require.NoError(t, err)
	return s
}

// received is one call as it came in.
type received struct {
	id, signature, topic, key string
	header                    http.Header
	body                      []byte
}

// receiver is somebody else's server.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	calls  []received
	answer http.HandlerFunc
}

func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		var told struct {
			Type string `json:"type"`
			Data struct {
				Details struct {
					Key string `json:"key"`
				} `json:"details"`
			} `json:"data"`
		}
		_ = json.Unmarshal(body, &told)
		r.mu.Lock()
		r.calls = append(r.calls, received{
			id: request.Header.Get("webhook-id"), signature: request.Header.Get("webhook-signature"), topic: told.Type, key: told.Data.Details.Key,
			header: request.Header.Clone(), body: body,
		})
		answer := r.answer
		r.mu.Unlock()
		answer(w, request)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) got() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.calls...)
}

func (r *receiver) topics() []string {
	var list []string
	for _, c := range r.got() {
		list = append(list, c.topic)
	}
	return list
}

func (r *receiver) answerWith(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// endpoint makes an endpoint and returns its id and its secret.
func (b *bench) endpoint(url string, topics ...string) (id string, made secret.Text) {
	b.t.Helper()
	id, made = store.NewID(), webhook.NewSecret()
	_, err := b.store.CreateWebhookEndpoint(b.t.Context(), store.WebhookEndpoint{
		ID: id, URL: url, Topics: topics, Secret: hookSealer(b.t).Seal(made, webhook.Place(id)),
	})
	require.NoError(b.t, err)
	return id, made
}

// caller is the job without mail.
func (b *bench) caller() *activities.Outbox {
	sender := webhook.New(webhook.Options{AllowPrivate: true})
	b.t.Cleanup(sender.Close)
	return &activities.Outbox{Store: b.store, Webhooks: &activities.Webhooker{Sender: sender, Sealer: hookSealer(b.t)}, Owner: "test", Runs: b.runs}
}

// tell writes facts of one topic, each under its key, of the subscription.
func (b *bench) tell(subscriptionID any, topic string, keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		b.exec(`INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, payload)
			VALUES (uuid_v7(clock_timestamp()), $1, $2, $3, 'u_1', jsonb_build_object('key', $2::text))`, topic, key, subscriptionID)
	}
}

// call runs the job once more.
func (b *bench) call(o *activities.Outbox) activities.Tally {
	b.t.Helper()
	b.exec(`DELETE FROM job_runs`)
	return b.deliver(o)
}

// soon ends all pauses.
func (b *bench) soon() {
	b.t.Helper()
	b.again()
	b.exec(`UPDATE webhook_endpoints SET paused_until = NULL`)
}

func TestFactBecomesACallForEachEndpointThatWantsIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	all, access, orders := newReceiver(t, status(200)), newReceiver(t, status(204)), newReceiver(t, status(202))
	_, secretOfAll := b.endpoint(all.URL, "*")
	b.endpoint(access.URL, "access.*")
	b.endpoint(orders.URL, "order.review", "order.fulfilled")
	off := newReceiver(t, status(200))
	offID, _ := b.endpoint(off.URL, "*")
	b.exec(`UPDATE webhook_endpoints SET status = 'disabled', disabled_reason = 'operator', disabled_at = now() WHERE id = $1`, offID)
	b.due(1)
	b.expired()
	b.tell(nil, "order.fulfilled", "o1")
	b.tell(nil, "alert.drift", "a1")
	b.tell(nil, "accessory.sold", "x1")
	o := b.outbox(sim.SMTPURL())
	o.Webhooks = b.caller().Webhooks
	require.Equal(t, activities.Tally{Scanned: 11, Changed: 11}, b.deliver(o), "four facts, four, one and one calls, one mail")
	require.Equal(t, "sent 7", b.deliveries())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM deliveries WHERE channel = 'email'`), "of orders and alerts there is no mail")
	require.ElementsMatch(t, []string{"access.ended", "order.fulfilled", "alert.drift", "accessory.sold"}, all.topics())
	require.Equal(t, []string{"access.ended"}, access.topics())
	require.Equal(t, []string{"order.fulfilled"}, orders.topics())
	require.Empty(t, off.got())
	require.Equal(t, "200 4, 202 1, 204 1", b.text(`SELECT string_agg(s || ' ' || n, ', ' ORDER BY s) FROM (SELECT response_status s, count(*) n FROM deliveries WHERE channel = 'webhook' GROUP BY 1) d`))

	verifier, err := standardwebhooks.NewWebhook(secretOfAll.Reveal())
	require.NoError(t, err)
	for _, c := range all.got() {
		require.NoError(t, verifier.Verify(c.body, c.header))
		require.Equal(t, 1, b.count(fmt.Sprintf(`SELECT count(*) FROM deliveries WHERE message_id = '%s' AND channel = 'webhook'`, c.id)))
	}
	var body struct {
		Type      string
		Timestamp time.Time
		Data      map[string]any
	}
	require.NoError(t, json.Unmarshal(access.got()[0].body, &body))
	require.Equal(t, "access.ended", body.Type)
	require.WithinDuration(t, time.Now(), body.Timestamp, time.Minute)
	boundary, err := time.Parse(time.RFC3339, body.Data["boundary"].(string))
	require.NoError(t, err)
	require.Equal(t, b.text(`SELECT access_until::text FROM subscriptions`), boundary.UTC().Format("2006-01-02 15:04:05.999999-07")[:len(b.text(`SELECT access_until::text FROM subscriptions`))])
	delete(body.Data, "boundary")
	require.Equal(t, map[string]any{
		"fact_id": b.text(`SELECT id FROM outbox WHERE topic = 'access.ended'`), "subscription_id": b.text(`SELECT id FROM subscriptions`),
		"user_id": "u_1", "kind": "expired", "details": map[string]any{"still_has_access": false},
	}, body.Data)
}

// Without a key calls wait; they go out when there is one.
func TestCallsWaitForAKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, status(200))
	b.endpoint(r.URL, "*")
	b.tell(nil, "order.review", "o1")
	o := b.caller()
	hooks := o.Webhooks
	o.Webhooks = nil
	b.deliver(o)
	require.Equal(t, "pending 1", b.deliveries())
	o.Webhooks = hooks
	b.call(o)
	require.Equal(t, "sent 1", b.deliveries())
	require.Len(t, r.got(), 1)
}

func TestFailingEndpointIsTriedAgainInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, status(500))
	b.endpoint(r.URL, "*")
	one, other := store.NewID(), store.NewID()
	b.tell(one, "access.started", "a1")
	b.tell(one, "access.changed", "a2", "a3")
	b.tell(other, "access.started", "b1")
	b.tell(other, "access.ended", "b2")
	o := b.caller()
	b.deliver(o)
	require.Len(t, r.got(), 2, "the first of each subscription")
	require.Equal(t, "pending 5", b.deliveries())
	require.Equal(t, 2, b.count(`SELECT count(*) FROM deliveries WHERE attempts = 1 AND response_status = 500 AND next_attempt_at > now() + interval '4 seconds'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE failures = 1 AND paused_until > failing_since AND last_error LIKE '%500%'`), "together they count once")
	b.call(o)
	require.Len(t, r.got(), 2, "not before its time")
	for range 3 {
		b.soon()
		b.call(o)
	}
	require.Len(t, r.got(), 5, "while it is down, one call finds out whether it is back")
	pause := b.text(`SELECT extract(epoch FROM paused_until - updated_at)::int::text FROM webhook_endpoints`)
	require.Contains(t, []string{"8", "9", "10"}, pause, "the pauses double")

	r.answerWith(status(200))
	b.soon()
	b.call(o)
	require.Equal(t, "sent 5", b.deliveries())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE failures = 0 AND failing_since IS NULL AND paused_until IS NULL`))
	var order []string
	ids := map[string]string{}
	for _, c := range r.got() {
		if id, seen := ids[c.key]; seen {
			require.Equal(t, id, c.id, "every attempt has the same id")
		} else {
			order = append(order, c.key)
		}
		ids[c.key] = c.id
	}
	for _, subscription := range []string{"a", "b"} {
		last := ""
		for _, key := range order {
			if strings.HasPrefix(key, subscription) {
				require.Greater(t, key, last)
				last = key
			}
		}
	}
	require.Len(t, ids, 5)
}

// One endpoint hangs with a long queue, the mails and the other endpoint go on.
func TestHangingEndpointHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	hangs := newReceiver(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	works := newReceiver(t, status(200))
	hanging, _ := b.endpoint(hangs.URL, "*")
	working, _ := b.endpoint(works.URL, "*")
	b.due(60)
	b.expired()
	o := b.outbox(sim.SMTPURL())
	o.Webhooks = b.caller().Webhooks
	b.deliver(o)
	require.Len(t, hangs.got(), 4, "its own places and no more")
	require.Len(t, works.got(), 60)
	require.Len(t, sim.Messages(), 60)
	failed := `(SELECT failing_since FROM webhook_endpoints WHERE id = '` + hanging + `')`
	require.Equal(t, 120, b.count(`SELECT count(*) FROM deliveries WHERE status = 'sent' AND (target = '`+working+`' OR channel = 'email') AND finished_at < `+failed), "before it was cut off")
	require.Equal(t, 60, b.count(`SELECT count(*) FROM deliveries WHERE status = 'pending' AND target = '`+hanging+`'`))
	require.Equal(t, 4, b.count(`SELECT count(*) FROM deliveries WHERE attempts = 1 AND refusals = 0 AND last_error = 'no answer within 15s'`))
}

func TestRedirectIsARefusal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	inside := newReceiver(t, status(200))
	r := newReceiver(t, func(w http.ResponseWriter, request *http.Request) {
		http.Redirect(w, request, inside.URL+"/latest/meta-data", http.StatusTemporaryRedirect)
	})
	b.endpoint(r.URL, "*")
	b.tell(nil, "order.review", "o1")
	b.deliver(b.caller())
	require.Len(t, r.got(), 1)
	require.Empty(t, inside.got())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM deliveries WHERE status = 'pending' AND refusals = 1 AND response_status = 307 AND last_error LIKE '%redirects are not followed'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE failures = 0 AND paused_until IS NULL AND failing_since IS NOT NULL`), "it is not paused")
}

// Without the switch a private address is refused when it is dialed, and nothing reaches it.
func TestPrivateEndpointIsNotReached(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, status(200))
	_, port, err := net.SplitHostPort(r.Listener.Addr().String())
	require.NoError(t, err)
	b.endpoint("https://localhost:"+port, "*")
	b.tell(nil, "order.review", "o1")
	o := b.caller()
	o.Webhooks.Sender = webhook.New(webhook.Options{})
	b.deliver(o)
	require.Empty(t, r.got())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM deliveries WHERE status = 'pending' AND response_status IS NULL AND last_error LIKE '%the address is not a public one%'`))
}

func TestGoneEndpointIsDisabledAndTheOthersAreTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gone, operators := newReceiver(t, status(http.StatusGone)), newReceiver(t, status(200))
	id, _ := b.endpoint(gone.URL, "order.*")
	b.endpoint(operators.URL, "alert.*")
	subscription := store.NewID()
	b.tell(subscription, "order.fulfilled", "o1", "o2", "o3")
	o := b.caller()
	b.deliver(o)
	b.call(o)
	require.Len(t, gone.got(), 1)
	require.Equal(t, "dead 3, sent 1", b.deliveries(), "what waited for it is ended too")
	require.Equal(t, 2, b.count(`SELECT count(*) FROM deliveries WHERE last_error = 'its endpoint is disabled'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE status = 'disabled' AND disabled_reason = 'gone' AND disabled_at IS NOT NULL`))
	require.Equal(t, []string{"alert.webhook_endpoint_disabled"}, operators.topics())
	var told struct {
		Data struct {
			Kind    string
			Details map[string]string
		}
	}
	require.NoError(t, json.Unmarshal(operators.got()[0].body, &told))
	require.Equal(t, "gone", told.Data.Kind)
	require.Equal(t, map[string]string{"endpoint_id": id, "reason": "gone", "error": "the endpoint answered 410"}, told.Data.Details)

	b.tell(subscription, "order.fulfilled", "o4")
	b.call(o)
	require.Zero(t, b.count(`SELECT count(*) FROM deliveries d JOIN outbox o ON o.id = d.outbox_id WHERE o.dedupe_key = 'o4'`), "it is told of nothing any more")

	dead := b.text(`SELECT id FROM deliveries WHERE status = 'dead' AND attempts = 1`)
	_, err := b.store.ReviveDelivery(t.Context(), dead)
	require.ErrorIs(t, err, store.ErrEndpointOff)
	gone.answerWith(status(200))
	_, err = b.store.ChangeWebhookEndpoint(t.Context(), id, func(e *store.WebhookEndpoint) error { e.Status = store.EndpointEnabled; return nil })
	require.NoError(t, err)
	_, err = b.store.ReviveDelivery(t.Context(), dead)
	require.NoError(t, err)
	b.call(o)
	require.Len(t, gone.got(), 2)
	require.Equal(t, gone.got()[0].id, gone.got()[1].id)
	_, err = b.store.ReviveDelivery(t.Context(), dead)
	require.NoError(t, err, "one that was sent can be sent once more")
	b.call(o)
	require.Len(t, gone.got(), 3)
}

// An endpoint that is down for days: nothing that waits for it is given up before, then it is disabled, once, with an alert.
func TestEndpointThatIsDownForDays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.endpoint("http://"+listener.Addr().String(), "order.*")
	require.NoError(t, listener.Close())
	for i := range 5 {
		b.tell(store.NewID(), "order.fulfilled", fmt.Sprintf("o%d", i))
	}
	o := b.caller()
	for range 40 {
		b.call(o)
		b.soon()
	}
	require.Equal(t, "pending 5", b.deliveries())
	require.Zero(t, b.count(`SELECT sum(refusals) FROM deliveries`))
	b.exec(`UPDATE webhook_endpoints SET failing_since = now() - interval '4 days 23 hours'`)
	b.call(o)
	b.soon()
	require.Equal(t, "pending 5", b.deliveries())
	b.exec(`UPDATE webhook_endpoints SET failing_since = now() - interval '5 days'`)
	b.call(o)
	b.call(o)
	require.Equal(t, "dead 5", b.deliveries())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE status = 'disabled' AND disabled_reason = 'failing'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.webhook_endpoint_disabled' AND kind = 'failing'`))
}

// What makes the receiver fail is given up at last, and does not stop the rest.
func TestCallThatIsRefusedDiesAlone(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusNotFound, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			r := newReceiver(t, nil)
			r.answerWith(func(w http.ResponseWriter, _ *http.Request) {
				calls := r.got()
				if calls[len(calls)-1].key == "poison" {
					w.WriteHeader(code)
				}
			})
			b.endpoint(r.URL, "*")
			subscription := store.NewID()
			b.tell(subscription, "order.review", "poison", "after")
			o := b.caller()
			for i := 0; b.count(`SELECT count(*) FROM deliveries WHERE status = 'dead'`) == 0; i++ {
				require.Less(t, i, 60)
				b.tell(store.NewID(), "order.review", fmt.Sprint("other", i))
				b.soon()
				b.call(o)
				b.exec(`UPDATE webhook_endpoints SET paused_until = NULL`)
				b.call(o) // where the endpoint was paused, the other one comes now: what failed waits longer than the endpoint
				require.Equal(t, 1, b.count(fmt.Sprintf(`SELECT count(*) FROM deliveries d JOIN outbox o ON o.id = d.outbox_id WHERE o.dedupe_key = 'other%d' AND d.status = 'sent'`, i)))
			}
			require.Equal(t, 1, b.count(`SELECT count(*) FROM deliveries WHERE status = 'dead' AND refusals = 15`))
			b.soon()
			b.call(o)
			require.Equal(t, "sent", b.text(`SELECT d.status FROM deliveries d JOIN outbox o ON o.id = d.outbox_id WHERE o.dedupe_key = 'after'`))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE status = 'enabled'`))
		})
	}
}

func TestAnswerThatAsksForTimeGetsIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	b.endpoint(r.URL, "*")
	b.tell(nil, "order.review", "o1")
	b.deliver(b.caller())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM deliveries WHERE status = 'pending' AND refusals = 0 AND next_attempt_at > now() + interval '590 seconds'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE paused_until BETWEEN now() + interval '590 seconds' AND now() + interval '601 seconds'`))
}

// The head of an answer says that the call was taken, whatever becomes of its body.
func TestAnswersThatBreakOffOrNeverEnd(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"cut after the head": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"giant": func(w http.ResponseWriter, _ *http.Request) {
			chunk := []byte(strings.Repeat("x", 1<<16))
			for range 1 << 14 { // a gigabyte
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			r := newReceiver(t, answer)
			b.endpoint(r.URL, "*")
			b.tell(nil, "order.review", "o1")
			b.deliver(b.caller())
			require.Equal(t, "sent 1", b.deliveries())
			require.Len(t, r.got(), 1)
		})
	}
}

func TestAfterARotationBothSecretsSignForADay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, status(200))
	id, old := b.endpoint(r.URL, "*")
	fresh := webhook.NewSecret()
	_, err := b.store.RotateWebhookSecret(t.Context(), id, hookSealer(t).Seal(fresh, webhook.Place(id)), 24*time.Hour)
	require.NoError(t, err)
	verifies := func(s secret.Text, c received) bool {
		verifier, err := standardwebhooks.NewWebhook(s.Reveal())
		require.NoError(t, err)
		return verifier.Verify(c.body, c.header) == nil
	}
	b.tell(nil, "order.review", "o1")
	o := b.caller()
	b.deliver(o)
	require.True(t, verifies(old, r.got()[0]))
	require.True(t, verifies(fresh, r.got()[0]))
	b.exec(`UPDATE webhook_endpoints SET previous_until = now()`)
	b.tell(nil, "order.review", "o2")
	b.call(o)
	require.False(t, verifies(old, r.got()[1]))
	require.True(t, verifies(fresh, r.got()[1]))
}

// A key that is not the one that the secrets were sealed with is our own mistake: the endpoint waits and nothing is lost.
func TestWrongKeyBurnsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, status(200))
	b.endpoint(r.URL, "*")
	b.tell(nil, "order.review", "o1")
	o := b.caller()
	right := o.Webhooks.Sealer
	wrong, err := secret.NewSealer(secret.NewKey())
	require.NoError(t, err)
	o.Webhooks.Sealer = wrong
	b.deliver(o)
	require.Empty(t, r.got())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM deliveries WHERE status = 'pending' AND attempts = 0 AND last_error LIKE '%TERMKEEPER_SECRET_KEY%'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM webhook_endpoints WHERE paused_until > now() AND failing_since IS NULL`))
	o.Webhooks.Sealer = right
	b.soon()
	b.call(o)
	require.Equal(t, "sent 1", b.deliveries())

	// The key was changed for good: a rotation with the new one is what helps.
	id := b.text(`SELECT id FROM webhook_endpoints`)
	fresh := webhook.NewSecret()
	_, err = b.store.RotateWebhookSecret(t.Context(), id, wrong.Seal(fresh, webhook.Place(id)), 24*time.Hour)
	require.NoError(t, err)
	o.Webhooks.Sealer = wrong
	b.tell(nil, "order.review", "o2")
	b.call(o)
	require.Equal(t, "sent 2", b.deliveries())
	require.Len(t, strings.Fields(r.got()[1].signature), 1)
}

func TestWhatWaitsForADeletedEndpointIsSuperseded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, status(503))
	id, _ := b.endpoint(r.URL, "*")
	b.tell(nil, "order.review", "o1", "o2")
	o := b.caller()
	b.deliver(o)
	require.Equal(t, "pending 2", b.deliveries())
	_, err := b.store.DeleteWebhookEndpoint(t.Context(), id)
	require.NoError(t, err)
	b.call(o)
	require.Equal(t, "superseded 2", b.deliveries())
}

// A sender that vanished after the call: it is made again under the same id, and the late mark of the first one is lost.
func TestLapsedCallIsTakenOverUnderTheSameID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newReceiver(t, status(200))
	id, _ := b.endpoint(r.URL, "*")
	b.tell(nil, "order.review", "o1")
	now, err := b.store.Now(t.Context())
	require.NoError(t, err)
	_, err = b.store.DispatchFacts(t.Context(), now, false, "", 10)
	require.NoError(t, err)
	dead, err := b.store.ClaimWebhooks(t.Context(), now, "dead", 10, 4, time.Minute)
	require.NoError(t, err)
	require.Len(t, dead, 1)
	o := b.caller()
	b.deliver(o)
	require.Empty(t, r.got(), "while the lease holds nobody else sends it")
	b.exec(`UPDATE deliveries SET leased_until = now() - interval '1 second'`)
	b.call(o)
	require.Len(t, r.got(), 1)
	require.Equal(t, b.text(`SELECT message_id FROM deliveries`), r.got()[0].id)
	require.ErrorIs(t, b.store.WebhookSent(t.Context(), dead[0], id, 200), store.ErrConflict)
}
