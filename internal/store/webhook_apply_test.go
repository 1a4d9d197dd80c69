package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/subscription"
)

const (
	leeway = time.Hour
	owner  = "test"
)

// day one of the subscriptions below; in the past, so that nothing starts after its receipt.
var start = time.Now().UTC().Truncate(time.Second).AddDate(0, 0, -20)

type applyBench struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *store.Store
	n     int
}

func newApplyBench(t *testing.T) *applyBench {
	t.Helper()
	pool := storetest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key, stripe_price_ids, grace_period) VALUES ('pro', '{price_1}', '72h'), ('team', '{price_2}', '0')`)
	require.NoError(t, err)
	return &applyBench{t: t, pool: pool, store: store.New(pool)}
}

func says(status string, change ...func(*subscription.Provider)) subscription.Provider {
	p := subscription.Provider{
		ExternalID: "sub_1", CustomerID: "cus_1", UserID: "u_1", Status: status, PriceIDs: []string{"price_1"},
		PeriodStart: start, PeriodEnd: start.AddDate(0, 1, 0), StartDate: start,
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

// stored stores an event, leased to owner, and makes news of it.
func (b *applyBench) stored(p subscription.Provider, created time.Time) store.SubscriptionNews {
	b.t.Helper()
	b.n++
	id := store.NewID()
	news := store.SubscriptionNews{EventID: id, Provider: p, News: subscription.News{Created: created}}
	payload, err := json.Marshal(news)
	require.NoError(b.t, err)
	fresh, err := b.store.InsertWebhookEvents(b.t.Context(), []store.WebhookEvent{{
		ID: id, Provider: "stripe", ExternalID: fmt.Sprintf("evt_%d", b.n), Type: "customer.subscription.updated", ObjectID: p.ExternalID, Payload: payload,
	}}, owner, time.Minute)
	require.NoError(b.t, err)
	require.True(b.t, fresh[id])
	return news
}

func (b *applyBench) apply(group ...store.SubscriptionNews) []store.NewsResult {
	b.t.Helper()
	results, err := b.applied(b.t.Context(), owner, group...)
	require.NoError(b.t, err)
	return results
}

// applied applies a group, and settles without an answer what asks for one.
func (b *applyBench) applied(ctx context.Context, owner string, group ...store.SubscriptionNews) ([]store.NewsResult, error) {
	results, err := b.store.ApplySubscriptionNews(ctx, group, owner, leeway)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		for r.Asks {
			at := slices.IndexFunc(group, func(n store.SubscriptionNews) bool { return n.EventID == r.EventID })
			settled, err := b.settle(ctx, group[at], owner, nil)
			if err != nil && !errors.Is(err, store.ErrConflict) {
				return nil, err
			}
			if err == nil {
				r, results[i] = settled[0], settled[0]
			}
		}
	}
	return results, nil
}

// settle settles one event on the row as it is now.
func (b *applyBench) settle(ctx context.Context, n store.SubscriptionNews, owner string, answer *store.Truth) ([]store.NewsResult, error) {
	rows, err := b.store.ProviderSubscriptions(ctx, []string{n.Provider.ExternalID})
	if err != nil {
		return nil, err
	}
	id := n.Provider.ExternalID
	return b.store.SettleSubscription(ctx, store.Question{
		ExternalID: id, Version: rows[id].Version, News: []store.SubscriptionNews{n}, Answer: answer, Tried: answer != nil,
	}, owner, leeway, readNews)
}

// readNews reads what stored wrote as the payload.
func readNews(payload []byte) (subscription.Provider, subscription.News, error) {
	var said struct {
		Provider subscription.Provider
		News     subscription.News
	}
	err := json.Unmarshal(payload, &said)
	return said.Provider, said.News, err
}

func (b *applyBench) count(query string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), query, args...).Scan(&n))
	return n
}

func (b *applyBench) only() subscription.Subscription {
	b.t.Helper()
	list, err := b.store.Subscriptions(b.t.Context(), store.SubscriptionFilter{}, store.SubscriptionCursor{}, 10)
	require.NoError(b.t, err)
	require.Len(b.t, list, 1)
	return list[0]
}

func TestNewsMakesARowWithItsHistory(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	b.apply(b.stored(says("active", func(p *subscription.Provider) { p.Email = "a@example.com" }), start))
	sub := b.only()
	require.Equal(t, "u_1", sub.UserID)
	require.Equal(t, "pro", sub.PlanKey)
	require.Equal(t, start.AddDate(0, 1, 0), sub.ExpiresAt)
	require.Equal(t, sub.ExpiresAt.Add(leeway), sub.AccessUntil())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'created' AND actor = 'stripe'
		AND (detail->'terms'->>'expires_at')::timestamptz = $1`, sub.ExpiresAt))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed' AND processed_at IS NOT NULL AND lease_owner IS NULL`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM stripe_customers WHERE customer_id = 'cus_1' AND user_id = 'u_1'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM users WHERE id = 'u_1' AND email = 'a@example.com'`))
}

