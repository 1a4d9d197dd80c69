package subscription_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/subscription"
)

func driftWorld() (row subscription.Subscription, p subscription.Provider, plan *subscription.Plan, at time.Time) {
	at = time.Date(2026, time.December, 1, 12, 0, 0, 0, time.UTC)
	plan = &subscription.Plan{Key: "pro", Grace: 72 * time.Hour}
	p = subscription.Provider{
		ExternalID: "sub_1", CustomerID: "cus_1", UserID: "u_1", Status: "active", PriceIDs: []string{"price_1"},
		StartDate: at.AddDate(0, -3, 0), PeriodStart: at.AddDate(0, 0, -10), PeriodEnd: at.AddDate(0, 0, 20),
	}
	made := subscription.Apply(nil, p, subscription.News{Created: at.Add(-time.Hour), Received: at.Add(-time.Hour), Fetched: true}, plan, time.Hour)
	row = made.Next
	row.ID, row.Version = "id", 1
	return row, p, plan, at
}

func TestCompare(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		change func(row *subscription.Subscription, p *subscription.Provider)
		none   bool // there is no row
		kind   subscription.DriftKind
		fields []string
	}{
		"nothing": {change: func(*subscription.Subscription, *subscription.Provider) {}},
		"another leeway": {change: func(row *subscription.Subscription, _ *subscription.Provider) {
			row.LeewayUntil = row.ExpiresAt.Add(5 * time.Hour)
		}},
		"made by SQL": {change: func(row *subscription.Subscription, _ *subscription.Provider) {
			row.ProviderStatus, row.CustomerID, row.PeriodStart, row.PeriodEnd = "", "", time.Time{}, time.Time{}
			row.TruthAt, row.LeewayUntil = time.Time{}, time.Time{}
		}},
		"held and given time": {change: func(row *subscription.Subscription, _ *subscription.Provider) {
			row.HeldAt, row.CompUntil = row.ExpiresAt, row.ExpiresAt.Add(day)
		}},
		"expired with a past due that rolls on": {change: func(row *subscription.Subscription, p *subscription.Provider) {
			p.Status, p.PeriodStart, p.PeriodEnd = "past_due", row.ExpiresAt.Add(-40*day), row.ExpiresAt.Add(-10*day)
			row.Status, row.ProviderStatus, row.PeriodStart, row.PeriodEnd = subscription.Expired, "past_due", p.PeriodStart, p.PeriodEnd
			row.ExpiresAt, row.UnpaidSince, row.GraceUntil, row.LeewayUntil = p.PeriodStart, p.PeriodStart, p.PeriodStart.Add(3*day), time.Time{}
			row.ExpiredAt = row.GraceUntil
		}},
		"canceled there": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) {
				p.Status, p.EndedAt = "canceled", p.PeriodStart.Add(day)
			},
			kind: subscription.DriftEndedThere, fields: []string{"status", "provider_status", "expires_at"},
		},
		"paid late": {
			change: func(row *subscription.Subscription, _ *subscription.Provider) {
				row.Status, row.ExpiresAt, row.LeewayUntil = subscription.Expired, row.PeriodStart, time.Time{}
				row.PeriodStart, row.PeriodEnd, row.ExpiredAt = row.PeriodStart.AddDate(0, -1, 0), row.PeriodStart, row.ExpiresAt
			},
			kind: subscription.DriftEndedHere, fields: []string{"status", "expires_at", "provider_period_start", "provider_period_end"},
		},
		"unpaid": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) {
				p.Status, p.Invoice = "past_due", subscription.Invoice{ID: "in_1", BillingReason: "subscription_cycle"}
			},
			kind: subscription.DriftStatus, fields: []string{"status", "provider_status", "expires_at", "grace_period_ends_at"},
		},
		"another user": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) { p.UserID = "u_2" },
			kind:   subscription.DriftOwner, fields: []string{"user_id"},
		},
		"another period": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) { p.PeriodEnd = p.PeriodEnd.Add(day) },
			kind:   subscription.DriftPeriod, fields: []string{"expires_at", "provider_period_end"},
		},
		"begins later here": {
			change: func(row *subscription.Subscription, p *subscription.Provider) { row.StartedAt = p.PeriodEnd },
			kind:   subscription.DriftPeriod, fields: []string{"started_at"},
		},
		"set to end": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) { p.CancelAtPeriodEnd = true },
			kind:   subscription.DriftSetToEnd, fields: []string{"cancel_at_period_end"},
		},
		"another customer": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) { p.CustomerID = "cus_2" },
			kind:   subscription.DriftCustomer, fields: []string{"provider_customer_id"},
		},
		"no row": {
			change: func(*subscription.Subscription, *subscription.Provider) {}, none: true,
			kind: subscription.DriftMissing, fields: []string{"status", "user_id", "plan", "expires_at", "cancel_at_period_end"},
		},
		"no row of one that ended long ago": {none: true, change: func(_ *subscription.Subscription, p *subscription.Provider) {
			p.Status, p.EndedAt = "canceled", p.PeriodStart.Add(-21*day)
		}},
		"no row of one that never began": {none: true, change: func(_ *subscription.Subscription, p *subscription.Provider) { p.Status = "incomplete" }},
		"nobody's": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) { p.UserID = "" }, none: true,
			kind: subscription.DriftUserUnmapped, fields: []string{"price", "provider_customer_id", "provider_period_end", "provider_status"},
		},
		"nobody's and over": {none: true, change: func(_ *subscription.Subscription, p *subscription.Provider) {
			p.UserID, p.Status, p.EndedAt = "", "canceled", p.PeriodStart
		}},
		"in a status of the future": {
			change: func(_ *subscription.Subscription, p *subscription.Provider) { p.Status = "hibernating" },
			kind:   subscription.DriftUnknownStatus, fields: []string{"price", "provider_customer_id", "provider_period_end", "provider_status", "user_id"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row, p, plan, at := driftWorld()
			c.change(&row, &p)
			of := &row
			if c.none {
				of = nil
			}
			drift, differs := subscription.Compare(of, p, at, at, plan, time.Hour)
			require.Equal(t, c.kind != "", differs, "%+v", drift)
			require.Equal(t, c.kind, drift.Kind)
			fields := make([]string, 0, len(drift.Theirs))
			for field := range drift.Theirs {
				fields = append(fields, field)
			}
			require.ElementsMatch(t, c.fields, fields)
			quarantined := c.kind == subscription.DriftUserUnmapped || c.kind == subscription.DriftUnknownStatus
			require.Equal(t, quarantined, drift.Quarantine)
		})
	}
}

