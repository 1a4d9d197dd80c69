package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
)

// shop is a system that sells by the simulated provider.
type shop struct {
	*system
	sim *simulator.Simulator
	api *apiProcess
}

const stripeKey = "sk_test_of_the_end_to_end_tests"

// newShop starts an API. Cadences of its jobs are short.
func newShop(t *testing.T) *shop {
	t.Helper()
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.WithoutCancel(t.Context()))) })
	s := &shop{system: newSystemWithJobs(t), sim: sim}
	s.environ = append(s.environ, "STRIPE_API_KEY="+stripeKey, "STRIPE_API_BASE="+sim.StripeURL(),
		"TERMKEEPER_JOB_ORDER_EXPIRY_EVERY=1s", "TERMKEEPER_JOB_ORDER_RECONCILE_EVERY=1s", "TERMKEEPER_JOB_WEBHOOK_APPLY_EVERY=1s")
	s.exec(t, `INSERT INTO plans (key, name, features, price_amount, price_currency, duration, refund_policy)
		VALUES ('pro', 'Pro', '{images}', 1000, 'USD', '720 hours', 'end')`)
	s.api = s.startAPI(t)
	return s
}

// orderSeen is an order as the API shows it.
type orderSeen struct {
	ID          string `json:"id"`
	Status      string `json:"status"`
	CheckoutURL string `json:"checkout_url"`
	SessionID   string `json:"provider_session_id"`
}

func (s *shop) order(t *testing.T, user, expiresIn string) orderSeen {
	t.Helper()
	var o orderSeen
	s.api.want(t, http.StatusCreated, http.MethodPost, "/v1/orders", map[string]any{"user_id": user, "plan": "pro", "expires_in": expiresIn}).decode(t, &o)
	require.Equal(t, "pending", o.Status)
	require.NotEmpty(t, o.CheckoutURL)
	require.NotEmpty(t, o.SessionID)
	return o
}

func (s *shop) pay(t *testing.T, o orderSeen, dropWebhook bool) {
	t.Helper()
	_, err := s.sim.PayCheckout(o.SessionID, simulator.PayOptions{DropWebhook: dropWebhook})
	require.NoError(t, err)
}

func (s *shop) status(t *testing.T, o orderSeen) string {
	t.Helper()
	return s.text(t, `SELECT status FROM payment_orders WHERE id = $1`, o.ID)
}

func (s *shop) awaitStatus(t *testing.T, o orderSeen, want string) {
	t.Helper()
	await(t, "the order is "+want, func() error {
		if status := s.status(t, o); status != want {
			return errors.New(status)
		}
		return nil
	})
}

// requireMoneySettled demands what must hold of all money at rest.
func (s *shop) requireMoneySettled(t *testing.T) {
	t.Helper()
	require.Zero(t, s.count(t, `SELECT count(*) FROM payments WHERE order_id IS NOT NULL AND captured_at IS NOT NULL
		AND coalesce(state NOT IN ('fulfilled', 'refunded', 'review'), true)`), "captured money that is neither fulfilled nor refunded nor under review")
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_orders WHERE status IN ('paid', 'fulfilling', 'refunding')`), "orders left half done")
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_orders o WHERE (o.status = 'fulfilled') <>
		EXISTS (SELECT 1 FROM payments p WHERE p.order_id = o.id AND p.state = 'fulfilled')`), "fulfilled orders without their payment, or the other way round")
}

