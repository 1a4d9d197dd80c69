package intake_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/intake"
	"termkeeper/internal/order"
	"termkeeper/internal/settlement"
	"termkeeper/internal/simulator"
	"termkeeper/internal/subscription"
)

// allowed asks the rule in SQL whether a user has access now.
func (b *bench) allowed(user string) bool {
	return b.count(`SELECT count(*) FROM subscriptions s WHERE user_id = $1 AND gives_access(s, clock_timestamp())`, user) > 0
}

func TestARefundWithoutAnAnswerIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, fault := range []simulator.RESTFault{
		{Kind: simulator.Status500, Count: -1},
		{Kind: simulator.Status500, Count: -1, Method: http.MethodDelete},
		{Kind: simulator.HTML, Count: -1, Path: "/v1/refunds"},
		{Kind: simulator.Truncated, Count: -1, Path: "/v1/subscriptions"},
		{Kind: simulator.Reset, Count: -1, Method: http.MethodDelete},
	} {
		t.Run(fault.Kind+fault.Method+fault.Path, func(t *testing.T) {
			t.Parallel()
			m := pays(t, simulator.Shape2025)
			m.renews()
			b := m.hears("end", true)
			before := m.all(0)
			b.hearAll(before)
			m.refunds(m.payment(1), 0)
			news := m.all(len(before))
			require.NoError(t, m.sim.AddRESTFault(fault))
			for _, body := range news {
				b.receive(body)
				b.settled()
			}
			require.True(t, b.allowed("u_1"), "nothing is guessed")
			require.NotZero(t, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND next_attempt_at > now() AND last_error IS NOT NULL`))
			m.sim.ClearRESTFaults()
			b.later()
			b.eventually(0, `SELECT count(*) FROM payment_webhook_events WHERE status NOT IN ('processed', 'ignored')`)
			require.False(t, b.allowed("u_1"))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'canceled' AND detail ->> 'note' LIKE '%taken back by re_%'`))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'access.ended'`))
		})
	}
}

// The change was made, and only its answer was lost: it is found to be made.
func TestAnEndWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	m := pays(t, simulator.Shape2023)
	m.renews()
	m.refunds(m.payment(1), 0)
	b := m.hears("end", true)
	require.NoError(t, m.sim.AddRESTFault(simulator.RESTFault{Kind: simulator.Reset, Method: http.MethodDelete, After: true}))
	b.hearAll(m.all(0))
	require.False(t, b.allowed("u_1"))
	require.NotZero(t, m.cancels())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'canceled'`))
}

func TestTwoEventsOfOneRefundCountOnce(t *testing.T) {
	t.Parallel()
	for _, key := range []bool{true, false} {
		m := pays(t, simulator.Shape2023)
		m.renews()
		m.refunds(m.payment(1), 500)
		m.refunds(m.payment(1), 400)
		b := m.hears("end", key)
		b.hearAll(m.all(0))
		require.Equal(t, 2, b.count(`SELECT count(*) FROM refunds`))
		require.Equal(t, 2, b.count(`SELECT count(*) FROM audit_log WHERE action = 'refund_succeeded'`))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM payments WHERE refunded_amount = 900 AND amount = 1000`))
		require.Equal(t, 2, b.count(`SELECT count(*) FROM payments WHERE subscription_id = $1 AND period_end IS NOT NULL`, m.sub), "one of each period")
		require.True(t, b.allowed("u_1"))
	}
}

func TestARefundThatFailsTakesNothingBack(t *testing.T) {
	t.Parallel()
	m := pays(t, simulator.Shape2025)
	m.renews()
	refund, err := m.sim.RefundPayment(m.payment(1), simulator.RefundOptions{Pending: true})
	require.NoError(t, err)
	b := m.hears("end", true)
	heard := m.all(0)
	b.hearAll(heard)
	require.True(t, b.allowed("u_1"), "it is only on its way")
	_, err = m.sim.FinishRefund(refund.ID, false)
	require.NoError(t, err)
	b.hearAll(m.all(len(heard)))
	require.True(t, b.allowed("u_1"))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM refunds WHERE status = 'failed'`))
	require.Zero(t, m.cancels())
}

