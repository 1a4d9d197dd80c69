package intake_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/intake"
	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
)

// shop is an intake that hears of orders from the simulated provider, each event twice.
type shop struct {
	*bench
	sim     *simulator.Simulator
	settler *settlement.Settler
}

func newShop(t *testing.T, shape simulator.Shape) *shop {
	t.Helper()
	s := &shop{settler: &settlement.Settler{Owner: t.Name(), Log: zap.NewNop()}}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err == nil {
			event, malformed := payment.ParseEvent(raw)
			err = malformed
			for range 2 {
				if err == nil {
					_, err = s.intake.Receive(r.Context(), event, raw)
				}
			}
		}
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(endpoint.Close)
	var err error
	s.sim, err = simulator.Start(t.Context(), simulator.Options{Endpoint: simulator.Endpoint{URL: endpoint.URL, Secret: "whsec_of_the_test_endpoint", Shape: shape}})
	require.NoError(t, err)
	client := payment.NewClient(secret.NewText(stripeKey), s.sim.StripeURL())
	s.settler.Provider = client
	s.bench = benchWith(t, intake.Settings{Owner: t.Name(), Leeway: time.Hour, Orders: s.settler, Money: client})
	s.settler.Store = s.store
	t.Cleanup(client.Close)
	t.Cleanup(func() { require.NoError(t, s.sim.Close(context.WithoutCancel(t.Context()))) })
	return s
}

func (s *shop) sell() order.Order {
	s.t.Helper()
	o, err := s.settler.Create(s.t.Context(), order.New{
		UserID: "u_1", PlanKey: "pro", Amount: 1000, Currency: "USD", Duration: time.Hour, ExpiresIn: time.Hour, LatePayment: order.LateFulfil,
		SuccessURL: "https://example.com/done", Actor: "test",
	})
	require.NoError(s.t, err)
	return o
}

func (s *shop) pay(o order.Order, options simulator.PayOptions) string {
	s.t.Helper()
	paid, err := s.sim.PayCheckout(o.SessionID, options)
	require.NoError(s.t, err)
	return paid.ID
}

// becomes waits until the order has the status and every event is done.
func (s *shop) becomes(o order.Order, want order.Status) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		now, err := s.store.Order(s.t.Context(), o.ID)
		require.NoError(s.t, err)
		return now.Status == want && s.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'pending'`) == 0 && s.delivered()
	}, 10*time.Second, 5*time.Millisecond)
}

func (s *shop) delivered() bool {
	for _, d := range s.sim.Deliveries() {
		if d.State != "delivered" && d.State != "dropped" {
			return false
		}
	}
	return true
}

func TestEventsSettleOrders(t *testing.T) {
	t.Parallel()
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		t.Run(string(shape), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, shape)
			paid := s.sell()
			s.pay(paid, simulator.PayOptions{})
			s.becomes(paid, order.Fulfilled)
			_, err := s.sim.ExtraPayment(paid.SessionID, simulator.PayOptions{})
			require.NoError(t, err)
			require.Eventually(t, func() bool { return s.count(`SELECT count(*) FROM payments WHERE state = 'review'`) == 1 }, 10*time.Second, 5*time.Millisecond)

			closed := s.sell()
			_, err = s.settler.Provider.ExpireCheckout(t.Context(), closed.SessionID, "")
			require.NoError(t, err)
			s.becomes(closed, order.Expired)

			slow := s.sell()
			way := s.pay(slow, simulator.PayOptions{Async: true})
			s.becomes(slow, order.Pending)
			_, err = s.sim.FinishPayment(way, true, false)
			require.NoError(t, err)
			s.becomes(slow, order.Fulfilled)

			never := s.sell()
			way = s.pay(never, simulator.PayOptions{Async: true})
			_, err = s.sim.FinishPayment(way, false, false)
			require.NoError(t, err)
			s.becomes(never, order.Expired)

			require.Equal(t, 2, s.count(`SELECT count(*) FROM order_fulfilments`))
			require.Zero(t, s.count(`SELECT count(*) FROM payment_webhook_events WHERE status IN ('failed', 'quarantined')`))
			n, err := s.store.UnsettledMoney(t.Context())
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}

// While a dispute is open the order stays as it is. Won, it is over; lost, the money is gone and the plan says what becomes of
// the time.
func TestDisputeOfAnOrder(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		won            bool
		policy, access string
		order          order.Status
	}{
		"won":                    {true, "end", "active", order.Fulfilled},
		"lost":                   {false, "end", "canceled", order.Refunded},
		"lost, the policy keeps": {false, "keep", "active", order.Refunded},
	} {
		for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
			t.Run(string(shape)+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, shape)
				_, err := s.pool.Exec(t.Context(), `UPDATE plans SET refund_policy = $1`, one.policy)
				require.NoError(t, err)
				o := s.sell()
				paid := s.pay(o, simulator.PayOptions{})
				s.becomes(o, order.Fulfilled)
				dispute, err := s.sim.OpenDispute(paid, simulator.DisputeOptions{})
				require.NoError(t, err)
				s.becomes(o, order.Fulfilled)
				_, err = s.sim.CloseDispute(dispute.ID, one.won, false)
				require.NoError(t, err)
				s.becomes(o, one.order)
				require.Equal(t, 1, s.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.dispute_opened'`))
				require.Equal(t, !one.won, s.count(`SELECT count(*) FROM payment_orders WHERE reason = 'dispute_lost'`) == 1)
				require.Equal(t, 1, s.count(`SELECT count(*) FROM subscriptions WHERE status = '`+one.access+`'`))
				for _, call := range s.sim.Calls() {
					require.NotEqual(t, "POST /v1/refunds", call.Method+" "+call.Path, "the bank has taken it already")
				}
			})
		}
	}
}