// The walk of a buyer: an order is paid one second before its deadline, and no event comes of it. Another one is never paid.
func TestOrderThatIsPaidInTheLastSecond(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.startWorker(t)
	never := s.order(t, "u_never", "2s")
	paid := s.order(t, "u_paid", "2s")
	s.pay(t, paid, true)
	s.awaitStatus(t, paid, "fulfilled")
	s.awaitStatus(t, never, "expired")
	said, _, err := s.api.tryAccess(t.Context(), "u_paid")
	require.NoError(t, err)
	require.True(t, said.Allowed, said.Reason)
	said, _, err = s.api.tryAccess(t.Context(), "u_never")
	require.NoError(t, err)
	require.False(t, said.Allowed)
	_, err = s.sim.PayCheckout(never.SessionID, simulator.PayOptions{})
	require.Error(t, err, "nobody can pay an expired order")

	// By an event it is fulfilled within seconds, with Temporal or without.
	require.NoError(t, s.sim.SetEndpoint(simulator.Endpoint{URL: s.api.url + "/v1/webhooks/stripe", Secret: webhookSecret, Shape: simulator.Shape2025}))
	told := s.order(t, "u_told", "1h")
	s.pay(t, told, false)
	s.awaitStatus(t, told, "fulfilled")
	s.api.want(t, http.StatusOK, http.MethodPost, "/v1/orders/"+told.ID+"/refund", nil)
	s.awaitStatus(t, told, "refunded")
	said, _, err = s.api.tryAccess(t.Context(), "u_told")
	require.NoError(t, err)
	require.False(t, said.Allowed, "its plan takes back what was refunded")
	s.awaitEventsDone(t)
	s.requireMoneySettled(t)
}

// The ways in which an order comes to be fulfilled or refunded, and is killed in the middle of it.
type orderKill struct{ by, place string }

func orderKills(random *rand.Rand) []orderKill {
	fulfilling := []string{"order_paid", "order_claimed_fulfilling", "order_fulfil_before_commit", "order_finished"}
	refunding := []string{"order_refunding", "order_claimed_refunding", "order_refund_sent", "order_refund_before_commit", "order_finished"}
	var kills []orderKill
	for i := range 12 {
		kills = append(kills, orderKill{"verify", fulfilling[i%len(fulfilling)]}, orderKill{"event", fulfilling[i%len(fulfilling)]})
	}
	for i := range 24 {
		kills = append(kills, orderKill{"refund", refunding[i%len(refunding)]})
	}
	random.Shuffle(len(kills), func(i, j int) { kills[i], kills[j] = kills[j], kills[i] })
	// A worker that dies holds its run for the heartbeat's time-out, so these are few.
	return append(kills, orderKill{"job fulfils", fulfilling[random.IntN(len(fulfilling))]}, orderKill{"job refunds", refunding[1+random.IntN(len(refunding)-1)]})
}

