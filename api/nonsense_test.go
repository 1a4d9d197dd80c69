package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"termkeeper/internal/openapitest"
	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
	"termkeeper/internal/storetest"
	"termkeeper/internal/temporalclient"
	"termkeeper/worker"
	"termkeeper/workflows"
)

const (
	// nonsenseRequests is how many requests the test sends unless FUZZ_REQUESTS says another number.
	nonsenseRequests = 4000
	nonsenseSenders  = 8
	// nonsensePatience is longer than any route may take.
	nonsensePatience = atProvider + 10*time.Second
	nonsensePause    = 100 * time.Millisecond
	maxFaults        = 10
)

// TestNonsenseBreaksNothing sends requests that are made up from the document, valid, nearly valid and absurd, with keys
// of all roles and none, to the API on a real database and a real Temporal. Nothing is down, so there is no 5xx; nothing
// hangs; every answer is as the document says.
func TestNonsenseBreaksNothing(t *testing.T) {
	t.Parallel()
	f := newFuzzer(t)
	t.Logf("FUZZ_SEED=%d FUZZ_REQUESTS=%d", f.seed, f.requests)
	var senders sync.WaitGroup
	for i := range uint64(nonsenseSenders) {
		senders.Go(func() {
			sender := &fuzzSender{fuzzer: f, made: openapitest.Nonsense{
				Document: f.document, Random: rand.New(rand.NewPCG(f.seed, i)), Memory: f.memory, Weight: weights,
			}}
			for range f.requests / nonsenseSenders {
				sender.one(t.Context())
			}
		})
	}
	senders.Wait()
	f.reachTheRest(t)
	t.Logf("answers by status: %v; asked again because the machine was too slow: %d", f.statuses, f.again)
	for _, entry := range f.logs.TakeAll() { // what is behind a 500
		if entry.ContextMap()["status"] == int64(http.StatusInternalServerError) || entry.Message != "request" {
			t.Log(entry.Message, entry.ContextMap())
		}
	}
	require.Empty(t, strings.Join(f.faults, "\n"))
	for _, o := range f.document.Operations() {
		require.NotZero(t, f.successes[o.ID], "no request of %s succeeded, so its handler was never reached", o.ID)
	}
}

// reachTheRest sends more requests, most of them to operations of which none succeeded yet: chance misses one now and then.
func (f *fuzzer) reachTheRest(t *testing.T) {
	t.Helper()
	const rounds, each, often = 30, 200, 3000
	for round := range uint64(rounds) {
		now, all := maps.Clone(weights), true
		for _, o := range f.document.Operations() {
			if f.successes[o.ID] == 0 {
				now[o.ID], all = often, false
			}
		}
		if all {
			return
		}
		sender := &fuzzSender{fuzzer: f, made: openapitest.Nonsense{
			Document: f.document, Random: rand.New(rand.NewPCG(f.seed, nonsenseSenders+round)), Memory: f.memory, Weight: now,
		}}
		for range each {
			sender.one(t.Context())
		}
	}
}

// weights are those of operations that leave work behind at Temporal or ask it much, and of one that has so many fields that few
// of its requests are right in all of them.
var weights = map[string]int{
	"createOrder": 300,
	"listJobs":    20, "triggerJob": 25, "pauseJob": 25, "unpauseJob": 25, "readDocument": 10, "readVersionedDocument": 10, "thankCustomer": 10,
}

// learnt are the fields of an answer that later requests use, and the words that they become.
func learnt(o *openapitest.Operation) map[string]string {
	fields := map[string]string{"next_cursor": "cursor", "external_event_id": "external_event_id", "subscription_id": "subscriptions id"}
	if o.ID != "listSubscriptionHistory" { // the ids of its entries lead nowhere
		fields["id"] = o.Tag + " id"
	}
	return fields
}

type fuzzer struct {
	*system
	sim      *simulator.Simulator
	document *openapitest.Document
	memory   *openapitest.Memory
	seed     uint64
	requests int
	base     string
	client   *http.Client

	mu        sync.Mutex
	statuses  map[int]int
	successes map[string]int // by operation
	again     int
	faults    []string
}

