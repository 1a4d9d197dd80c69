package intake_test

import (
	"context"
	"encoding/json"
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

// life is a subscription that was lived at the simulated provider, with all webhooks that were sent of it.
type life struct {
	t    *testing.T
	sim  *simulator.Simulator
	sub  string
	sent [][]byte
	// prices of the plans pro and team
	prices [2]string
}

const stripeKey = "sk_test_1"

// post calls the simulated provider and returns the id of what it answers with.
func (l *life) post(path string, form url.Values) string {
	l.t.Helper()
	request, err := http.NewRequestWithContext(l.t.Context(), http.MethodPost, l.sim.StripeURL()+path, strings.NewReader(form.Encode()))
	require.NoError(l.t, err)
	request.SetBasicAuth(stripeKey, "")
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	require.NoError(l.t, err)
	defer func() { require.NoError(l.t, response.Body.Close()) }()
	var object struct{ ID string }
	require.NoError(l.t, json.NewDecoder(response.Body).Decode(&object))
	require.Equal(l.t, http.StatusOK, response.StatusCode)
	return object.ID
}

func (l *life) change(c simulator.SubscriptionChange) {
	l.t.Helper()
	require.True(l.t, l.sim.ChangeSubscription(l.sub, c))
}

// live plays ten events of a subscription, and those of its invoices: incomplete, active, renewed, past due for two periods, recovered, set
// to end and back, another price, deleted. Between two of them step passes; without any, several are of one second.
func live(t *testing.T, shape simulator.Shape, step time.Duration, deleted bool) *life {
	t.Helper()
	l := &life{t: t}
	var mu sync.Mutex
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		l.sent = append(l.sent, body)
	}))
	t.Cleanup(endpoint.Close)
	var err error
	l.sim, err = simulator.Start(t.Context(), simulator.Options{
		ClockStart: time.Now().AddDate(0, -4, 0), Endpoint: simulator.Endpoint{URL: endpoint.URL, Secret: "whsec_of_the_test_endpoint", Shape: shape},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.sim.Close(context.WithoutCancel(t.Context()))) })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	pass := func() { l.sim.Advance(step) }
	customer := l.post("/v1/customers", url.Values{"email": {"ada@example.com"}, "name": {"Ada"}})
	product := l.post("/v1/products", url.Values{"name": {"Pro"}})
	price := func(amount string) string {
		return l.post("/v1/prices", url.Values{"product": {product}, "currency": {"usd"}, "unit_amount": {amount}, "recurring[interval]": {"month"}})
	}
	pro, team := price("1000"), price("2000")
	l.sub = l.post("/v1/subscriptions", url.Values{
		"customer": {customer}, "items[0][price]": {pro}, "payment_behavior": {"default_incomplete"}, "metadata[user_id]": {"u_1"},
	})
	yes, active := true, "active"
	pass()
	l.change(simulator.SubscriptionChange{Status: &active})
	l.change(simulator.SubscriptionChange{Fails: &yes})
	l.sim.Advance(63 * 24 * time.Hour) // renewed, past due, and past due in the next period
	l.change(simulator.SubscriptionChange{Pay: true})
	pass()
	l.post("/v1/subscriptions/"+l.sub, url.Values{"cancel_at_period_end": {"true"}})
	pass()
	l.post("/v1/subscriptions/"+l.sub, url.Values{"cancel_at_period_end": {"false"}})
	pass()
	l.post("/v1/subscriptions/"+l.sub, url.Values{"items[0][id]": {"si_" + l.sub}, "items[0][price]": {team}})
	pass()
	if deleted {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, l.sim.StripeURL()+"/v1/subscriptions/"+l.sub, nil)
		require.NoError(t, err)
		request.SetBasicAuth(stripeKey, "")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	} else {
		l.sim.Advance(31 * 24 * time.Hour) // and past due again
	}
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(l.sim.Deliveries(), func(d simulator.Delivery) bool { return d.State != "delivered" })
	}, 10*time.Second, 5*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	kinds := map[string]int{}
	for _, body := range l.sent {
		event, err := payment.ParseEvent(body)
		require.NoError(t, err)
		kinds[event.Type]++
	}
	require.GreaterOrEqual(t, kinds["customer.subscription.updated"]+kinds["customer.subscription.deleted"]+kinds["customer.subscription.created"], 10, "%v", kinds)
	require.NotZero(t, kinds["invoice.paid"], "%v", kinds)
	l.prices = [2]string{pro, team}
	return l
}