// A process is killed in the middle of fulfilling or refunding an order, fifty times. Each order is completed once.
func TestKilledWhileOrdersAreFulfilledAndRefunded(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	kills := orderKills(rand.New(rand.NewPCG(seed, 5)))
	require.Len(t, kills, 50)
	var refunded, fulfilled []orderSeen
	for n, k := range kills {
		o := s.order(t, fmt.Sprintf("u_%d", n), "1h")
		doomed := s.program("TERMKEEPER_FAILPOINT=" + k.place)
		doomed.build = failpoints
		switch k.by {
		case "verify":
			s.pay(t, o, true)
			a := s.launchAPI(t, doomed)
			_, err := a.call(t.Context(), http.MethodPost, "/v1/orders/"+o.ID+"/verify", nil)
			require.Error(t, err, "%v", k)
			requireKilled(t, a.process)
		case "event":
			a := s.launchAPI(t, doomed)
			require.NoError(t, s.sim.SetEndpoint(simulator.Endpoint{URL: a.url + "/v1/webhooks/stripe", Secret: webhookSecret, Shape: simulator.Shape2025}))
			s.pay(t, o, false)
			requireKilled(t, a.process)
			require.NoError(t, s.sim.SetEndpoint(simulator.Endpoint{URL: s.api.url + "/v1/webhooks/stripe", Secret: webhookSecret, Shape: simulator.Shape2025}))
		case "refund":
			s.pay(t, o, true)
			s.api.want(t, http.StatusOK, http.MethodPost, "/v1/orders/"+o.ID+"/verify", nil)
			require.Equal(t, "fulfilled", s.status(t, o))
			a := s.launchAPI(t, doomed)
			_, err := a.call(t.Context(), http.MethodPost, "/v1/orders/"+o.ID+"/refund", nil)
			require.Error(t, err, "%v", k)
			requireKilled(t, a.process)
		case "job fulfils":
			s.pay(t, o, true)
			s.exec(t, `UPDATE payment_orders SET next_attempt_at = now() WHERE id = $1`, o.ID)
			requireKilled(t, doomed.start(t, "worker"))
		case "job refunds":
			s.pay(t, o, true)
			s.api.want(t, http.StatusOK, http.MethodPost, "/v1/orders/"+o.ID+"/verify", nil)
			require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Path: "/v1/refunds"}))
			s.api.want(t, http.StatusOK, http.MethodPost, "/v1/orders/"+o.ID+"/refund", nil)
			require.Equal(t, "refunding", s.status(t, o))
			s.exec(t, `UPDATE payment_orders SET next_attempt_at = now() WHERE id = $1`, o.ID)
			requireKilled(t, doomed.start(t, "worker"))
		}
		if strings.HasSuffix(k.by, "refund") || strings.HasSuffix(k.by, "refunds") {
			refunded = append(refunded, o)
		} else {
			fulfilled = append(fulfilled, o)
		}
	}
	t.Logf("%d kills; left half done: %d", len(kills), s.count(t, `SELECT count(*) FROM payment_orders WHERE status IN ('paid', 'fulfilling', 'refunding')`))
	// Their leases are of processes that are gone. They would pass within 90 s; the test does not wait for it.
	s.exec(t, `UPDATE payment_orders SET leased_until = now(), next_attempt_at = now() WHERE leased_until IS NOT NULL`)
	s.exec(t, `UPDATE payment_webhook_events SET leased_until = now() WHERE status = 'pending' AND leased_until IS NOT NULL`)
	s.startWorker(t)
	provider := payment.NewClient(secret.NewText(stripeKey), s.sim.StripeURL())
	t.Cleanup(provider.Close)
	given := func(o orderSeen) int {
		var total int64
		list, err := provider.Refunds(t.Context(), s.text(t, `SELECT external_id FROM payments WHERE order_id = $1`, o.ID))
		require.NoError(t, err)
		for _, r := range list {
			total += r.Amount
		}
		return int(total)
	}
	for _, o := range fulfilled {
		s.awaitStatus(t, o, "fulfilled")
		require.Zero(t, given(o))
		require.Equal(t, 1, s.count(t, `SELECT count(*) FROM order_fulfilments f JOIN subscriptions s ON s.id = f.subscription_id
			WHERE f.order_id = $1 AND s.status = 'active' AND s.expires_at - s.started_at = interval '720 hours'`, o.ID))
	}
	for _, o := range refunded {
		s.awaitStatus(t, o, "refunded")
		require.Equal(t, 1000, given(o), "given back once")
		require.Equal(t, 1, s.count(t, `SELECT count(*) FROM order_fulfilments f JOIN subscriptions s ON s.id = f.subscription_id
			WHERE f.order_id = $1 AND f.taken_back_at IS NOT NULL AND s.status = 'canceled'`, o.ID))
	}
	s.awaitEventsDone(t)
	require.Equal(t, len(kills), s.count(t, `SELECT count(*) FROM order_fulfilments`))
	require.Equal(t, len(kills), s.count(t, `SELECT count(*) FROM outbox WHERE topic = 'order.fulfilled'`))
	require.Equal(t, len(refunded), s.count(t, `SELECT count(*) FROM outbox WHERE topic = 'order.refunded'`))
	s.requireMoneySettled(t)
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_orders WHERE leased_until IS NOT NULL`), "leases that nobody gave back")
}

// The provider is down for the whole deadline of an order that was paid, and then answers.
func TestOrdersOutliveAnOutageOfTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	paid, unpaid := s.order(t, "u_paid", "3s"), s.order(t, "u_unpaid", "3s")
	s.pay(t, paid, true)
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Reset, Count: -1}))
	s.startWorker(t)
	await(t, "both were asked about in vain after their deadline", func() error {
		if n := s.count(t, `SELECT count(*) FROM payment_orders WHERE asked_at > expires_at AND unanswered_since IS NOT NULL`); n < 2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	require.Equal(t, "pending", s.status(t, paid))
	require.Equal(t, "pending", s.status(t, unpaid))
	s.sim.ClearRESTFaults()
	s.awaitStatus(t, paid, "fulfilled")
	s.awaitStatus(t, unpaid, "expired")
	s.requireMoneySettled(t)
}
