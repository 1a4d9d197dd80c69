package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/simulator"
)

const day = 24 * time.Hour

// An event says the same in both shapes of its payload, so the rows are the same but for whose they are.
func TestBothShapesOfAnEvent(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t)
	api := s.startAPI(t)
	start, at := now().Add(-10*day), now()
	rows := map[simulator.Shape]map[string]any{}
	var ids []string
	for _, shape := range []simulator.Shape{simulator.Shape2023, simulator.Shape2025} {
		about := simulator.SubscriptionFixture{
			ID: "sub_" + string(shape), CustomerID: "cus_1", UserID: "u_" + string(shape), PeriodStart: start, PeriodEnd: start.Add(30 * day),
			CancelAt: start.Add(20 * day),
		}
		for _, e := range []event{stripeEvent(shape, created, at, about), stripeEvent(shape, updated, at.Add(time.Second), about)} {
			api.send(t, e)
			require.Equal(t, "processed", s.awaitEvent(t, e).Status)
			ids = append(ids, e.id)
		}
		api.want(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+api.only(t, about.UserID).ID, nil).decode(t, ptr(rows, shape))
	}
	for _, row := range rows {
		require.Equal(t, start.Add(20*day).Format(time.RFC3339), row["expires_at"])
		for _, own := range []string{"id", "user_id", "external_id", "created_at", "updated_at"} {
			require.NotEmpty(t, row[own])
			delete(row, own)
		}
	}
	require.Equal(t, rows[simulator.Shape2023], rows[simulator.Shape2025])
	s.requireInvariants(t, ids...)
}

// ptr makes room in a map for what is decoded.
func ptr[K comparable](into map[K]map[string]any, key K) *map[string]any {
	row := map[string]any{}
	into[key] = row
	return &row
}

// A subscription without a period in any shape we know is set aside, and what is known stays as it is.
func TestEventWithoutAPeriod(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t)
	api := s.startAPI(t)
	about := simulator.SubscriptionFixture{ID: "sub_1", UserID: "u_1", PeriodStart: now().Add(-day), PeriodEnd: now().Add(day)}
	known := stripeEvent(simulator.Shape2025, created, now().Add(-time.Hour), about)
	api.send(t, known)
	s.awaitEvent(t, known)
	row := api.only(t, "u_1")
	before := api.want(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+row.ID, nil)
	ids := []string{known.id}

	without := func(id, user string) simulator.SubscriptionFixture {
		return simulator.SubscriptionFixture{ID: id, CustomerID: "cus_sub_1", UserID: user}
	}
	for _, e := range []event{
		stripeEvent(simulator.Shape2023, updated, now(), without("sub_1", "u_1")),
		stripeEvent(simulator.Shape2025, updated, now(), without("sub_1", "u_1")),
		stripeEvent(simulator.Shape2025, created, now(), without("sub_2", "u_2")),
	} {
		api.send(t, e)
		stored := s.awaitEvent(t, e)
		require.Equal(t, "quarantined", stored.Status)
		require.Equal(t, "period_missing", *stored.Reason)
		ids = append(ids, e.id)
	}
	after := api.want(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+row.ID, nil)
	require.JSONEq(t, string(before.body), string(after.body))
	require.Empty(t, api.subscriptionsOf(t, "u_2"))
	require.Equal(t, access{Reason: "no_subscription"}, withoutInstant(api.access(t, "u_2", time.Time{})))
	s.requireInvariants(t, ids...)
}

// story sends the events of one subscription in their order and remembers them.
type story struct {
	s    *system
	api  *apiProcess
	id   string
	sent []string
	from time.Time // of the first event: the subscription's start, whatever its period is
}

func (y *story) tell(t *testing.T, eventType string, at time.Time, status string, start, end time.Time) subscription {
	t.Helper()
	if y.from.IsZero() {
		y.from = start
	}
	e := stripeEvent(simulator.Shape2025, eventType, at, simulator.SubscriptionFixture{
		ID: "sub_" + y.id, UserID: "u_" + y.id, Status: status, PeriodStart: start, PeriodEnd: end, StartDate: y.from,
	})
	y.api.send(t, e)
	require.Equal(t, "processed", y.s.awaitEvent(t, e).Status)
	y.sent = append(y.sent, e.id)
	return y.api.only(t, "u_"+y.id)
}

func requireTerms(t *testing.T, row subscription, status string, expires time.Time, leeway, grace *time.Time) {
	t.Helper()
	require.Equal(t, status, row.Status)
	require.True(t, row.ExpiresAt.Equal(expires), "expires_at is %s and should be %s", row.ExpiresAt, expires)
	require.Equal(t, leeway, row.LeewayUntil, "leeway_until")
	require.Equal(t, grace, row.GracePeriodEndsAt, "grace_period_ends_at")
}

func after(at time.Time, d time.Duration) *time.Time {
	at = at.Add(d)
	return &at
}