func newFuzzer(t *testing.T) *fuzzer {
	t.Helper()
	document, err := openapitest.Parse(Document())
	require.NoError(t, err)
	f := &fuzzer{
		document: document, seed: rand.Uint64(), requests: nonsenseRequests, statuses: map[int]int{}, successes: map[string]int{},
		client: &http.Client{
			Timeout: nonsensePatience, Transport: &http.Transport{MaxIdleConnsPerHost: nonsenseSenders, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	t.Cleanup(f.client.CloseIdleConnections)
	if text := os.Getenv("FUZZ_SEED"); text != "" {
		f.seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	if text := os.Getenv("FUZZ_REQUESTS"); text != "" {
		f.requests, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	address, namespace := storetest.Temporal(t)
	temporal, err := temporalclient.Lazy(temporalclient.Options{
		Environ: []string{"TEMPORAL_ADDRESS=" + address, "TEMPORAL_NAMESPACE=" + namespace}, Identity: "test", Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	t.Cleanup(temporal.Close)
	require.NoError(t, (&worker.Schedules{Client: temporal, Environment: "test", Jobs: workflows.Catalog(), Out: io.Discard}).Apply(t.Context()))
	t.Cleanup(func() { // they would go on ticking until the last test of all
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		for _, id := range workflows.JobIDs() {
			if err := temporal.ScheduleClient().GetHandle(ctx, id).Delete(ctx); err != nil {
				t.Logf("the schedule %s stays: %v", id, err)
			}
		}
	})
	pool := storetest.New(t)
	core, logs := observer.New(zapcore.ErrorLevel)
	f.system = assemble(t, pool, pool, temporal, zap.New(core))
	f.logs = logs
	f.sim, err = simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	f.orders.Provider = payment.NewClient(secret.NewText("sk_test_1"), f.sim.StripeURL())
	t.Cleanup(func() {
		f.orders.Provider.Close()
		require.NoError(t, f.sim.Close(context.WithoutCancel(t.Context())))
	})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = f.server.Serve(listener) }()
	t.Cleanup(func() { _ = f.server.http.Close() })
	f.base = "http://" + listener.Addr().String()
	f.seedRows(t)
	return f
}

// seedRows makes what requests can be about from the start, and the words for them.
func (f *fuzzer) seedRows(t *testing.T) {
	t.Helper()
	f.exec(t, `INSERT INTO plans (key, features, stripe_price_ids, duration, price_amount, price_currency) VALUES
		('pro', '{images}', '{price_pro}', '720 hours', 1900, 'USD'), ('basic', '{}', '{price_basic}', NULL, NULL, NULL)`)
	f.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) SELECT 'u_' || n, 'pro', 'active', now() + n * interval '1 minute' FROM generate_series(1, 50) n`)
	f.exec(t, `INSERT INTO outbox (id, topic, dedupe_key, status) VALUES ($1, 'access.ended', 'k', 'dispatched')`, goldenID)
	f.exec(t, `INSERT INTO deliveries (outbox_id, channel, target, topic, status, message_id, finished_at)
		SELECT $1, 'email', n || '@example.org', 'access.ended', 'dead', n || '@termkeeper', now() FROM generate_series(1, 500) n`, goldenID)
	f.exec(t, `INSERT INTO job_runs (job, run_id, trigger, scheduled_at, published_at, started_at, deadline_at)
		SELECT 'subscription-expiry', 'run_' || n, 'manual', now(), now(), now(), now() FROM generate_series(1, 20) n`)
	words := map[string][]string{
		"plan": {"pro", "basic"}, "key": {"pro", "basic"}, "feature": {"images", "video"}, "features": {"images"}, "currency": {"USD", "eur", "JPY"},
		"stripe_price_id": {"price_pro", "price_basic", "price_new"}, "customer_id": {"cus_1", "cus_2"}, "job": append(workflows.JobIDs(), "no-such-job"),
		"locale": {"en", "zh-CN"}, "time_zone": {"Europe/Berlin", "UTC", "Asia/Shanghai"}, "type": {"customer.subscription.updated"},
		"expires_in": {"1h", "30m", "25h"}, "success_url": {"https://example.org/thanks"}, "cancel_url": {"https://example.org/cart?id=1"},
		"url": {"https://example.org/hook", "https://example.com/hook"}, "topic": {"access.started", "access.ended", "order.*", "*"},
	}
	for n := range 60 {
		words["user_id"] = append(words["user_id"], fmt.Sprint("u_", n))
		words["key"] = append(words["key"], fmt.Sprint("plan-", n))
		words[headerKey] = append(words[headerKey], fmt.Sprint("key-", n))
	}
	for _, table := range []string{"subscriptions", "deliveries"} { // what a list shows first is not enough to choose from
		rows, err := f.pool.Query(t.Context(), `SELECT id::text FROM `+table+` LIMIT 100`)
		require.NoError(t, err)
		words[table+" id"], err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
	}
	words["orders id"] = f.seedOrders(t)
	f.memory = openapitest.NewMemory(words)
}

// seedOrders makes orders at an offline Stripe: some that wait, some that are fulfilled and some that nobody knows what to do with.
func (f *fuzzer) seedOrders(t *testing.T) (ids []string) {
	t.Helper()
	for n := range 60 {
		o, err := f.orders.Create(t.Context(), order.New{
			UserID: fmt.Sprint("u_", n), PlanKey: "pro", Amount: 1900, Currency: "USD", ExpiresIn: time.Hour, LatePayment: order.LateFulfil, SuccessURL: "https://example.org/",
		})
		require.NoError(t, err)
		ids = append(ids, o.ID)
		if n%3 == 0 {
			continue
		}
		_, err = f.sim.PayCheckout(o.SessionID, simulator.PayOptions{Amount: map[int]int64{1: 1900, 2: 500}[n%3]})
		require.NoError(t, err)
		_, err = f.orders.Verify(t.Context(), o.ID, "test")
		require.NoError(t, err)
	}
	return ids
}

// fuzzSender sends one request after another.
type fuzzSender struct {
	*fuzzer
	made   openapitest.Nonsense
	events int
}

// one makes up a request, sends it and judges the answer. A client that cannot send a request at all, for instance for the
// sake of its header, sends none.
func (s *fuzzSender) one(ctx context.Context) {
	made := s.made.Next()
	if made.Operation.ID == "receiveStripeEvent" && made.Method == http.MethodPost {
		s.sign(&made)
	}
	if key, has := s.authorization(made.Operation); has {
		made.Header.Set("Authorization", key)
	}
	for deadline := time.Now().Add(nonsensePatience); time.Now().Before(deadline); { // as on every busy machine, see ask
		status, kind, body, err := s.send(ctx, made)
		switch {
		case err != nil:
			s.fault(made, 0, err.Error())
			return
		case status == 0:
			return
		case status == http.StatusServiceUnavailable && tooSlow(body):
			s.mu.Lock()
			s.again++
			s.mu.Unlock()
			select { // a client that is told to come again does not come at once
			case <-ctx.Done():
			case <-time.After(nonsensePause):
			}
			continue
		}
		s.judge(made, status, kind, body)
		return
	}
	s.fault(made, http.StatusServiceUnavailable, "again and again")
}

func tooSlow(body []byte) bool {
	return slices.ContainsFunc([]string{"database_unavailable", "not_stored", "temporal_unavailable"}, func(code string) bool {
		return bytes.Contains(body, []byte(`"code":"`+code+`"`))
	})
}

func (s *fuzzSender) send(ctx context.Context, made openapitest.Made) (status int, kind string, body []byte, err error) {
	target, err := url.Parse(s.base + made.Target)
	if err != nil {
		return 0, "", nil, nil // no client can send it
	}
	request, err := http.NewRequestWithContext(ctx, made.Method, target.String(), bytes.NewReader(made.Body))
	if err != nil {
		return 0, "", nil, nil // no client can send it
	}
	request.URL, request.Header = target, made.Header
	response, err := s.client.Do(request)
	if err != nil {
		if strings.Contains(err.Error(), "invalid header field value") {
			return 0, "", nil, nil
		}
		return 0, "", nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, response.Header.Get("Content-Type"), body, err
}

// judge adds to what the server's handler checks against the document already: see holdToDocument.
func (s *fuzzSender) judge(made openapitest.Made, status int, kind string, body []byte) {
	switch {
	case status >= http.StatusInternalServerError:
		s.fault(made, status, string(body))
	case status >= http.StatusBadRequest && kind != problemType:
		s.fault(made, status, "is no problem but "+kind)
	case status >= http.StatusMultipleChoices && status < http.StatusBadRequest:
		s.fault(made, status, "leads elsewhere")
	case status < http.StatusMultipleChoices:
		s.memory.Learn(s.made.Random, body, learnt(made.Operation))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses[status]++
	if status < http.StatusMultipleChoices && made.Method == made.Operation.Method {
		s.successes[made.Operation.ID]++
	}
}

func (s *fuzzSender) fault(made openapitest.Made, status int, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) < maxFaults {
		s.faults = append(s.faults, fmt.Sprintf("%s %.500s %v %.500q: %d %.500s", made.Method, made.Target, slices.Sorted(maps.Keys(made.Header)), made.Body, status, what))
	}
}

// authorization is the header that says who asks: mostly somebody who may, sometimes any role, nobody or a stranger.
func (s *fuzzSender) authorization(o *openapitest.Operation) (string, bool) {
	as := roleNamed(o.Role)
	switch n := s.made.Random.IntN(100); {
	case n < 4:
		return "", false
	case n < 6:
		return "Bearer tk_" + strings.Repeat("A", 43), true
	case n < 20:
		as = role(1 + s.made.Random.IntN(int(roleAdmin)))
	case n < 60:
		as = roleAdmin
	}
	key, has := s.keys[as]
	return "Bearer " + key, has
}

// sign makes most requests about events good ones by their signature, and many of them events of a subscription.
func (s *fuzzSender) sign(made *openapitest.Made) {
	random := s.made.Random
	if random.IntN(100) < 70 {
		s.events++
		now := time.Now().Add(time.Duration(random.Int64N(int64(48*time.Hour)) - int64(24*time.Hour)))
		id := fmt.Sprintf("evt_%d_%d", random.IntN(1<<20), s.events)
		sub := fmt.Sprint("sub_", random.IntN(30))
		fixture := simulator.SubscriptionFixture{
			ID: sub, CustomerID: fmt.Sprint("cus_", random.IntN(5)), PriceID: []string{"price_pro", "price_basic", "price_none"}[random.IntN(3)],
			UserID: []string{fmt.Sprint("u_", random.IntN(60)), "", "a\u2028b"}[random.IntN(3)], Status: []string{"", "trialing", "past_due", "canceled", "unpaid", "paused", "nonsense"}[random.IntN(7)],
			PeriodStart: now, PeriodEnd: now.Add(time.Duration(random.Int64N(int64(800*time.Hour))) - 100*time.Hour), StartDate: now, CancelAtPeriodEnd: random.IntN(4) == 0,
		}
		shape := []simulator.Shape{simulator.Shape2023, simulator.Shape2025}[random.IntN(2)]
		made.Body = simulator.EventBody(shape, id, []string{"customer.subscription.created", "customer.subscription.updated", "customer.subscription.deleted", "nonsense"}[random.IntN(4)], now, fixture)
		if random.IntN(3) == 0 { // one value of it is something else
			var tree any
			if json.Unmarshal(made.Body, &tree) == nil {
				s.made.Disturb(tree)
				made.Body = openapitest.Encode(tree)
			}
		}
	}
	if random.IntN(100) < 90 {
		made.Header.Set("Stripe-Signature", signature(secretNew, time.Now(), string(made.Body)))
	}
}
