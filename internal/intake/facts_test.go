package intake_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/simulator"
	"termkeeper/internal/subscription"
)

// oracle is the provider as far as it is asked: it answers with what it holds, or not at all.
type oracle struct {
	mu      sync.Mutex
	says    map[string]subscription.Provider
	down    bool
	asked   []string
	asking  func(id string) // before an answer
	unknown bool            // it knows none of them
}

var errDown = &payment.NoAnswerError{Why: "it is down"}

func (o *oracle) fetch(_ context.Context, id string) (subscription.Provider, time.Time, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, id)
	if o.asking != nil {
		o.asking(id)
	}
	switch p, ok := o.says[id]; {
	case o.down:
		return p, time.Time{}, errDown
	case o.unknown || !ok:
		return p, time.Time{}, &payment.NoAnswerError{Why: "no such subscription", NotFound: true}
	default:
		return p, time.Now().UTC().Truncate(time.Second), nil
	}
}

func (o *oracle) set(change func(o *oracle)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(o)
}

func (o *oracle) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.asked)
}

func askingBench(t *testing.T) (*bench, *oracle) {
	t.Helper()
	o := &oracle{says: map[string]subscription.Provider{}}
	return benchWith(t, intake.Settings{Owner: t.Name(), Leeway: time.Hour, Fetch: o.fetch}), o
}

// The periods of the subscriptions below: the second one runs now.
var (
	first  = time.Now().UTC().Truncate(time.Second).AddDate(0, 0, -40)
	second = first.AddDate(0, 0, 30)
	third  = second.AddDate(0, 0, 30)
)

func fixture(status string, start, end time.Time) simulator.SubscriptionFixture {
	return simulator.SubscriptionFixture{
		ID: "sub_1", CustomerID: "cus_1", PriceID: "price_1", UserID: "u_1", Status: status, PeriodStart: start, PeriodEnd: end, StartDate: first,
	}
}

// said is what the provider answers where its webhook would say f.
func said(t *testing.T, f simulator.SubscriptionFixture) subscription.Provider {
	t.Helper()
	p, err := payment.Subscription(f.JSON(simulator.Shape2023))
	require.NoError(t, err)
	return p
}

func (b *bench) tells(id, kind string, created time.Time, f simulator.SubscriptionFixture) {
	b.t.Helper()
	b.receive(simulator.EventBody(simulator.Shape2025, id, kind, created, f))
	b.settled()
}

// event sends an event about another object.
func (b *bench) event(id, kind string, created time.Time, object string) {
	b.t.Helper()
	b.receive(fmt.Appendf(nil, `{"id":%q,"object":"event","type":%q,"created":%d,"data":{"object":%s}}`, id, kind, created.Unix(), object))
	b.settled()
}

func (b *bench) settled() {
	b.t.Helper()
	b.eventually(0, `SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND lease_owner IS NOT NULL`)
}

func (b *bench) status(id string) string {
	b.t.Helper()
	var s string
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `SELECT status || coalesce(' ' || reason, '') FROM payment_webhook_events WHERE external_event_id = $1`, id).Scan(&s))
	return s
}

func (b *bench) row() subscription.Subscription {
	b.t.Helper()
	rows, err := b.store.ProviderSubscriptions(b.t.Context(), []string{"sub_1"})
	require.NoError(b.t, err)
	return rows["sub_1"]
}

// later lets the pauses of all events be over, and applies what is due.
func (b *bench) later() {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), `UPDATE payment_webhook_events SET next_attempt_at = now() WHERE status IN ('pending', 'quarantined')`)
	require.NoError(b.t, err)
	_, err = b.intake.ApplyDue(b.t.Context(), 100)
	require.NoError(b.t, err)
}