// Money for prorations took no time, so giving it back takes none.
func TestARefundOfProrationsMovesNothing(t *testing.T) {
	t.Parallel()
	for _, key := range []bool{true, false} {
		m := pays(t, simulator.Shape2023)
		m.renews()
		team := m.post("/v1/prices", url.Values{
			"product_data[name]": {"Team"}, "currency": {"usd"}, "unit_amount": {"3000"}, "recurring[interval]": {"day"}, "recurring[interval_count]": {"30"},
		})
		m.post("/v1/subscriptions/"+m.sub, url.Values{
			"items[0][id]": {"si_" + m.sub}, "items[0][price]": {team}, "proration_behavior": {"always_invoice"},
		})
		m.refunds(m.payment(2), 0)
		b := m.hears("end", key)
		_, err := b.pool.Exec(t.Context(), `INSERT INTO plans (key, stripe_price_ids, refund_policy) VALUES ('team', ARRAY[$1], 'end')`, team)
		require.NoError(t, err)
		b.hearAll(m.all(0))
		require.True(t, b.allowed("u_1"))
		require.Equal(t, "active", m.ends(b).status)
		require.Equal(t, 1, b.count(`SELECT count(*) FROM audit_log WHERE action = 'access_kept' AND detail ->> 'why' = 'no_period'`))
	}
}

func TestARefundOfSomethingElse(t *testing.T) {
	t.Parallel()
	m := pays(t, simulator.Shape2025)
	m.renews()
	session := m.post("/v1/checkout/sessions", url.Values{
		"mode": {"payment"}, "line_items[0][price_data][currency]": {"usd"}, "line_items[0][price_data][unit_amount]": {"500"},
		"line_items[0][price_data][product_data][name]": {"A book"}, "line_items[0][quantity]": {"1"}, "success_url": {"https://example.com/paid"},
	})
	paid, err := m.sim.PayCheckout(session, simulator.PayOptions{})
	require.NoError(t, err)
	m.refunds(paid.ID, 0)
	b := m.hears("end", true)
	b.hearAll(m.all(0))
	require.Zero(t, b.count(`SELECT count(*) FROM payments WHERE external_id = $1`, paid.ID))
	require.True(t, b.allowed("u_1"))
}

func TestARefundOfAnOrderGoesToTheOrder(t *testing.T) {
	t.Parallel()
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		m := pays(t, shape)
		b := m.hears("end", true)
		orders := &settlement.Settler{Store: b.store, Provider: m.client(), Owner: t.Name(), Log: zap.NewNop()}
		b.drain()
		b.intake = intake.New(b.store, intake.Settings{Owner: t.Name(), Leeway: time.Hour, Fetch: m.client().Subscription, Money: m.client(), Orders: orders}, zap.NewNop())
		t.Cleanup(func() { require.NoError(t, b.intake.Drain(t.Context())) })
		m.sim.AdvanceTo(time.Now())
		made, err := orders.Create(t.Context(), order.New{
			UserID: "u_2", PlanKey: "pro", PlanName: "Pro", Amount: 500, Currency: "USD", Duration: 30 * day, ExpiresIn: time.Hour, LatePayment: order.LateFulfil,
			SuccessURL: "https://example.com/paid", Actor: "test",
		})
		require.NoError(t, err)
		paid, err := m.sim.PayCheckout(made.SessionID, simulator.PayOptions{})
		require.NoError(t, err)
		m.refunds(paid.ID, 0)
		backwards := m.all(0)
		for i := len(backwards) - 1; i >= 0; i-- { // the refund is heard of before the payment
			b.receive(backwards[i])
			b.settled()
		}
		b.later()
		b.eventually(0, `SELECT count(*) FROM payment_webhook_events WHERE status NOT IN ('processed', 'ignored')`)
		after, err := b.store.Order(t.Context(), made.ID)
		require.NoError(t, err)
		require.Equal(t, order.Refunded, after.Status, shape)
		require.False(t, b.allowed("u_2"), shape)
	}
}

