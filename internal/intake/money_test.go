package intake_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
)

const day = 24 * time.Hour

// money is a subscription at the simulated provider that was paid for twice: its second period runs now.
type money struct{ life }

// pays starts a provider that keeps all webhooks it sends, and plays the subscription up to its second period.
func pays(t *testing.T, shape simulator.Shape) *money {
	t.Helper()
	m := &money{life: life{t: t}}
	var mu sync.Mutex
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		m.sent = append(m.sent, body)
	}))
	t.Cleanup(endpoint.Close)
	var err error
	m.sim, err = simulator.Start(t.Context(), simulator.Options{
		ClockStart: time.Now().Add(-45 * day), PaymentEvents: true,
		Endpoint: simulator.Endpoint{URL: endpoint.URL, Secret: "whsec_of_the_test_endpoint", Shape: shape},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.sim.Close(context.WithoutCancel(t.Context()))) })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	customer := m.post("/v1/customers", url.Values{"email": {"ada@example.com"}, "name": {"Ada"}})
	product := m.post("/v1/products", url.Values{"name": {"Pro"}})
	m.prices[0] = m.post("/v1/prices", url.Values{
		"product": {product}, "currency": {"usd"}, "unit_amount": {"1000"}, "recurring[interval]": {"day"}, "recurring[interval_count]": {"30"},
	})
	m.sub = m.post("/v1/subscriptions", url.Values{"customer": {customer}, "items[0][price]": {m.prices[0]}, "metadata[user_id]": {"u_1"}})
	return m
}

// renews lets the second period begin and be paid for.
func (m *money) renews() {
	m.t.Helper()
	m.sim.AdvanceTo(time.Now().Add(-14 * day))
}

// all waits for the webhooks, and returns those that were sent since there were that many.
func (m *money) all(since int) [][]byte {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		return !slices.ContainsFunc(m.sim.Deliveries(), func(d simulator.Delivery) bool { return d.State != "delivered" })
	}, 10*time.Second, 5*time.Millisecond)
	return slices.Clone(m.sent[since:])
}

// payment is the payment intent of the nth period, from 0.
func (m *money) payment(n int) string {
	m.t.Helper()
	client := m.client()
	var ids []string
	for _, body := range m.all(0) {
		event, err := payment.ParseEvent(body)
		require.NoError(m.t, err)
		if event.Type == "payment_intent.succeeded" {
			ids = append(ids, event.ObjectID)
		}
	}
	require.Greater(m.t, len(ids), n)
	paid, err := client.Payment(m.t.Context(), ids[n])
	require.NoError(m.t, err)
	require.True(m.t, paid.Captured())
	return ids[n]
}

func (m *money) client() *payment.Client {
	client := payment.NewClient(secret.NewText(stripeKey), m.sim.StripeURL())
	m.t.Cleanup(client.Close)
	return client
}

// refunds gives an amount back, 0 for all of it.
func (m *money) refunds(payment string, amount int64) {
	m.t.Helper()
	_, err := m.sim.RefundPayment(payment, simulator.RefundOptions{Amount: amount})
	require.NoError(m.t, err)
}

func (m *money) disputes(payment string) string {
	m.t.Helper()
	opened, err := m.sim.OpenDispute(payment, simulator.DisputeOptions{})
	require.NoError(m.t, err)
	return opened.ID
}

func (m *money) decides(dispute string, won bool) {
	m.t.Helper()
	m.sim.Advance(time.Hour)
	_, err := m.sim.CloseDispute(dispute, won, false)
	require.NoError(m.t, err)
}

// cancels counts how often the provider was asked to end the subscription.
func (m *money) cancels() int {
	n := 0
	for _, call := range m.sim.Calls() {
		if call.Method == http.MethodDelete && strings.HasPrefix(call.Path, "/v1/subscriptions/") {
			n++
		}
	}
	return n
}

// hears makes an instance with a key, or without one.
func (m *money) hears(policy string, key bool) *bench {
	m.t.Helper()
	settings := intake.Settings{Owner: m.t.Name(), Leeway: time.Hour}
	if key {
		settings.Money = m.client()
		settings.Fetch = settings.Money.Subscription
	}
	b := benchWith(m.t, settings)
	_, err := b.pool.Exec(m.t.Context(), `UPDATE plans SET stripe_price_ids = ARRAY[$1], refund_policy = $2`, m.prices[0], policy)
	require.NoError(m.t, err)
	return b
}

// outcome is what a tale of money ends in.
type outcome struct {
	status   string
	disputed bool
	cancels  int    // calls to the provider
	audit    string // the last decision in the audit log; "" for none
}

const (
	ended = "subscription_ended"
	kept  = "access_kept"
)

