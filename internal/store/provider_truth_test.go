package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

func (b *applyBench) truth(p subscription.Provider, asked time.Time, version int64) (subscription.Subscription, subscription.Skip) {
	b.t.Helper()
	after, skip, err := b.store.ApplyTruth(b.t.Context(), store.Truth{Provider: p, Asked: asked, Version: version, Actor: "key:1", Note: "why"}, leeway)
	require.NoError(b.t, err)
	return after, skip
}

func TestATruthMakesARowAndChangesIt(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	none, skip := b.truth(says("incomplete"), start, 0)
	require.Equal(t, subscription.SkipNoRow, skip)
	require.Zero(t, none)

	made, skip := b.truth(says("active", func(p *subscription.Provider) { p.Email = "a@example.com" }), start, 0)
	require.Equal(t, subscription.SkipNone, skip)
	require.Equal(t, b.only(), made)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM users WHERE id = 'u_1' AND email = 'a@example.com'`))

	canceled, _ := b.truth(says("canceled", func(p *subscription.Provider) { p.EndedAt = start.AddDate(0, 0, 3) }), start.AddDate(0, 0, 3), made.Version)
	require.Equal(t, subscription.Canceled, canceled.Status)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'canceled' AND actor = 'key:1' AND detail->>'note' = 'why'`))
	back, _ := b.truth(says("active"), start.AddDate(0, 0, 4), canceled.Version)
	require.Equal(t, subscription.Active, back.Status, "only what was fetched leaves canceled")
}

func TestATruthThatWasOvertaken(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	before, _ := b.truth(says("active"), start, 0)
	b.apply(b.stored(says("past_due", func(p *subscription.Provider) { p.Invoice.BillingReason = "subscription_cycle" }), start.Add(time.Hour)))

	after, skip := b.truth(says("active"), start.Add(time.Minute), before.Version)
	require.Equal(t, subscription.SkipStale, skip, "the row holds news that came after the question")
	require.Equal(t, subscription.PastDue, after.Status)
	require.True(t, after.NeedsReconcile)
	require.Equal(t, b.only(), after)

	// While the row is the one that was there before the question, the provider's clock does not matter.
	after, skip = b.truth(says("active"), start.Add(time.Minute), after.Version)
	require.Equal(t, subscription.SkipNone, skip)
	require.Equal(t, subscription.Active, after.Status)
	require.False(t, after.NeedsReconcile)
	require.Equal(t, start.Add(time.Hour), after.TruthAt, "it does not become older by that")
}

// Past-due periods that are told of in the wrong order end in the grace of the first one, as long as all that was said is there.
func TestAnEpisodeBeginsWithItsFirstPeriod(t *testing.T) {
	t.Parallel()
	const period = 5 // days
	unpaid := func(n int) (subscription.Provider, time.Time) {
		from := start.AddDate(0, 0, n*period)
		p := says("past_due", func(p *subscription.Provider) { p.PeriodStart, p.PeriodEnd = from, from.AddDate(0, 0, period) })
		return p, from.Add(time.Hour)
	}
	for name, c := range map[string]struct {
		lose     string
		complete bool
	}{
		"complete":                  {`SELECT 1`, true},
		"payload past its time":     {`UPDATE payment_webhook_events SET payload = '' WHERE external_event_id = 'evt_1'`, false},
		"row older than what stays": {`UPDATE subscriptions SET created_at = now() - interval '40 days'`, false},
		"row made by hand":          {`UPDATE payment_webhook_events SET received_at = now() + interval '1 hour'`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newApplyBench(t)
			b.apply(b.stored(says("active"), start))
			second, at := unpaid(2)
			b.apply(b.stored(second, at))
			require.Equal(t, start.AddDate(0, 0, 2*period), b.only().UnpaidSince)
			_, err := b.pool.Exec(t.Context(), c.lose)
			require.NoError(t, err)
			one, at := unpaid(1)
			late := b.stored(one, at)
			if !c.complete {
				_, err = b.pool.Exec(t.Context(), `UPDATE payment_webhook_events SET received_at = now() + interval '1 hour' WHERE id = $1`, late.EventID)
				require.NoError(t, err)
			}
			b.apply(late)
			if c.complete {
				require.Equal(t, start.AddDate(0, 0, period), b.only().UnpaidSince)
				require.False(t, b.only().NeedsReconcile)
			} else {
				require.Equal(t, start.AddDate(0, 0, 2*period), b.only().UnpaidSince, "strictly older changes nothing")
				require.True(t, b.only().NeedsReconcile)
			}
		})
	}
}