func TestCompareWithAPriceThatNobodySells(t *testing.T) {
	t.Parallel()
	row, p, _, at := driftWorld()
	drift, differs := subscription.Compare(&row, p, at, at, nil, time.Hour)
	require.True(t, differs)
	require.True(t, drift.Quarantine)
	require.Equal(t, subscription.DriftPlanUnmapped, drift.Kind)
	drift, differs = subscription.Compare(&row, p, at, at, &subscription.Plan{Key: "team"}, time.Hour)
	require.True(t, differs)
	require.Equal(t, subscription.DriftPlan, drift.Kind)
}

// TestRepairLeavesNoDifference: whatever the provider answers, its answer applied leaves nothing to repair, and what is not
// said to differ has the same access.
func TestRepairLeavesNoDifference(t *testing.T) {
	t.Parallel()
	kinds := map[subscription.DriftKind]bool{}
	rapid.Check(t, func(r *rapid.T) {
		row, p, plan, at := driftWorld()
		instant := func(label string) time.Time {
			return at.Add(time.Duration(rapid.IntRange(-60, 60).Draw(r, label)) * 24 * time.Hour)
		}
		said := func(label string) subscription.Provider {
			p := p
			p.Status = rapid.SampledFrom([]string{"trialing", "active", "past_due", "unpaid", "paused", "canceled", "incomplete", "incomplete_expired"}).Draw(r, label)
			p.PeriodEnd = instant(label + " end")
			p.PeriodStart = p.PeriodEnd.AddDate(0, -1, 0)
			p.CancelAtPeriodEnd = rapid.Bool().Draw(r, label+" set to end")
			p.UserID = rapid.SampledFrom([]string{"u_1", "u_2"}).Draw(r, label+" user")
			p.Invoice.BillingReason = rapid.SampledFrom([]string{"", "subscription_cycle", "subscription_update"}).Draw(r, label+" invoice")
			if p.Status == "canceled" || p.Status == "incomplete_expired" {
				p.EndedAt = instant(label + " ended")
			}
			return p
		}
		news := subscription.News{Created: at, Received: at, Fetched: true}
		var of *subscription.Subscription
		if rapid.Bool().Draw(r, "has a row") {
			if made := subscription.Apply(&row, said("before"), news, plan, time.Hour); made.Skip == subscription.SkipNone {
				row = made.Next
			}
			if rapid.Bool().Draw(r, "expired") && row.Status.Live() && row.AccessUntil().Before(at) {
				row.Status, row.ExpiredAt = subscription.Expired, at
			}
			of = &row
		}
		now := said("now")
		drift, differs := subscription.Compare(of, now, at, at, plan, time.Hour)
		outcome := subscription.Apply(of, now, news, plan, time.Hour)
		if !differs {
			if outcome.Skip == subscription.SkipNone && of != nil {
				require.Equal(r, of.Gives(at), outcome.Next.Gives(at))
				require.Equal(r, of.AccessUntil(), outcome.Next.AccessUntil())
			}
			return
		}
		kinds[drift.Kind] = true
		require.False(r, drift.Quarantine)
		require.Equal(r, subscription.SkipNone, outcome.Skip)
		again, differs := subscription.Compare(&outcome.Next, now, at, at, plan, time.Hour)
		require.False(r, differs, "%+v", again)
	})
	require.GreaterOrEqual(t, len(kinds), 6)
}