// tales are what can happen to the money of a subscription, with its plan's refund policy.
func tales() map[string]struct {
	policy string
	play   func(m *money)
	want   outcome
} {
	renewed := func(then func(m *money)) func(m *money) {
		return func(m *money) {
			m.renews()
			then(m)
		}
	}
	return map[string]struct {
		policy string
		play   func(m *money)
		want   outcome
	}{
		"an earlier period is paid back": {"end", renewed(func(m *money) { m.refunds(m.payment(0), 0) }), outcome{status: "active", audit: kept}},
		"an earlier period is paid back, renewed later": {"end", func(m *money) {
			m.refunds(m.payment(0), 0)
			m.renews()
		}, outcome{status: "active", audit: kept}},
		"a part is paid back":      {"end", renewed(func(m *money) { m.refunds(m.payment(1), 999) }), outcome{status: "active", audit: kept}},
		"the policy keeps access":  {"keep", renewed(func(m *money) { m.refunds(m.payment(1), 0) }), outcome{status: "active", audit: kept}},
		"the policy ends it":       {"end", renewed(func(m *money) { m.refunds(m.payment(1), 0) }), outcome{status: "canceled", cancels: 1, audit: ended}},
		"paid back in three parts": {"end", renewed(func(m *money) { m.refunds(m.payment(1), 300); m.refunds(m.payment(1), 300); m.refunds(m.payment(1), 0) }), outcome{status: "canceled", cancels: 1, audit: ended}},
		"a dispute is open":        {"end", renewed(func(m *money) { m.disputes(m.payment(1)) }), outcome{status: "active", disputed: true}},
		"a dispute is won":         {"end", renewed(func(m *money) { m.decides(m.disputes(m.payment(1)), true) }), outcome{status: "active"}},
		"a dispute is lost":        {"end", renewed(func(m *money) { m.decides(m.disputes(m.payment(1)), false) }), outcome{status: "canceled", disputed: true, cancels: 1, audit: ended}},
		"lost, the policy keeps":   {"keep", renewed(func(m *money) { m.decides(m.disputes(m.payment(1)), false) }), outcome{status: "active", disputed: true, audit: kept}},
		"lost, of an earlier period": {"end", renewed(func(m *money) { m.decides(m.disputes(m.payment(0)), false) }), outcome{
			status: "active", disputed: true, audit: kept,
		}},
		"a part back, the rest lost": {"end", renewed(func(m *money) {
			m.refunds(m.payment(1), 400)
			opened, err := m.sim.OpenDispute(m.payment(1), simulator.DisputeOptions{Amount: 600})
			require.NoError(m.t, err)
			m.decides(opened.ID, false)
		}), outcome{status: "canceled", disputed: true, cancels: 1, audit: ended}},
	}
}

// ends says what the row, the calls and the audit log have come to.
func (m *money) ends(b *bench) outcome {
	m.t.Helper()
	var o outcome
	require.NoError(m.t, b.pool.QueryRow(m.t.Context(), `SELECT status, disputed_at IS NOT NULL, coalesce(
		(SELECT action FROM audit_log WHERE action IN ('access_kept', 'subscription_ended') AND subject_id = s.id::text ORDER BY at DESC LIMIT 1), '') FROM subscriptions s`).
		Scan(&o.status, &o.disputed, &o.audit))
	o.cancels = m.cancels()
	return o
}

// orders of the events: as they came, backwards, the money first, and by chance; the last one comes twice.
func orders(sent [][]byte, chances int) map[string][][]byte {
	rank := func(body []byte) int {
		switch text := string(body); {
		case strings.Contains(text, `"refund`), strings.Contains(text, `dispute`):
			return 0
		}
		return 1
	}
	first := slices.Clone(sent)
	slices.SortStableFunc(first, func(a, b []byte) int { return rank(a) - rank(b) })
	backwards := slices.Clone(sent)
	slices.Reverse(backwards)
	list := map[string][][]byte{"as they came": sent, "backwards": backwards, "money first": first}
	for i := range chances {
		shuffled := slices.Clone(sent)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		list["by chance "+string(rune('a'+i))] = append(shuffled, shuffled[rand.IntN(len(shuffled))])
	}
	return list
}

// hearAll sends events one by one, and lets what waits come to an end.
func (b *bench) hearAll(bodies [][]byte) {
	b.t.Helper()
	for _, body := range bodies {
		b.receive(body)
		b.settled()
	}
	b.later()
	b.eventually(0, `SELECT count(*) FROM payment_webhook_events WHERE status NOT IN ('processed', 'ignored')`)
}

// With the provider reachable every order of the events of a tale ends in one state, and the provider is asked to end it once.
func TestOrdersOfRefundsAndDisputes(t *testing.T) {
	t.Parallel()
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		for name, tale := range tales() {
			t.Run(string(shape)+" "+name, func(t *testing.T) {
				t.Parallel()
				for _, order := range []string{"money first", "by chance a"} {
					m := pays(t, shape) // what the events lead to changes the provider, so each order has its own
					tale.play(m)
					b := m.hears(tale.policy, true)
					sent := m.all(0)
					b.hearAll(orders(sent, 1)[order])
					require.Equal(t, tale.want, m.ends(b), order)
					b.hearAll(m.all(len(sent)))
					require.Equal(t, tale.want, m.ends(b), "%s: after the news of what followed", order)
					require.LessOrEqual(t, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'canceled'`), 1, order)
					opened := 0
					if strings.Contains(name, "dispute") || strings.Contains(name, "lost") {
						opened = 1
					}
					require.Equal(t, opened, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.dispute_opened'`), order)
				}
			})
		}
	}
}

// Without a key the events alone lead to the same, and to the same row in any order.
func TestOrdersOfRefundsAndDisputesWithoutAKey(t *testing.T) {
	t.Parallel()
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		for name, tale := range tales() {
			t.Run(string(shape)+" "+name, func(t *testing.T) {
				t.Parallel()
				m := pays(t, shape)
				tale.play(m)
				b := m.hears(tale.policy, false)
				tale.want.cancels = 0
				want := ""
				for order, bodies := range orders(m.all(0), 1) {
					b.forget()
					b.hearAll(bodies)
					var row string
					require.NoError(t, b.pool.QueryRow(t.Context(), terms).Scan(&row))
					got := m.ends(b)
					require.Equal(t, tale.want.audit != "", got.audit != "", order)
					tale.want.audit = got.audit // one that a later period brought back was ended before
					require.Equal(t, tale.want, got, order)
					if want == "" {
						want = row
					}
					require.JSONEq(t, want, row, order)
				}
			})
		}
	}
}