func TestAnEventIsAppliedOnce(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	n := b.stored(says("active"), start)
	b.apply(n)
	version := b.only().Version
	require.True(t, b.apply(n)[0].Lost)
	require.Equal(t, version, b.only().Version)

	taken := b.stored(says("past_due"), start.Add(time.Hour))
	results, err := b.store.ApplySubscriptionNews(t.Context(), []store.SubscriptionNews{taken}, "somebody else", leeway)
	require.NoError(t, err)
	require.True(t, results[0].Lost, "the lease is not theirs")
	require.Equal(t, version, b.only().Version)
}

// TestOneSecondAndManyAtOnce: created(incomplete) and updated(active) of one second, 64 events at once from eight
// appliers, end active in one row, whatever comes first.
func TestOneSecondAndManyAtOnce(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	var news []store.SubscriptionNews
	for i := range 64 {
		news = append(news, b.stored(says([]string{"active", "incomplete"}[i%2]), start))
	}
	rand.Shuffle(len(news), func(i, j int) { news[i], news[j] = news[j], news[i] })
	var workers sync.WaitGroup
	errs := make(chan error, 8)
	for w := range 8 {
		workers.Go(func() {
			for _, n := range news[w*8 : w*8+8] {
				if _, err := b.applied(context.WithoutCancel(t.Context()), owner, n); err != nil {
					errs <- err
				}
			}
		})
	}
	workers.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, subscription.Active, b.only().Status)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'created'`))
	require.Equal(t, 64, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
}

func TestGroupsFoldInAnyOrder(t *testing.T) {
	t.Parallel()
	end := start.AddDate(0, 1, 0)
	history := []subscription.Provider{
		says("incomplete"), says("active"),
		says("active", func(p *subscription.Provider) { p.CancelAtPeriodEnd = true }),
		says("active", func(p *subscription.Provider) { p.PriceIDs = []string{"price_2"} }),
	}
	want := subscription.Subscription{}
	for round := range 12 {
		b := newApplyBench(t)
		var group []store.SubscriptionNews
		for i, p := range history {
			group = append(group, b.stored(p, start.Add(time.Duration(i)*time.Second)))
		}
		rand.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
		if round%2 == 0 {
			b.apply(group...)
		} else {
			for _, n := range group {
				b.apply(n)
			}
		}
		got := b.only()
		require.Equal(t, "team", got.PlanKey)
		require.False(t, got.CancelAtPeriodEnd)
		require.Equal(t, end.Add(leeway), got.AccessUntil())
		got.ID, got.Version, got.CreatedAt, got.UpdatedAt = "", 0, time.Time{}, time.Time{}
		if round == 0 {
			want = got
		}
		require.Equal(t, want, got)
	}
}

func TestWhatCannotBeMappedWaitsAndHeals(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	ctx := t.Context()
	stranger := says("active", func(p *subscription.Provider) { p.UserID, p.PriceIDs = "", []string{"price_9"} })
	results := b.apply(b.stored(stranger, start))
	require.Equal(t, subscription.SkipUserUnmapped, results[0].Skip)
	require.Equal(t, 0, b.count(`SELECT count(*) FROM subscriptions`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'quarantined' AND reason = 'user_unmapped'`))

	released, err := b.store.ReleaseMappedWebhookEvents(ctx, 10)
	require.NoError(t, err)
	require.Zero(t, released)

	heal := func(statement string) []store.NewsResult {
		_, err := b.pool.Exec(ctx, statement)
		require.NoError(t, err)
		released, err := b.store.ReleaseMappedWebhookEvents(ctx, 10)
		require.NoError(t, err)
		require.Equal(t, 1, released)
		leased, err := b.store.LeaseWebhookEvents(ctx, 10, owner, time.Minute)
		require.NoError(t, err)
		require.Len(t, leased, 1)
		return b.apply(store.SubscriptionNews{EventID: leased[0].ID, Provider: stranger, News: subscription.News{Created: start}})
	}
	require.Equal(t, subscription.SkipPlanUnmapped, heal(`INSERT INTO stripe_customers (customer_id, user_id) VALUES ('cus_1', 'u_7')`)[0].Skip)
	require.Equal(t, subscription.SkipNone, heal(`UPDATE plans SET stripe_price_ids = '{price_1,price_9}' WHERE key = 'pro'`)[0].Skip)
	require.Equal(t, "u_7", b.only().UserID)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed' AND reason IS NULL AND waits_for IS NULL`))
}