// The end of a subscription that another one took the place of is its own.
func TestTheEndOfASupersededSubscriptionLeavesTheNewOne(t *testing.T) {
	t.Parallel()
	for _, key := range []bool{true, false} {
		m := pays(t, simulator.Shape2025)
		m.renews()
		old := m.sub
		request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, m.sim.StripeURL()+"/v1/subscriptions/"+old, nil)
		require.NoError(t, err)
		customer := ""
		for _, body := range m.all(0) {
			if _, rest, found := strings.Cut(string(body), `"customer":"`); found {
				customer, _, _ = strings.Cut(rest, `"`)
			}
		}
		m.post("/v1/subscriptions", url.Values{"customer": {customer}, "items[0][price]": {m.prices[0]}, "metadata[user_id]": {"u_1"}})
		before := m.all(0)
		b := m.hears("end", key)
		b.hearAll(before)
		request.SetBasicAuth(stripeKey, "")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		m.refunds(m.payment(1), 0) // and its money goes back, too
		b.hearAll(m.all(len(before)))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE external_id = $1 AND status = 'canceled'`, old))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE external_id <> $1 AND status = 'active'`, old))
		require.True(t, b.allowed("u_1"))
	}
}

// Events that carry the subscription are news of it as customer.subscription.updated is.
func TestEventsThatCarryTheSubscription(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.tells("evt_1", "customer.subscription.created", first, fixture("trialing", first, second))
	b.tells("evt_2", "customer.subscription.trial_will_end", second.AddDate(0, 0, -3), fixture("trialing", first, second))
	require.Equal(t, subscription.Trialing, b.row().Status)
	require.Equal(t, second.AddDate(0, 0, -3), b.row().TruthAt)
	b.tells("evt_4", "customer.subscription.resumed", second.Add(2*time.Hour), fixture("active", second, third))
	require.Equal(t, subscription.Active, b.row().Status)
	b.tells("evt_3", "customer.subscription.paused", second, fixture("paused", first, second))
	require.Equal(t, subscription.Active, b.row().Status, "it came late")
	require.Equal(t, third, b.row().ExpiresAt)
	b.tells("evt_5", "customer.subscription.paused", second.Add(3*time.Hour), fixture("paused", second, third))
	require.Equal(t, subscription.Paused, b.row().Status)
	require.False(t, b.allowed("u_1"))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'paused'`))
}

// What paid an invoice tells of the renewal as the invoice itself does, in the shape that names the invoice and in the one that does not.
func TestAPaymentOfAnInvoiceMakesUsAsk(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"invoice_payment.paid", "payment_intent.succeeded"} {
		for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
			m := pays(t, shape)
			b := m.hears("keep", true)
			bought := m.all(0)
			b.hearAll(bought)
			m.renews()
			told := 0
			for _, body := range m.all(len(bought)) {
				if strings.Contains(string(body), `"type":"`+kind+`"`) {
					b.hearAll([][]byte{body})
					told++
				}
			}
			if told == 0 {
				require.Equal(t, []any{"invoice_payment.paid", simulator.Shape2023}, []any{kind, shape}, "only the newer shape has it")
				continue
			}
			require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'renewed'`), "%s %s", kind, shape)
			require.Equal(t, 1, b.count(`SELECT count(*) FROM payments WHERE subscription_id = $1 AND period_end > now()`, m.sub), "%s %s", kind, shape)
			b.hearAll(m.all(len(bought)))
			require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'renewed'`), "%s %s", kind, shape)
		}
	}
}
