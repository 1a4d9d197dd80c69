package subscription_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/subscription"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const tick = time.Microsecond

func holding(change func(*subscription.Holding)) subscription.Holding {
	h := subscription.Holding{
		Subscription: subscription.Subscription{
			ID: "1", UserID: "u_1", PlanKey: "pro", Status: subscription.Active, StartedAt: noon.Add(-time.Hour), ExpiresAt: noon,
		},
		Features: []string{"images"},
	}
	if change != nil {
		change(&h)
	}
	return h
}

func decide(at time.Time, ask subscription.Ask, holdings ...subscription.Holding) subscription.Decision {
	return subscription.Decide(holdings, ask, at)
}

func TestTheEndIsExact(t *testing.T) {
	ends := map[string]func(*subscription.Holding){
		"expires_at": nil,
		"leeway":     func(h *subscription.Holding) { h.ExpiresAt, h.LeewayUntil = noon.Add(-time.Minute), noon },
		"grace": func(h *subscription.Holding) {
			h.ExpiresAt, h.GraceUntil, h.Status = noon.Add(-time.Minute), noon, subscription.PastDue
		},
		"comp": func(h *subscription.Holding) { h.ExpiresAt, h.CompUntil = noon.Add(-time.Minute), noon },
	}
	for name, end := range ends {
		h := holding(end)
		require.True(t, decide(noon.Add(-tick), subscription.Ask{}, h).Allowed, name)
		require.False(t, decide(noon, subscription.Ask{}, h).Allowed, name)
		require.False(t, decide(noon.Add(tick), subscription.Ask{}, h).Allowed, name)
		require.Equal(t, noon, decide(noon.Add(-tick), subscription.Ask{}, h).NextChangeAt, name)
		require.Zero(t, decide(noon, subscription.Ask{}, h).NextChangeAt, name)
	}
}

func TestTheStartIsExact(t *testing.T) {
	h := holding(func(h *subscription.Holding) { h.StartedAt, h.ExpiresAt = noon, noon.Add(time.Hour) })
	before := decide(noon.Add(-tick), subscription.Ask{}, h)
	require.False(t, before.Allowed)
	require.Equal(t, subscription.ReasonNotStarted, before.Reason)
	require.Equal(t, noon, before.NextChangeAt)
	require.True(t, decide(noon, subscription.Ask{}, h).Allowed)
}

func TestReasons(t *testing.T) {
	minute := time.Minute
	cases := []struct {
		name    string
		change  func(*subscription.Holding)
		ask     subscription.Ask
		at      time.Time
		allowed bool
		reason  subscription.Reason
	}{
		{"active", nil, subscription.Ask{}, noon.Add(-minute), true, subscription.ReasonActive},
		{"trialing", func(h *subscription.Holding) { h.Status = subscription.Trialing }, subscription.Ask{}, noon.Add(-minute), true, subscription.ReasonTrialing},
		{"past due inside its term", func(h *subscription.Holding) { h.Status = subscription.PastDue }, subscription.Ask{}, noon.Add(-minute), true, subscription.ReasonActive},
		{"leeway first", func(h *subscription.Holding) {
			h.LeewayUntil, h.GraceUntil, h.CompUntil = noon.Add(2*minute), noon.Add(2*minute), noon.Add(2*minute)
		}, subscription.Ask{}, noon.Add(minute), true, subscription.ReasonRenewing},
		{"then grace", func(h *subscription.Holding) { h.GraceUntil, h.CompUntil = noon.Add(2*minute), noon.Add(2*minute) }, subscription.Ask{}, noon.Add(minute), true, subscription.ReasonGracePeriod},
		{"then comp", func(h *subscription.Holding) { h.GraceUntil, h.CompUntil = noon, noon.Add(2*minute) }, subscription.Ask{}, noon.Add(minute), true, subscription.ReasonExtended},
		{"feature", nil, subscription.Ask{Feature: "images"}, noon.Add(-minute), true, subscription.ReasonActive},
		{"feature missing", nil, subscription.Ask{Feature: "video"}, noon.Add(-minute), false, subscription.ReasonFeatureNotInPlan},
		{"plan", nil, subscription.Ask{Plan: "pro"}, noon.Add(-minute), true, subscription.ReasonActive},
		{"plan mismatch", nil, subscription.Ask{Plan: "team"}, noon.Add(-minute), false, subscription.ReasonPlanMismatch},
		{"canceled", func(h *subscription.Holding) { h.Status = subscription.Canceled }, subscription.Ask{}, noon.Add(-minute), false, subscription.ReasonCanceled},
		{"expired by mark", func(h *subscription.Holding) { h.Status = subscription.Expired }, subscription.Ask{}, noon.Add(-minute), false, subscription.ReasonExpired},
		{"expired by date", nil, subscription.Ask{}, noon, false, subscription.ReasonExpired},
		{"held", func(h *subscription.Holding) { h.HeldAt = noon.Add(-minute) }, subscription.Ask{}, noon.Add(-minute), false, subscription.ReasonPaused},
		{"held and ended", func(h *subscription.Holding) { h.HeldAt = noon.Add(-minute) }, subscription.Ask{}, noon, false, subscription.ReasonExpired},
		{"paused", func(h *subscription.Holding) { h.Status = subscription.Paused }, subscription.Ask{}, noon.Add(-minute), false, subscription.ReasonPaused},
		{"ended and asked for a feature it never had", nil, subscription.Ask{Feature: "video"}, noon, false, subscription.ReasonExpired},
	}
	for _, c := range cases {
		d := decide(c.at, c.ask, holding(c.change))
		require.Equal(t, c.allowed, d.Allowed, c.name)
		require.Equal(t, c.reason, d.Reason, c.name)
		require.Equal(t, "1", d.Named.ID, c.name)
	}
	none := decide(noon, subscription.Ask{})
	require.Equal(t, subscription.ReasonNoSubscription, none.Reason)
	require.Nil(t, none.Named)
}