// An event only makes us ask. Without an answer it is tried again, and the order stays as it is.
func TestEventOfAnOrderWaitsForTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t, simulator.Shape2023)
	o := s.sell()
	require.NoError(t, s.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Status500, Count: -1}))
	s.pay(o, simulator.PayOptions{})
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND lease_owner IS NULL AND attempts > 0`) > 0 && s.delivered()
	}, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, 1, s.count(`SELECT count(*) FROM payment_orders WHERE status = 'pending'`))
	require.Zero(t, s.count(`SELECT count(*) FROM subscriptions`))
	s.sim.ClearRESTFaults()
	require.Eventually(t, func() bool {
		_, err := s.pool.Exec(t.Context(), `UPDATE payment_webhook_events SET next_attempt_at = now() WHERE status = 'pending'`)
		require.NoError(t, err)
		_, err = s.intake.ApplyDue(t.Context(), 100)
		require.NoError(t, err)
		return s.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'pending'`) == 0
	}, 10*time.Second, 5*time.Millisecond)
	s.becomes(o, order.Fulfilled)
	require.Equal(t, 1, s.count(`SELECT count(*) FROM order_fulfilments`))
}

// Another system may sell by the same account: its orders are not ours, and nothing fails for them.
func TestEventOfAnOrderThatIsNotOurs(t *testing.T) {
	t.Parallel()
	s := newShop(t, simulator.Shape2025)
	for _, id := range []string{store.NewID(), "their-order-17"} {
		session, err := s.settler.Provider.CreateCheckout(t.Context(), payment.NewCheckout{
			OrderID: id, UserID: "u_9", PlanName: "Theirs", Amount: 500, Currency: "USD", ExpiresAt: time.Now().Add(time.Hour), SuccessURL: "https://example.com",
		}, "key "+id)
		require.NoError(t, err)
		_, err = s.sim.PayCheckout(session.ID, simulator.PayOptions{})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed' AND reason = 'no_order'`) >= 4 && s.delivered()
	}, 10*time.Second, 5*time.Millisecond)
	require.Zero(t, s.count(`SELECT count(*) FROM payment_webhook_events WHERE status IN ('failed', 'quarantined')`))
	require.Zero(t, s.count(`SELECT count(*) FROM payments WHERE order_id IS NOT NULL`))
}