// invoice of the shapes: up to acacia the subscription stands at the top, from basil on in the parent.
func invoice(id string, newShape bool, total int, until time.Time) string {
	where := `"subscription":"sub_1"`
	if newShape {
		where = `"parent":{"type":"subscription_details","subscription_details":{"subscription":"sub_1"}}`
	}
	return fmt.Sprintf(`{"id":%q,"object":"invoice","created":%d,"total":%d,%s,"lines":{"data":[{"period":{"start":1,"end":%d}}]}}`,
		id, until.AddDate(0, 0, -30).Unix(), total, where, until.Unix())
}

func TestAPaidInvoiceMakesUsAsk(t *testing.T) {
	t.Parallel()
	for _, newShape := range []bool{false, true} {
		b, provider := askingBench(t)
		b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
		provider.says["sub_1"] = said(t, fixture("active", second, third))
		b.event("evt_2", "invoice.paid", second.Add(time.Hour), invoice("in_1", newShape, 1000, third))
		require.Equal(t, third, b.row().ExpiresAt)
		b.event("evt_3", "invoice.payment_succeeded", second.Add(time.Hour), invoice("in_1", newShape, 1000, third))
		require.Equal(t, "processed nothing_new", b.status("evt_3"))
		require.Equal(t, 1, provider.count(), "the second event tells the same")
		require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'renewed'`))
		b.tells("evt_4", "customer.subscription.updated", second, fixture("active", second, third))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'renewed'`), "and so does the third, which was late")
	}
}

func TestAPaidInvoiceWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
	provider.set(func(o *oracle) { o.down = true })
	b.event("evt_2", "invoice.paid", second.Add(time.Hour), invoice("in_1", true, 1000, third))
	require.Equal(t, "pending", b.status("evt_2"))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE next_attempt_at > now() AND last_error LIKE '%did not answer%'`))
	require.Equal(t, second, b.row().ExpiresAt, "an invoice moves nothing by itself")
	require.True(t, b.row().NeedsReconcile)
	provider.set(func(o *oracle) { o.down, o.says["sub_1"] = false, said(t, fixture("active", second, third)) })
	b.later()
	require.Equal(t, "processed", b.status("evt_2"))
	require.Equal(t, third, b.row().ExpiresAt)
	require.False(t, b.row().NeedsReconcile)
}

func TestAPaidInvoiceWithoutAKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.event("evt_0", "invoice.paid", second, invoice("in_0", true, 1000, third))
	require.Equal(t, "processed no_answer", b.status("evt_0"))
	b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
	b.event("evt_2", "invoice.paid", second.Add(time.Hour), invoice("in_1", true, 1000, third))
	require.Equal(t, "processed no_answer", b.status("evt_2"))
	require.True(t, b.row().NeedsReconcile)
	require.Equal(t, second, b.row().ExpiresAt)
}

func TestInvoicesThatTellNothing(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
	b.event("evt_2", "invoice.paid", first.Add(time.Hour), invoice("in_free", true, 0, third))
	b.event("evt_3", "invoice.paid", first.Add(time.Hour), fmt.Sprintf(`{"id":"in_2","object":"invoice","created":%d,"total":500,"subscription":"sub_1",
		"lines":{"data":[{"proration":true,"period":{"end":%d}}]}}`, first.Unix(), third.Unix()))
	b.event("evt_4", "invoice.paid", first.Add(time.Hour), invoice("in_first", true, 1000, second))
	b.event("evt_5", "invoice.paid", first.Add(time.Hour), `{"id":"in_3","object":"invoice","total":100}`)
	require.Equal(t, "ignored not_a_subscription", b.status("evt_5"))
	require.Zero(t, provider.count())
	require.Equal(t, int64(1), b.row().Version)
}

func TestAPaidInvoiceOfASubscriptionThatIsNotKnownYet(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	provider.says["sub_1"] = said(t, fixture("active", first, second))
	b.event("evt_1", "invoice.paid", first, invoice("in_1", true, 1000, second))
	require.Equal(t, subscription.Active, b.row().Status)
	require.Equal(t, "u_1", b.row().UserID)
}

func TestAFailedPayment(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
	provider.set(func(o *oracle) { o.down = true })
	b.event("evt_2", "invoice.payment_failed", second.Add(time.Hour), invoice("in_1", false, 1000, third))
	require.Equal(t, "processed no_answer", b.status("evt_2"), "it waits for customer.subscription.updated")
	require.Equal(t, int64(1), b.row().Version)
	provider.set(func(o *oracle) { o.down, o.says["sub_1"] = false, said(t, fixture("past_due", second, third)) })
	b.event("evt_3", "invoice.payment_failed", second.Add(time.Hour), invoice("in_1", false, 1000, third))
	require.Equal(t, subscription.PastDue, b.row().Status)
	require.Equal(t, second, b.row().ExpiresAt)
}

func TestADeletedCustomer(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	other := fixture("active", second, third)
	other.ID = "sub_2"
	b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
	b.tells("evt_2", "customer.subscription.created", second, other)
	ended := fixture("canceled", first, second)
	ended.EndedAt = first.AddDate(0, 0, 5)
	provider.set(func(o *oracle) { o.says["sub_1"] = said(t, ended) }) // and nothing of the other one
	deleted := second.AddDate(0, 0, 3)
	b.event("evt_3", "customer.deleted", deleted, `{"id":"cus_1","object":"customer","deleted":true}`)
	require.Equal(t, subscription.Canceled, b.row().Status)
	require.Equal(t, ended.EndedAt, b.row().ExpiresAt, "the provider knows when")
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE external_id = 'sub_2' AND status = 'canceled' AND expires_at = $1`, deleted))
	// What the deletion ended stays so when an event comes late and the provider is silent.
	provider.set(func(o *oracle) { o.down = true })
	b.tells("evt_4", "customer.subscription.updated", second.Add(time.Minute), other)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE external_id = 'sub_2' AND status = 'canceled' AND expires_at = $1`, deleted))
	b.event("evt_5", "customer.deleted", deleted, `{"id":"cus_9","object":"customer"}`)
	require.Equal(t, "processed no_row", b.status("evt_5"))
}

const session = `{"id":"cs_1","object":"checkout.session","mode":"subscription","subscription":"sub_1","customer":"cus_1","client_reference_id":%q,
	"metadata":{"user_id":"u_meta"},"customer_details":{"email":"ada@example.com","name":"Ada"}}`

func TestACheckoutTellsWhoseSubscriptionItIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	nobodys := fixture("active", first, third)
	nobodys.UserID = ""
	b.tells("evt_1", "customer.subscription.created", first, nobodys)
	require.Equal(t, "quarantined user_unmapped", b.status("evt_1"))
	b.event("evt_2", "checkout.session.completed", first, fmt.Sprintf(session, "u_1"))
	b.eventually(1, `SELECT count(*) FROM payment_webhook_events WHERE external_event_id = 'evt_1' AND status = 'processed'`)
	require.Equal(t, "u_1", b.row().UserID)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM users WHERE id = 'u_1' AND email = 'ada@example.com' AND name = 'Ada'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM stripe_customers WHERE customer_id = 'cus_1' AND user_id = 'u_1'`))

	b.event("evt_3", "checkout.session.completed", first, `{"id":"cs_2","object":"checkout.session","mode":"payment","client_reference_id":"u_1"}`)
	require.Equal(t, "ignored not_a_subscription", b.status("evt_3"))
	b.event("evt_4", "checkout.session.completed", first, `{"id":"cs_3","object":"checkout.session","subscription":"sub_3"}`)
	require.Equal(t, "ignored names_no_user", b.status("evt_4"))
}