func TestATieIsMarkedForReconciliation(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	b.apply(b.stored(says("past_due"), start.Add(time.Hour)))
	b.apply(b.stored(says("active"), start))
	require.False(t, b.only().NeedsReconcile, "all that was said is there, so what is strictly older has its place")
	b.apply(b.stored(says("active"), start.Add(time.Hour)))
	require.True(t, b.only().NeedsReconcile)
	require.Equal(t, subscription.PastDue, b.only().Status)
}

func TestLeasesOfEvents(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	ctx := t.Context()
	n := b.stored(says("active"), start)
	none, err := b.store.LeaseWebhookEvents(ctx, 10, "job", time.Minute)
	require.NoError(t, err)
	require.Empty(t, none, "it is leased to who stored it")
	_, err = b.store.LeaseWebhookEvent(ctx, n.EventID, "replay", time.Minute)
	require.ErrorIs(t, err, store.ErrConflict)
	_, err = b.store.LeaseWebhookEvent(ctx, store.NewID(), "replay", time.Minute)
	require.ErrorIs(t, err, store.ErrNotFound)

	_, err = b.pool.Exec(ctx, `UPDATE payment_webhook_events SET leased_until = now()`)
	require.NoError(t, err)
	leased, err := b.store.LeaseWebhookEvents(ctx, 10, "job", time.Minute)
	require.NoError(t, err)
	require.Len(t, leased, 1)
	require.Equal(t, 2, leased[0].Attempts)

	require.NoError(t, b.store.FailWebhookEvent(ctx, n.EventID, "job", time.Hour, 12, "no"))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND next_attempt_at > now() + interval '59 minutes' AND last_error = 'no'`))
	_, err = b.pool.Exec(ctx, `UPDATE payment_webhook_events SET attempts = 11, next_attempt_at = now()`)
	require.NoError(t, err)
	_, err = b.store.LeaseWebhookEvents(ctx, 10, "job", time.Minute)
	require.NoError(t, err)
	require.NoError(t, b.store.FailWebhookEvent(ctx, n.EventID, "job", time.Hour, 12, "no"))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'failed'`))

	again, err := b.store.LeaseWebhookEvent(ctx, n.EventID, owner, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 1, again.Attempts)
	require.Equal(t, subscription.SkipNone, b.apply(n)[0].Skip)
}

func TestStoringIsIdempotent(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	ctx := context.WithoutCancel(t.Context())
	var fresh sync.Map
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			var group []store.WebhookEvent
			for i := range 50 {
				group = append(group, store.WebhookEvent{ID: store.NewID(), Provider: "stripe", ExternalID: fmt.Sprintf("evt_%d", rand.IntN(20)), Type: "x", Ignored: "unused_type", Payload: []byte{0, byte(i)}})
			}
			isNew, err := b.store.InsertWebhookEvents(ctx, group, owner, time.Minute)
			if err != nil {
				t.Error(err)
			}
			for id := range isNew {
				fresh.Store(id, true)
			}
		})
	}
	workers.Wait()
	count := 0
	fresh.Range(func(any, any) bool { count++; return true })
	require.Equal(t, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'ignored' AND reason = 'unused_type' AND attempts = 0`), count)
}

// An end that only SQL can write must not make every later change of its row impossible.
func TestARowWithAnInfiniteEndCanStillBeChanged(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	b.apply(b.stored(says("active"), start))
	for _, column := range []string{"comp_until", "leeway_until", "grace_period_ends_at"} {
		_, err := b.pool.Exec(t.Context(), `UPDATE subscriptions SET comp_until = NULL, leeway_until = NULL, grace_period_ends_at = NULL`)
		require.NoError(t, err)
		_, err = b.pool.Exec(t.Context(), `UPDATE subscriptions SET `+column+` = 'infinity', held_at = NULL`)
		require.NoError(t, err)
		_, err = b.store.ChangeSubscription(t.Context(), b.only().ID, "test", "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
			return s.Pause(at)
		})
		require.NoError(t, err, column)
	}
}