// Stripe moves the period first and charges an hour later. What counts is what was paid.
func TestRenewalThatFails(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t) // three days of grace
	api := s.startAPI(t)
	const leeway, grace = time.Hour, 72 * time.Hour

	t.Run("and is paid, and fails again", func(t *testing.T) {
		y := &story{s: s, api: api, id: "paid"}
		third := now().Add(-2 * time.Hour) // the start of the third period
		first, second, fourth := third.Add(-60*day), third.Add(-30*day), third.Add(30*day)
		requireTerms(t, y.tell(t, created, first, "active", first, second), "active", second, after(second, leeway), nil)
		requireTerms(t, y.tell(t, updated, second, "active", second, third), "active", third, after(third, leeway), nil)
		requireTerms(t, y.tell(t, updated, second.Add(time.Hour), "past_due", second, third), "past_due", second, nil, after(second, grace))
		requireTerms(t, y.tell(t, updated, second.Add(26*time.Hour), "active", second, third), "active", third, after(third, leeway), nil)
		requireTerms(t, y.tell(t, updated, third, "active", third, fourth), "active", fourth, after(fourth, leeway), nil)
		row := y.tell(t, updated, third.Add(time.Hour), "past_due", third, fourth)
		requireTerms(t, row, "past_due", third, nil, after(third, grace))
		said := api.access(t, "u_paid", time.Time{})
		require.True(t, said.Allowed)
		require.Equal(t, "grace_period", said.Reason)
		require.True(t, api.access(t, "u_paid", third.Add(grace-time.Microsecond)).Allowed)
		require.False(t, api.access(t, "u_paid", third.Add(grace)).Allowed)
		require.Equal(t, []string{"created", "renewed", "past_due", "recovered", "renewed", "past_due"}, api.history(t, row.ID))
		s.requireInvariants(t, y.sent...)
	})

	t.Run("and is never paid", func(t *testing.T) {
		y := &story{s: s, api: api, id: "unpaid"}
		second := now().Add(-40 * day)
		first, third, fourth := second.Add(-30*day), second.Add(30*day), second.Add(60*day)
		y.tell(t, created, first, "active", first, second)
		y.tell(t, updated, second, "active", second, third)
		requireTerms(t, y.tell(t, updated, second.Add(time.Hour), "past_due", second, third), "past_due", second, nil, after(second, grace))
		// It goes on rolling while unpaid; the end of the new period is not a gift.
		requireTerms(t, y.tell(t, updated, third, "past_due", third, fourth), "past_due", second, nil, after(second, grace))
		row := y.tell(t, updated, third.Add(time.Hour), "unpaid", third, fourth)
		requireTerms(t, row, "past_due", second, nil, after(second, grace))
		said := api.access(t, "u_unpaid", time.Time{})
		require.False(t, said.Allowed)
		require.Equal(t, "expired", said.Reason)
		require.False(t, api.access(t, "u_unpaid", fourth.Add(-day)).Allowed)
		require.Equal(t, []string{"created", "renewed", "past_due"}, api.history(t, row.ID))
		s.requireInvariants(t, y.sent...)
	})
}

// The news of a renewal can only come after the end of the period. Until it does, nobody is denied, marked or told.
func TestRenewalWhoseNewsIsOnItsWay(t *testing.T) {
	t.Parallel()
	s := newSystemWithJobs(t)
	s.plan(t)
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.WithoutCancel(t.Context()))) })
	s.startWorker(t, "SMTP_URL="+sim.SMTPURL(), "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=2s")
	api := s.startAPI(t)

	end := now().Add(5 * time.Second)
	var sent []string
	send := func(e event) {
		api.send(t, e)
		require.Equal(t, "processed", s.awaitEvent(t, e).Status)
		sent = append(sent, e.id)
	}
	for _, user := range []string{"u_renews", "u_ends"} {
		api.want(t, http.StatusCreated, http.MethodPut, "/v1/users/"+user, map[string]any{"email": user + "@example.com"})
		send(stripeEvent(simulator.Shape2025, created, end.Add(-30*day), simulator.SubscriptionFixture{
			ID: "sub_" + user, UserID: user, PeriodStart: end.Add(-30 * day), PeriodEnd: end, CancelAtPeriodEnd: user == "u_ends",
		}))
	}
	reasons := map[string]int{}
	await(t, "the other one, which ends at the same instant, is marked and told", func() error {
		said := api.access(t, "u_renews", time.Time{})
		require.True(t, said.Allowed, "%+v", said)
		reasons[said.Reason]++
		messages := sim.Messages()
		if len(messages) == 0 {
			return errors.New("no mail yet")
		}
		require.Len(t, messages, 1)
		require.Contains(t, messages[0].To, "u_ends@example.com")
		return nil
	})
	require.Equal(t, "expired", api.only(t, "u_ends").Status)
	require.Positive(t, reasons["active"])
	require.Positive(t, reasons["renewing"])
	require.Len(t, reasons, 2)
	row := api.only(t, "u_renews")
	require.Equal(t, "active", row.Status)
	require.Zero(t, s.count(t, `SELECT count(*) FROM outbox WHERE subscription_id = $1 AND topic <> 'access.started'`, row.ID))

	send(stripeEvent(simulator.Shape2025, updated, end, simulator.SubscriptionFixture{
		ID: "sub_u_renews", UserID: "u_renews", PeriodStart: end, PeriodEnd: end.Add(30 * day),
	}))
	require.Equal(t, "active", api.access(t, "u_renews", time.Time{}).Reason)
	require.Equal(t, []string{"created", "renewed"}, api.history(t, row.ID))
	require.Equal(t, []string{"created", "ended"}, api.history(t, api.only(t, "u_ends").ID))
	require.Len(t, sim.Messages(), 1)
	s.requireInvariants(t, sent...)
}