func TestWhoseSubscriptionItIsDoesNotDependOnTheOrder(t *testing.T) {
	t.Parallel()
	linked := fixture("active", first, third)
	linked.UserID = ""
	for user, f := range map[string]simulator.SubscriptionFixture{"u_checkout": linked, "u_1": fixture("active", first, third)} {
		for _, checkoutFirst := range []bool{false, true} {
			b := newBench(t)
			_, err := b.pool.Exec(t.Context(), `INSERT INTO stripe_customers (customer_id, user_id) VALUES ('cus_1', 'u_link')`)
			require.NoError(t, err)
			tell := []func(){
				func() { b.tells("evt_1", "customer.subscription.created", first, f) },
				func() { b.event("evt_2", "checkout.session.completed", first, fmt.Sprintf(session, "u_checkout")) },
			}
			if checkoutFirst {
				tell[0], tell[1] = tell[1], tell[0]
			}
			tell[0]()
			tell[1]()
			require.Equal(t, user, b.row().UserID, "checkout first: %v", checkoutFirst)
		}
	}
}

func TestTheCustomersMetadataIsAskedFor(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	nobodys := fixture("active", first, third)
	nobodys.UserID = ""
	expanded := nobodys
	expanded.Customer = &simulator.CustomerFixture{ID: "cus_1", Email: "ada@example.com", UserID: "u_customer"}
	provider.says["sub_1"] = said(t, expanded)
	b.tells("evt_1", "customer.subscription.created", first, nobodys)
	require.Equal(t, "u_customer", b.row().UserID)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM users WHERE id = 'u_customer' AND email = 'ada@example.com'`))
}

func TestWhatAPayloadLacksIsAskedFor(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
	provider.set(func(o *oracle) { o.down = true })
	b.tells("evt_2", "customer.subscription.updated", second, fixture("active", time.Time{}, time.Time{}))
	require.Equal(t, "pending", b.status("evt_2"))
	require.Equal(t, second, b.row().ExpiresAt, "no period is unknown, and unknown changes nothing")
	provider.set(func(o *oracle) { o.down, o.says["sub_1"] = false, said(t, fixture("active", second, third)) })
	b.later()
	require.Equal(t, third, b.row().ExpiresAt)
	require.Equal(t, "processed", b.status("evt_2"))

	b.tells("evt_3", "customer.subscription.updated", second.Add(time.Hour), fixture("hibernating", second, third))
	require.Equal(t, subscription.Active, b.row().Status, "the answer has a word that we know")
	provider.set(func(o *oracle) { o.says["sub_1"] = said(t, fixture("hibernating", second, third)) })
	b.tells("evt_4", "customer.subscription.updated", second.Add(2*time.Hour), fixture("hibernating", second, third))
	require.Equal(t, "quarantined unknown_status", b.status("evt_4"))
	require.Equal(t, third, b.row().ExpiresAt)
	provider.set(func(o *oracle) { o.says["sub_1"] = said(t, fixture("active", second, third)) })
	b.later()
	require.Equal(t, "processed", b.status("evt_4"), "it is asked about again when its hour is over")
}

func TestADateInTheFutureShutsOutNothing(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	b.tells("evt_1", "customer.subscription.updated", time.Now().AddDate(60, 0, 0), fixture("active", first, third))
	provider.says["sub_1"] = said(t, fixture("past_due", second, third))
	b.tells("evt_2", "customer.subscription.updated", second.Add(time.Hour), fixture("past_due", second, third))
	require.Equal(t, subscription.PastDue, b.row().Status)
	require.False(t, b.row().TruthAt.After(time.Now()), "%s", b.row().TruthAt)
	provider.says["sub_1"] = said(t, fixture("active", second, third))
	b.tells("evt_3", "customer.subscription.updated", second, fixture("active", second, third))
	require.Equal(t, subscription.Active, b.row().Status)
}

func TestADeletionThatIsNotFoundIsOne(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	provider.unknown = true
	b.tells("evt_1", "customer.subscription.updated", second, fixture("active", second, third))
	b.tells("evt_2", "customer.subscription.updated", second, fixture("active", second, third))
	require.Equal(t, subscription.Active, b.row().Status, "that it is not found does not prove its deletion")
	require.True(t, b.row().NeedsReconcile)
	ended := fixture("canceled", second, third)
	ended.EndedAt = second
	b.tells("evt_3", "customer.subscription.deleted", second.Add(-time.Second), ended)
	require.Equal(t, subscription.Canceled, b.row().Status, "to an event that says the same it does")
}

func TestARowThatMovesMeanwhileIsAskedAboutAgain(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	b.tells("evt_1", "customer.subscription.created", first, fixture("active", first, second))
	provider.says["sub_1"] = said(t, fixture("active", first, second))
	provider.asking = func(string) {
		if len(provider.asked) > 1 {
			provider.says["sub_1"] = said(t, fixture("past_due", second, third))
			return
		}
		if _, err := b.pool.Exec(context.WithoutCancel(t.Context()), `UPDATE subscriptions SET comp_until = now() + interval '1 day', version = version + 1`); err != nil {
			t.Error(err)
		}
	}
	b.tells("evt_2", "customer.subscription.updated", first, fixture("active", first, second))
	require.Equal(t, 2, provider.count())
	require.Equal(t, subscription.PastDue, b.row().Status)
	require.NotZero(t, b.row().CompUntil, "what an operator gave stays")
}

// A provider that is down or hangs stops nobody who needs no answer, and is not asked once for each event.
func TestASilentProviderStopsNobody(t *testing.T) {
	t.Parallel()
	const many = 60
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	var mu sync.Mutex
	asked := 0
	b := benchWith(t, intake.Settings{Owner: t.Name(), Leeway: time.Hour, Fetch: func(ctx context.Context, _ string) (subscription.Provider, time.Time, error) {
		mu.Lock()
		asked++
		mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
		}
		return subscription.Provider{}, time.Time{}, errDown
	}})
	about := func(i int) simulator.SubscriptionFixture {
		f := fixture("active", first, third)
		f.ID = fmt.Sprintf("sub_%d", i)
		return f
	}
	send := func(id string, created time.Time, f simulator.SubscriptionFixture) {
		b.receive(simulator.EventBody(simulator.Shape2025, id, "customer.subscription.updated", created, f))
	}
	for i := range many {
		send(fmt.Sprintf("evt_a%d", i), second, about(i))
	}
	b.eventually(many, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`)
	for i := range many {
		send(fmt.Sprintf("evt_b%d", i), first, about(i))
	}
	send("evt_new", second, about(many))
	b.eventually(1, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed' AND external_event_id = 'evt_new'`)
	require.Less(t, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`), 2*many+1, "the others wait for an answer")
	release()
	b.eventually(2*many+1, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`)
	mu.Lock()
	defer mu.Unlock()
	require.Less(t, asked, many)
}

// A panic of what asks is no answer, and ends nothing else.
func TestAPanicWhileAskingIsNoAnswer(t *testing.T) {
	t.Parallel()
	b, provider := askingBench(t)
	b.tells("evt_1", "customer.subscription.created", second, fixture("active", second, third))
	provider.asking = func(string) { panic(errors.New(strings.Repeat("x", 10))) }
	b.tells("evt_2", "customer.subscription.updated", second, fixture("active", second, third))
	require.Equal(t, "processed", b.status("evt_2"))
	require.True(t, b.row().NeedsReconcile)
}

func TestALinkHealsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	nobodys := fixture("active", first, third)
	nobodys.UserID = ""
	b.tells("evt_1", "customer.subscription.created", first, nobodys)
	require.Equal(t, "quarantined user_unmapped", b.status("evt_1"))
	_, err := b.store.LinkStripeCustomer(t.Context(), "cus_1", "u_7")
	require.NoError(t, err)
	b.intake.Heal()
	b.eventually(1, `SELECT count(*) FROM subscriptions WHERE user_id = 'u_7'`)
}
