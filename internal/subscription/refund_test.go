package subscription_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/subscription"
)

func TestWhatFollowsFromMoneyThatWasTakenBack(t *testing.T) {
	t.Parallel()
	row := subscription.Subscription{Status: subscription.Active, PeriodStart: p2, PeriodEnd: p3}
	all := subscription.TakenBack{Paid: 1000, Amount: 1000, PeriodEnd: p3, At: p2.Add(day)}
	for name, c := range map[string]struct {
		taken  func(t *subscription.TakenBack)
		row    func(s *subscription.Subscription)
		policy string
		want   subscription.Verdict
	}{
		"all of the current period":         {want: subscription.VerdictEnd},
		"more than was paid":                {taken: func(t *subscription.TakenBack) { t.Amount = 1001 }, want: subscription.VerdictEnd},
		"all but the smallest unit":         {taken: func(t *subscription.TakenBack) { t.Amount = 999 }, want: subscription.VerdictPartial},
		"nothing":                           {taken: func(t *subscription.TakenBack) { t.Amount = 0 }, want: subscription.VerdictNothing},
		"of a payment of nothing":           {taken: func(t *subscription.TakenBack) { t.Paid = 0 }, want: subscription.VerdictNothing},
		"of prorations":                     {taken: func(t *subscription.TakenBack) { t.PeriodEnd = time.Time{} }, want: subscription.VerdictNoPeriod},
		"of the period before":              {taken: func(t *subscription.TakenBack) { t.PeriodEnd = p2 }, want: subscription.VerdictEarlier},
		"of one that was over by then":      {taken: func(t *subscription.TakenBack) { t.At = p3 }, want: subscription.VerdictEarlier},
		"a microsecond before its end":      {taken: func(t *subscription.TakenBack) { t.At = p3.Add(-time.Microsecond) }, want: subscription.VerdictEnd},
		"of a period that is not known yet": {taken: func(t *subscription.TakenBack) { t.PeriodEnd = p4 }, want: subscription.VerdictEnd},
		"the policy keeps":                  {policy: "keep", want: subscription.VerdictKeep},
		"canceled already":                  {row: func(s *subscription.Subscription) { s.Status = subscription.Canceled }, want: subscription.VerdictEnded},
		"past due":                          {row: func(s *subscription.Subscription) { s.Status = subscription.PastDue }, want: subscription.VerdictEnd},
		"paused":                            {row: func(s *subscription.Subscription) { s.Status = subscription.Paused }, want: subscription.VerdictEnd},
	} {
		taken, now, policy := all, row, c.policy
		if c.taken != nil {
			c.taken(&taken)
		}
		if c.row != nil {
			c.row(&now)
		}
		if policy == "" {
			policy = subscription.RefundEnd
		}
		require.Equal(t, c.want, taken.Judge(now, policy), name)
	}
}

// Where the provider cannot be asked, an end by a refund holds while no later period began, whichever is heard of first.
func TestALaterPeriodOutlivesARefund(t *testing.T) {
	t.Parallel()
	plan := &subscription.Plan{Key: "pro"}
	observed := func(id string, at time.Time, p subscription.Provider) subscription.Observation {
		return subscription.Observation{ID: id, Provider: p, News: subscription.News{Created: at, Received: at}, Plan: plan, Applied: true}
	}
	bought, renewed := observed("1", p1, says("active", p1, p2)), observed("2", p2, says("active", p2, p3))
	refund := subscription.Observation{
		ID: "3", Applied: true, RefundedUntil: p2, Provider: subscription.Provider{ExternalID: "sub_1", PeriodEnd: p2},
		News: subscription.News{Created: p1.Add(day), Received: p1.Add(day), Deleted: true},
	}
	first := subscription.Apply(nil, bought.Provider, bought.News, plan, time.Hour).Next
	ended := subscription.Refunded(first, refund.News.Created, p1.Add(day), time.Hour).Next
	require.Equal(t, subscription.Canceled, ended.Status)
	require.Equal(t, p1.Add(day), ended.ExpiresAt)

	o := subscription.Settle(&ended, subscription.Question{Asks: []subscription.Observation{renewed}, Said: []subscription.Observation{refund, renewed, bought}}, p2.Add(day), time.Hour)
	require.Equal(t, subscription.SkipNone, o.Skip)
	require.Equal(t, subscription.Active, o.Next.Status)
	require.Equal(t, p3, o.Next.ExpiresAt)

	again := observed("4", p1.Add(2*day), says("active", p1, p2))
	o = subscription.Settle(&ended, subscription.Question{Asks: []subscription.Observation{again}, Said: []subscription.Observation{again, refund, bought}}, p1.Add(3*day), time.Hour)
	if o.Skip == subscription.SkipNone {
		require.Equal(t, subscription.Canceled, o.Next.Status, "news of the same period bring nothing back")
		require.Equal(t, ended.ExpiresAt, o.Next.ExpiresAt)
	}

	answer := observed("", p1.Add(2*day), says("active", p1, p2))
	answer.News.Fetched = true
	o = subscription.Settle(&ended, subscription.Question{
		Asks: []subscription.Observation{again}, Answer: &answer, Said: []subscription.Observation{again, refund, bought, answer},
	}, p1.Add(3*day), time.Hour)
	require.Equal(t, subscription.Active, o.Next.Status, "the provider's answer counts before what followed from a refund")
}

func TestEventsOfADisputeInAnyOrder(t *testing.T) {
	t.Parallel()
	at := p1
	known := func(status string, closed time.Time) subscription.Dispute {
		return subscription.Dispute{Status: status, ClosedAt: closed}
	}
	for _, c := range []struct {
		known  subscription.Dispute
		status string
		said   time.Time
		want   bool
	}{
		{known("needs_response", time.Time{}), "under_review", at, true},
		{known("under_review", time.Time{}), "needs_response", at, false},
		{known("warning_closed", at), "needs_response", at, true},
		{known("needs_response", time.Time{}), "lost", at, true},
		{known("lost", at), "under_review", at.Add(day), false},
		{known("won", at), "lost", at.Add(time.Second), true},
		{known("won", at), "lost", at.Add(-time.Second), false},
		{known("won", at), "lost", at, true},
		{known("lost", at), "won", at, false},
		{known("lost", at), "won", at.Add(time.Second), true},
		{known("lost", at), "lost", at.Add(day), false},
		{known("a new word", time.Time{}), "needs_response", at, true},
	} {
		require.Equal(t, c.want, c.known.GoesOn(c.status, c.said), "%+v, then %s", c.known, c.status)
	}
	require.True(t, subscription.RefundGoesOn("pending", "succeeded"))
	require.True(t, subscription.RefundGoesOn("succeeded", "failed"))
	require.False(t, subscription.RefundGoesOn("failed", "succeeded"))
	require.False(t, subscription.RefundGoesOn("succeeded", "succeeded"))
}