// An event that was seeded by hand names no object; it counts like any other once it was applied.
func TestASeededEventIsFoldedToo(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	first := b.stored(says("active"), start)
	_, err := b.pool.Exec(t.Context(), `UPDATE payment_webhook_events SET object_id = NULL`)
	require.NoError(t, err)
	b.apply(first)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE object_id = 'sub_1'`))
}

func TestAnAnswerThatCameTooLateIsAskedForAgain(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	b.apply(b.stored(says("active"), start))
	asking := b.stored(says("active"), start)
	q := store.Question{
		ExternalID: "sub_1", Version: b.only().Version + 1, News: []store.SubscriptionNews{asking}, Tried: true,
		Answer: &store.Truth{Provider: says("past_due"), Asked: start},
	}
	_, err := b.store.SettleSubscription(t.Context(), q, owner, leeway, readNews)
	require.ErrorIs(t, err, store.ErrConflict)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND lease_owner IS NOT NULL`))
	q.Version--
	_, err = b.store.SettleSubscription(t.Context(), q, "somebody else", leeway, readNews)
	require.NoError(t, err)
	require.Equal(t, subscription.Active, b.only().Status, "the lease is not theirs")
	results, err := b.store.SettleSubscription(t.Context(), q, owner, leeway, readNews)
	require.NoError(t, err)
	require.Equal(t, []store.NewsResult{{EventID: asking.EventID}}, results)
	require.Equal(t, subscription.PastDue, b.only().Status)
}

// Nothing of a deleted customer's goes on, also when the row heard of something later before.
func TestADeletedCustomerEndsWhatWasHeardOfLater(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	b.apply(b.stored(says("active"), start))
	b.apply(b.stored(says("active", func(p *subscription.Provider) { p.CancelAtPeriodEnd = true }), start.Add(time.Hour)))
	deleted := store.Truth{
		Provider: subscription.Provider{ExternalID: b.only().ExternalID}, Asked: start.Add(time.Minute), CustomerDeleted: true, Actor: store.ActorStripe,
	}
	after, skip, err := b.store.ApplyTruth(t.Context(), deleted, leeway)
	require.NoError(t, err)
	require.Equal(t, subscription.SkipNone, skip)
	require.Equal(t, subscription.Canceled, after.Status)
	require.Equal(t, start.Add(time.Minute), after.ExpiresAt)
	require.True(t, after.NeedsReconcile, "the provider has not said so itself")

	again, skip, err := b.store.ApplyTruth(t.Context(), deleted, leeway)
	require.NoError(t, err)
	require.Equal(t, subscription.SkipStale, skip)
	require.Equal(t, after, again)
}

// A question may hold events that somebody else has finished since it was put: what they said counts all the same.
func TestWhatAnotherOneFinishedWasSaidAllTheSame(t *testing.T) {
	t.Parallel()
	b := newApplyBench(t)
	older := b.stored(says("active"), start)
	newer := b.stored(says("active", func(p *subscription.Provider) {
		p.PeriodStart, p.PeriodEnd = start.AddDate(0, 1, 0), start.AddDate(0, 2, 0)
	}), start.AddDate(0, 1, 0))
	b.apply(newer)
	results, err := b.store.SettleSubscription(t.Context(), store.Question{
		ExternalID: "sub_1", Version: b.only().Version, News: []store.SubscriptionNews{newer, older},
	}, owner, leeway, readNews)
	require.NoError(t, err)
	require.True(t, results[0].Lost)
	require.False(t, results[1].Lost)
	require.Equal(t, start.AddDate(0, 2, 0), b.only().PeriodEnd)
}
