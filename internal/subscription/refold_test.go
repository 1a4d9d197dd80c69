package subscription_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/subscription"
)

// A customer that was linked to another user, or names another one now, does not take a subscription along that an
// older event makes us work out anew. What the subscription or its checkout says does.
func TestRefoldKeepsTheUser(t *testing.T) {
	t.Parallel()
	received := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	said := func(id string, created time.Time, whose subscription.Provider) subscription.Observation {
		whose.ExternalID, whose.Status, whose.PriceIDs = "sub_1", "active", []string{"price_1"}
		whose.StartDate, whose.PeriodStart, whose.PeriodEnd = received.AddDate(0, 0, -9), received.AddDate(0, 0, -9), received.AddDate(0, 0, 21)
		return subscription.Observation{
			ID: id, Provider: whose, News: subscription.News{Created: created, Received: received},
			Plan: &subscription.Plan{Key: "pro"}, Applied: true,
		}
	}
	for name, c := range map[string]struct {
		whose subscription.Provider
		user  string
	}{
		"linked to another user":     {subscription.Provider{LinkedUserID: "u_2"}, "u_1"},
		"customer names another one": {subscription.Provider{CustomerUserID: "u_2"}, "u_1"},
		"checkout names another one": {subscription.Provider{CheckoutUserID: "u_2", LinkedUserID: "u_1"}, "u_2"},
		"names another one itself":   {subscription.Provider{UserID: "u_2", LinkedUserID: "u_1"}, "u_2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := said("1", received.Add(-time.Hour), subscription.Provider{LinkedUserID: "u_1"})
			made := subscription.Apply(nil, first.Provider, first.News, first.Plan, time.Hour)
			require.Equal(t, "u_1", made.Next.UserID)

			older, again := said("2", received.Add(-2*time.Hour), c.whose), said("1", received.Add(-time.Hour), c.whose)
			outcome := subscription.Settle(&made.Next, subscription.Question{
				Asks: []subscription.Observation{older}, Said: []subscription.Observation{again, older},
			}, received, time.Hour)
			now := made.Next
			if outcome.Skip == subscription.SkipNone {
				now = outcome.Next
			}
			require.Equal(t, c.user, now.UserID)
		})
	}
}