// twoAPIs are two processes on one database.
func twoAPIs(t *testing.T) (*system, [2]*apiProcess) {
	t.Helper()
	s := newSystem(t)
	s.plan(t)
	return s, [2]*apiProcess{s.startAPI(t), s.startAPI(t)}
}

// The events of one second say nothing about their order. Every order ends in the same state.
func TestOrderWithinOneSecond(t *testing.T) {
	t.Parallel()
	s, apis := twoAPIs(t)
	start := now().Add(-time.Minute)
	about := func(n int, status string) simulator.SubscriptionFixture {
		return simulator.SubscriptionFixture{
			ID: fmt.Sprintf("sub_%d", n), UserID: fmt.Sprintf("u_%d", n), Status: status, PeriodStart: start, PeriodEnd: start.Add(30 * day),
		}
	}
	incomplete := func(n int) event { return stripeEvent(simulator.Shape2025, created, start, about(n, "incomplete")) }
	active := func(n int) event { return stripeEvent(simulator.Shape2025, updated, start, about(n, "active")) }
	requireActive := func(n int) {
		row := apis[0].only(t, fmt.Sprintf("u_%d", n))
		require.Equal(t, "active", row.Status)
		require.True(t, row.ExpiresAt.Equal(start.Add(30*day)))
		require.True(t, apis[1].access(t, row.UserID, time.Time{}).Allowed)
		require.Equal(t, []string{"created"}, apis[0].history(t, row.ID))
	}
	var sent []string

	for n, order := range [][]event{{incomplete(0), active(0)}, {active(1), incomplete(1)}} {
		for i, e := range order {
			apis[i].send(t, e)
			s.awaitEvent(t, e)
			sent = append(sent, e.id)
		}
		requireActive(n)
	}

	// 64 at once, of one subscription and of many, to two processes.
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var events []event
	for i := range 32 {
		events = append(events, incomplete(2), active(2), incomplete(3+i), active(3+i))
	}
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(64)
	for i, e := range events {
		sent = append(sent, e.id)
		group.Go(func() error { return apis[i%2].deliver(ctx, e) })
	}
	require.NoError(t, group.Wait())
	s.awaitEventsDone(t)
	for n := 2; n < 35; n++ {
		requireActive(n)
	}
	s.requireInvariants(t, sent...)
}

// deliver sends an event once; the error tells of any answer but 200.
func (c caller) deliver(ctx context.Context, e event) error {
	_, a, err := c.trySend(ctx, e)
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("answered with %d: %s", a.status, a.body)
	}
	return err
}

// A thousand copies of one event, all at once, to two processes: all are thanked for, one has an effect.
func TestParallelCopiesOfOneEvent(t *testing.T) {
	t.Parallel()
	s, apis := twoAPIs(t)
	e := stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
		ID: "sub_1", UserID: "u_1", PeriodStart: now(), PeriodEnd: now().Add(30 * day),
	})
	const copies = 1000
	begin := make(chan struct{})
	news := make(chan bool, copies)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range copies {
		group.Go(func() error {
			<-begin
			got, a, err := apis[i%2].trySend(ctx, e)
			if err == nil && (a.status != http.StatusOK || !got.Received) {
				err = fmt.Errorf("answered with %d: %s", a.status, a.body)
			}
			news <- !got.Duplicate
			return err
		})
	}
	close(begin)
	require.NoError(t, group.Wait())
	close(news)
	fresh := 0
	for isNew := range news {
		if isNew {
			fresh++
		}
	}
	require.Equal(t, 1, fresh, "answers that say it is no duplicate")
	stored := s.awaitEvent(t, e)
	require.Equal(t, "processed", stored.Status)
	require.Equal(t, 1, stored.Attempts)
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM payment_webhook_events`))
	row := apis[0].only(t, "u_1")
	require.Equal(t, 1, row.Version)
	require.Equal(t, []string{"created"}, apis[1].history(t, row.ID))
	s.requireInvariants(t, e.id)
}