// terms is the whole row but how it was learned.
const terms = `SELECT coalesce((SELECT row_to_json(s)::jsonb - '{id,version,created_at,updated_at,truth_at,needs_reconcile}'::text[] FROM subscriptions s), 'null')::text`

// forget makes the database empty, but for the plans.
func (b *bench) forget() {
	b.t.Helper()
	for _, table := range []string{
		"payment_webhook_events", "provider_truths", "stripe_customers", "stripe_checkouts", "stripe_invoices", "refunds", "disputes", "payments", "subscriptions",
		"subscription_events", "outbox", "audit_log", "users",
	} {
		_, err := b.pool.Exec(b.t.Context(), `DELETE FROM `+table)
		require.NoError(b.t, err)
	}
}

// hear makes the database empty, sends the bodies and returns the row in which they end.
func (b *bench) hear(bodies [][]byte, together bool) string {
	b.t.Helper()
	b.forget()
	done := func() bool {
		return b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND lease_owner IS NOT NULL`) == 0
	}
	for _, body := range bodies {
		b.receive(body)
		if !together {
			require.Eventually(b.t, done, 10*time.Second, time.Millisecond)
		}
	}
	require.Eventually(b.t, done, 10*time.Second, time.Millisecond)
	for range 2 { // what was quarantined heals, what had no answer is not waited for
		_, err := b.intake.ApplyDue(b.t.Context(), 100)
		require.NoError(b.t, err)
	}
	require.Zero(b.t, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status IN ('quarantined', 'failed')`))
	var row string
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), terms).Scan(&row))
	return row
}

func TestOrdersOfALife(t *testing.T) {
	t.Parallel()
	const orders = 30
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		for _, c := range []struct {
			name             string
			step             time.Duration
			deleted, answers bool
		}{
			{"ends deleted, no answer", time.Minute, true, false},
			{"ends past due, no answer", time.Minute, false, false},
			{"ends deleted, the provider answers, ties", 0, true, true},
			{"ends past due, the provider answers, ties", 0, false, true},
		} {
			t.Run(string(shape)+" "+c.name, func(t *testing.T) {
				t.Parallel()
				l := live(t, shape, c.step, c.deleted)
				settings := intake.Settings{Owner: t.Name(), Leeway: time.Hour}
				if c.answers {
					client := payment.NewClient(secret.NewText(stripeKey), l.sim.StripeURL())
					t.Cleanup(client.Close)
					settings.Fetch = client.Subscription
				}
				b := benchWith(t, settings)
				_, err := b.pool.Exec(t.Context(), `UPDATE plans SET stripe_price_ids = ARRAY[$1], grace_period = '72h'`, l.prices[0])
				require.NoError(t, err)
				_, err = b.pool.Exec(t.Context(), `INSERT INTO plans (key, stripe_price_ids) VALUES ('team', ARRAY[$1])`, l.prices[1])
				require.NoError(t, err)
				want := b.hear(l.sent, false)
				require.NotEqual(t, "null", want)
				for i := range orders {
					shuffled := slices.Clone(l.sent)
					if i == 0 {
						slices.Reverse(shuffled)
					} else {
						rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
					}
					shuffled = append(shuffled, shuffled[rand.IntN(len(shuffled))])
					require.JSONEq(t, want, b.hear(shuffled, i%2 == 1), "order %d: %s", i, shuffled)
				}
			})
		}
	}
}
