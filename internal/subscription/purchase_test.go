package subscription_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/subscription"
)

func TestPurchase(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	const month = 720 * time.Hour
	ours := func(status subscription.Status, end time.Time) subscription.Subscription {
		return subscription.Subscription{ID: "s", Status: status, StartedAt: at.Add(-month), ExpiresAt: end, NextPlanKey: "team", PlanKey: "pro"}
	}
	for name, c := range map[string]struct {
		sub         subscription.Subscription
		by          time.Duration
		from, until time.Time
	}{
		"running": {ours(subscription.Active, at.Add(time.Hour)), month, at.Add(time.Hour), at.Add(time.Hour + month)},
		"ended":   {ours(subscription.Expired, at.Add(-time.Hour)), month, at, at.Add(month)},
		"for ever": {
			ours(subscription.Active, at.Add(time.Hour)), 0, at.Add(time.Hour), subscription.Forever,
		},
		"for ever, ended": {ours(subscription.Expired, at.Add(-time.Hour)), 0, at, subscription.Forever},
	} {
		next, from, until, changes, err := c.sub.Purchase(at, c.by)
		require.NoError(t, err, name)
		require.Equal(t, c.from, from, name)
		require.Equal(t, c.until, until, name)
		require.Equal(t, c.until, next.ExpiresAt, name)
		require.Equal(t, subscription.Active, next.Status, name)
		require.Equal(t, "pro", next.PlanKey, "this plan was paid for")
		require.Equal(t, "team", next.NextPlanKey, name)
		require.Len(t, changes, 1, name)
	}
	lifetime := ours(subscription.Active, subscription.Forever)
	for _, by := range []time.Duration{0, month} {
		_, _, _, _, err := lifetime.Purchase(at, by)
		require.ErrorIs(t, err, subscription.ErrConflict)
		_, _, _, _, err = ours(subscription.Canceled, at).Purchase(at, by)
		require.ErrorIs(t, err, subscription.ErrConflict)
	}
	stripes := ours(subscription.Active, at)
	stripes.Provider = subscription.Stripe
	_, _, _, _, err := stripes.Purchase(at, month)
	require.ErrorIs(t, err, subscription.ErrProviderOwned)
}

// What was bought and is taken back at once leaves the subscription with the end that it had, or canceled where it had none.
func TestTakeBackUndoesAPurchase(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(r *rapid.T) {
		minutes := func(label string, least, most int) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(r, label)) * time.Minute
		}
		s := subscription.Subscription{ID: "s", Status: subscription.Active, StartedAt: at.Add(-time.Hour), ExpiresAt: at.Add(minutes("end", -60, 60))}
		if !at.Before(s.ExpiresAt) {
			s.Status = subscription.Expired
		}
		by := minutes("by", 0, 600)
		bought, from, until, _, err := s.Purchase(at, by)
		require.NoError(r, err)
		other := time.Duration(0)
		if rapid.Bool().Draw(r, "extended since") && by > 0 {
			other = minutes("other", 1, 60)
			bought, _, err = bought.Extend(at, other)
			require.NoError(r, err)
		}
		later := at.Add(minutes("later", 0, 700))
		if !later.Before(bought.ExpiresAt) {
			bought.Status = subscription.Expired
		}
		back, changes := bought.TakeBack(later, from, until)
		again, _ := back.TakeBack(later, until, until)
		require.Equal(r, back, again, "nothing was given between an instant and itself")
		switch {
		case bought.Status == subscription.Expired || !later.Before(until):
			require.Equal(r, bought, back, "what has passed is not taken back")
		case back.Status == subscription.Canceled:
			require.Zero(r, other)
			require.False(r, later.Before(s.ExpiresAt))
			require.Equal(r, later, back.ExpiresAt)
			require.Len(r, changes, 1)
		default:
			kept := s.ExpiresAt.Add(other)
			if s.ExpiresAt.Before(later) { // part of what was bought has been used
				kept = later.Add(other)
			}
			require.Equal(r, kept, back.ExpiresAt)
			require.Empty(r, changes)
		}
	})
}