func TestNamedIsTheOneThatMatters(t *testing.T) {
	past := holding(func(h *subscription.Holding) { h.ID, h.ExpiresAt = "past", noon.Add(-time.Minute) })
	short := holding(func(h *subscription.Holding) { h.ID, h.ExpiresAt = "short", noon.Add(time.Minute) })
	long := holding(func(h *subscription.Holding) { h.ID, h.ExpiresAt, h.Features = "long", noon.Add(time.Hour), nil })
	later := holding(func(h *subscription.Holding) {
		h.ID, h.StartedAt, h.ExpiresAt = "later", noon.Add(time.Minute), noon.Add(2*time.Hour)
	})

	d := decide(noon, subscription.Ask{}, past, short, long, later)
	require.Equal(t, "long", d.Named.ID, "the giver with the latest end, not the one that has not begun")
	require.Equal(t, noon.Add(2*time.Hour), d.NextChangeAt, "the terms touch, so the last end counts")

	d = decide(noon, subscription.Ask{Feature: "images"}, past, short, long)
	require.Equal(t, "short", d.Named.ID)
	require.Equal(t, noon.Add(time.Minute), d.NextChangeAt)

	d = decide(noon, subscription.Ask{Feature: "images"}, past, long)
	require.Equal(t, subscription.ReasonFeatureNotInPlan, d.Reason)
	require.Equal(t, "past", d.Named.ID, "on a no, one whose plan has the feature comes first")

	twin := past
	twin.ID = "another"
	require.Equal(t, "another", decide(noon, subscription.Ask{}, past, twin).Named.ID, "of equals the lower id")
}

func TestLifetimeHasNoNextChange(t *testing.T) {
	h := holding(func(h *subscription.Holding) { h.ExpiresAt = subscription.Forever })
	d := decide(noon, subscription.Ask{}, h)
	require.True(t, d.Allowed)
	require.Zero(t, d.NextChangeAt)
}

// TestNextChangeIsTheNextFlip: between the instant and NextChangeAt the answer stays, at NextChangeAt it flips, and when
// there is none it never does.
func TestNextChangeIsTheNextFlip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		holdings := rapid.SliceOfN(anyHolding, 0, 5).Draw(t, "holdings")
		ask := subscription.Ask{Feature: rapid.SampledFrom([]string{"", "images"}).Draw(t, "feature"), Plan: rapid.SampledFrom([]string{"", "pro"}).Draw(t, "plan")}
		at := anyInstant.Draw(t, "at")
		d := subscription.Decide(holdings, ask, at)
		var edges []time.Time
		for _, h := range holdings {
			edges = append(edges, h.StartedAt, h.AccessUntil())
		}
		var flip time.Time
		for _, e := range edges {
			if e.After(at) && subscription.Decide(holdings, ask, e).Allowed != d.Allowed && (flip.IsZero() || e.Before(flip)) {
				flip = e
			}
		}
		require.Equal(t, flip, d.NextChangeAt)
		if d.Allowed {
			require.True(t, d.Named.Gives(at))
		}
	})
}

var (
	anyInstant = rapid.Custom(func(t *rapid.T) time.Time {
		return noon.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "minutes")) * time.Minute)
	})
	maybe = rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "absent") {
			return time.Time{}
		}
		return anyInstant.Draw(t, "instant")
	})
	anyHolding = rapid.Custom(func(t *rapid.T) subscription.Holding {
		return subscription.Holding{
			Subscription: subscription.Subscription{
				ID:      rapid.StringMatching(`[a-f]{4}`).Draw(t, "id"),
				PlanKey: rapid.SampledFrom([]string{"pro", "team"}).Draw(t, "plan"),
				Status: rapid.SampledFrom([]subscription.Status{
					subscription.Trialing, subscription.Active, subscription.PastDue, subscription.Paused, subscription.Canceled, subscription.Expired,
				}).Draw(t, "status"),
				StartedAt: anyInstant.Draw(t, "started"), ExpiresAt: anyInstant.Draw(t, "expires"), LeewayUntil: maybe.Draw(t, "leeway"),
				GraceUntil: maybe.Draw(t, "grace"), CompUntil: maybe.Draw(t, "comp"),
			},
			Features: rapid.SampledFrom([][]string{nil, {"images"}}).Draw(t, "features"),
		}
	})
)
