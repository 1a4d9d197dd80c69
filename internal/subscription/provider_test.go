package subscription_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/subscription"
)

const (
	day    = 24 * time.Hour
	leeway = time.Hour
	grace  = 3 * day
)

var (
	p1   = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	p2   = p1.AddDate(0, 1, 0)
	p3   = p2.AddDate(0, 1, 0)
	p4   = p3.AddDate(0, 1, 0)
	plan = &subscription.Plan{Key: "pro", Grace: grace}
)

// says is what the provider says of a subscription in a period.
func says(status string, start, end time.Time, change ...func(*subscription.Provider)) subscription.Provider {
	p := subscription.Provider{
		ExternalID: "sub_1", CustomerID: "cus_1", UserID: "u_1", Status: status, PriceIDs: []string{"price_1"},
		PeriodStart: start, PeriodEnd: end, StartDate: p1,
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

// row is a subscription that hears news one after the other.
type row struct {
	t    *testing.T
	sub  *subscription.Subscription
	last subscription.Outcome
	now  time.Time // of the latest receipt; what comes late is received late
}

func (r *row) hears(p subscription.Provider, created time.Time) *row {
	r.t.Helper()
	if received := created.Add(time.Second); received.After(r.now) {
		r.now = received
	}
	r.last = subscription.Apply(r.sub, p, subscription.News{Created: created, Received: r.now}, plan, leeway)
	if r.last.Skip == subscription.SkipNone {
		next := r.last.Next
		r.sub = &next
	}
	return r
}

func (r *row) types() []subscription.EventType {
	var types []subscription.EventType
	for _, c := range r.last.Changes {
		types = append(types, c.Type)
	}
	return types
}

func TestRenewsByItselfHasALeeway(t *testing.T) {
	r := (&row{t: t}).hears(says("active", p1, p2), p1)
	require.Equal(t, p2, r.sub.ExpiresAt)
	require.Equal(t, p2.Add(leeway), r.sub.LeewayUntil)
	require.Zero(t, r.sub.GraceUntil)
	require.Equal(t, []subscription.EventType{subscription.EventCreated}, r.types())
	require.True(t, r.sub.Gives(p2.Add(time.Minute)), "the news of the renewal can only come after the end")
	r.hears(says("active", p2, p3), p2)
	require.Equal(t, p3, r.sub.ExpiresAt)
	require.Equal(t, []subscription.EventType{subscription.EventRenewed}, r.types())
}

func TestSetToEndHasNone(t *testing.T) {
	flag := func(p *subscription.Provider) { p.CancelAtPeriodEnd = true }
	at := func(when time.Time) func(*subscription.Provider) {
		return func(p *subscription.Provider) { p.CancelAt = when }
	}
	for name, c := range map[string]struct {
		change  func(*subscription.Provider)
		expires time.Time
		leeway  bool
	}{
		"flag":                   {flag, p2, false},
		"cancel_at inside":       {at(p2.Add(-day)), p2.Add(-day), false},
		"cancel_at at the end":   {at(p2), p2, false},
		"cancel_at after a term": {at(p3), p2, true},
	} {
		r := (&row{t: t}).hears(says("active", p1, p2, c.change), p1)
		require.Equal(t, c.expires, r.sub.ExpiresAt, name)
		require.Equal(t, c.leeway, !r.sub.LeewayUntil.IsZero(), name)
		require.Equal(t, !c.leeway, r.sub.CancelAtPeriodEnd, name)
	}
	r := (&row{t: t}).hears(says("active", p1, p2), p1).hears(says("active", p1, p2, flag), p1.Add(day))
	require.Equal(t, []subscription.EventType{subscription.EventCanceled}, r.types())
	r.hears(says("active", p1, p2), p1.Add(2*day))
	require.Equal(t, []subscription.EventType{subscription.EventUncanceled}, r.types())
	require.Equal(t, p2.Add(leeway), r.sub.LeewayUntil)
}

func TestAnUnpaidRenewalLeavesGraceAndNotTheNewPeriod(t *testing.T) {
	r := (&row{t: t}).hears(says("active", p1, p2), p1).hears(says("active", p2, p3), p2)
	require.Equal(t, p3, r.sub.ExpiresAt)

	r.hears(says("past_due", p2, p3), p2.Add(time.Hour))
	require.Equal(t, p2, r.sub.ExpiresAt)
	require.Zero(t, r.sub.LeewayUntil)
	require.Equal(t, p2.Add(grace), r.sub.GraceUntil)
	require.Equal(t, []subscription.EventType{subscription.EventPastDue}, r.types())
	before := *r.sub

	r.hears(says("past_due", p3, p4), p3.Add(time.Hour))
	require.Equal(t, before.AccessUntil(), r.sub.AccessUntil(), "still unpaid a period later: nothing moves")
	r.hears(says("unpaid", p3, p4), p3.Add(2*day))
	require.Equal(t, before.AccessUntil(), r.sub.AccessUntil())

	r.hears(says("active", p3, p4), p3.Add(3*day))
	require.Equal(t, p4, r.sub.ExpiresAt, "paid: the new period")
	require.Zero(t, r.sub.GraceUntil)
	require.Equal(t, []subscription.EventType{subscription.EventRecovered}, r.types())

	p5 := p4.AddDate(0, 1, 0)
	r.hears(says("past_due", p4, p5), p4.Add(time.Hour))
	require.Equal(t, p4, r.sub.ExpiresAt)
	require.Equal(t, p4.Add(grace), r.sub.GraceUntil, "a second failure after a payment gets its own grace")
}

func TestPastDueForAnotherReason(t *testing.T) {
	r := (&row{t: t}).hears(says("active", p1, p2), p1)
	r.hears(says("past_due", p1, p2), p1.Add(10*day))
	require.Equal(t, p2, r.sub.ExpiresAt, "an unpaid upgrade takes nothing that was paid")
	require.Zero(t, r.sub.LeewayUntil)
	require.Zero(t, r.sub.GraceUntil)

	r = (&row{t: t}).hears(says("active", p1, p2), p1)
	r.hears(says("past_due", p1, p2, func(p *subscription.Provider) { p.Invoice.BillingReason = "subscription_update" }), p1.Add(time.Hour))
	require.Equal(t, p2, r.sub.ExpiresAt, "the invoice's own reason decides where it is known")
	r = (&row{t: t}).hears(says("active", p1, p2), p1)
	r.hears(says("past_due", p2, p3, func(p *subscription.Provider) { p.Invoice.BillingReason = "subscription_cycle" }), p2.Add(20*day))
	require.Equal(t, p2, r.sub.ExpiresAt)
	require.Equal(t, p2.Add(grace), r.sub.GraceUntil)
}

func TestInvoicesThatAreSentCountFromTheirDueDate(t *testing.T) {
	sent := func(p *subscription.Provider) { p.SendInvoice, p.DaysUntilDue = true, 14 }
	r := (&row{t: t}).hears(says("active", p1, p2, sent), p1).hears(says("past_due", p2, p3, sent), p2.Add(14*day+time.Hour))
	require.Equal(t, p2.Add(14*day), r.sub.ExpiresAt)
	require.Equal(t, p2.Add(14*day+grace), r.sub.GraceUntil)
}

func TestNoEndOfAProviderIsALifetime(t *testing.T) {
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	for name, p := range map[string]subscription.Provider{
		"leeway": says("active", p1, last),
		"grace":  says("past_due", last, last),
		"due date": says("past_due", p1, p2, func(p *subscription.Provider) {
			p.SendInvoice, p.DaysUntilDue, p.Invoice.BillingReason = true, math.MaxInt32, "subscription_cycle"
		}),
	} {
		sub := (&row{t: t}).hears(p, p1).sub
		for _, end := range []time.Time{sub.ExpiresAt, sub.LeewayUntil, sub.GraceUntil, sub.UnpaidSince} {
			require.False(t, subscription.IsForever(end), "%s: %s", name, end)
		}
	}
}

func TestFirstSightWhenAlreadyPastDue(t *testing.T) {
	r := (&row{t: t}).hears(says("past_due", p2, p3), p2.Add(10*day))
	require.Equal(t, p2, r.sub.ExpiresAt)
	require.False(t, r.sub.Gives(p2.Add(10*day)))
}

func TestCanceledEndsAtOnceAndAbsorbs(t *testing.T) {
	ended := func(when time.Time) func(*subscription.Provider) {
		return func(p *subscription.Provider) { p.EndedAt = when }
	}
	r := (&row{t: t}).hears(says("active", p1, p2), p1).hears(says("canceled", p1, p2, ended(p1.Add(day))), p1.Add(day))
	require.Equal(t, subscription.Canceled, r.sub.Status)
	require.Equal(t, p1.Add(day), r.sub.ExpiresAt)
	require.Equal(t, []subscription.EventType{subscription.EventCanceled}, r.types())
	r.hears(says("active", p1, p2), p1.Add(2*day))
	require.Equal(t, subscription.SkipStale, r.last.Skip)
	require.True(t, r.last.Mark, "worth asking the provider about")

	late := (&row{t: t}).hears(says("active", p1, p2), p1).hears(says("canceled", p1, p2, ended(p2.Add(day))), p2.Add(day))
	require.Equal(t, p2, late.sub.ExpiresAt, "never later than the period")
	bare := (&row{t: t}).hears(says("active", p1, p2), p1).hears(says("canceled", time.Time{}, time.Time{}), p1.Add(day))
	require.Equal(t, p1.Add(day), bare.sub.ExpiresAt, "no period is needed")

	deletion := subscription.Apply(r.sub, says("active", p1, p2), subscription.News{Created: p1.Add(3 * day), Received: p1.Add(3 * day), Deleted: true}, nil, leeway)
	require.Equal(t, subscription.SkipStale, deletion.Skip)
	require.False(t, deletion.Mark)
}

func TestIncomplete(t *testing.T) {
	none := (&row{t: t}).hears(says("incomplete", p1, p2), p1)
	require.Nil(t, none.sub)
	require.Equal(t, subscription.SkipNoRow, none.last.Skip)
	require.Nil(t, (&row{t: t}).hears(says("incomplete_expired", p1, p2), p1).sub)
	r := (&row{t: t}).hears(says("active", p1, p2), p1).hears(says("incomplete_expired", p1, p2), p1.Add(day))
	require.Equal(t, subscription.Canceled, r.sub.Status)
}

func TestPausedByTheProviderStopsAccessAndKeepsTheEnd(t *testing.T) {
	r := (&row{t: t}).hears(says("trialing", p1, p2), p1).hears(says("paused", p1, p2), p1.Add(day))
	require.Equal(t, subscription.Paused, r.sub.Status)
	require.Equal(t, p2, r.sub.ExpiresAt)
	require.False(t, r.sub.Gives(p1.Add(2*day)))
	r.hears(says("active", p2, p3), p2)
	require.Equal(t, []subscription.EventType{subscription.EventResumed, subscription.EventRenewed}, r.types())
}

// A trial is a period like another: what follows it is paid for, unpaid with a grace of its own, paused, or nothing.
func TestTheEndOfATrial(t *testing.T) {
	t.Parallel()
	renewal := func(p *subscription.Provider) { p.Invoice.BillingReason = "subscription_cycle" }
	flag := func(p *subscription.Provider) { p.CancelAtPeriodEnd = true }
	trial := func() *row { return (&row{t: t}).hears(says("trialing", p1, p2), p1) }
	require.True(t, trial().sub.Gives(p2.Add(-time.Microsecond)))
	require.True(t, trial().sub.Gives(p2.Add(time.Minute)), "the news of the first payment can only come after the end")

	paid := trial().hears(says("active", p2, p3, renewal), p2)
	require.Equal(t, []subscription.EventType{subscription.EventRenewed}, paid.types())
	require.Equal(t, p3, paid.sub.ExpiresAt)

	unpaid := trial().hears(says("active", p2, p3), p2).hears(says("past_due", p2, p3, renewal), p2.Add(time.Hour))
	require.Equal(t, subscription.PastDue, unpaid.sub.Status)
	require.Equal(t, p2, unpaid.sub.ExpiresAt, "nothing of the period after the trial was paid for")
	require.Equal(t, p2.Add(grace), unpaid.sub.AccessUntil())

	paused := trial().hears(says("paused", p2, p3), p2)
	require.Equal(t, []subscription.EventType{subscription.EventPaused}, paused.types())
	require.False(t, paused.sub.Gives(p2.Add(-time.Minute)))

	ends := (&row{t: t}).hears(says("trialing", p1, p2, flag), p1)
	require.True(t, ends.sub.Gives(p2.Add(-time.Microsecond)))
	require.False(t, ends.sub.Gives(p2))
}

func TestWhatCannotBeReadChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		p    subscription.Provider
		plan *subscription.Plan
		skip subscription.Skip
	}{
		"no period":      {says("active", time.Time{}, time.Time{}), plan, subscription.SkipPeriodMissing},
		"no period due":  {says("past_due", time.Time{}, time.Time{}), plan, subscription.SkipPeriodMissing},
		"unknown status": {says("hibernating", p1, p2), plan, subscription.SkipUnknownStatus},
		"no plan":        {says("active", p1, p2), nil, subscription.SkipPlanUnmapped},
		"no user":        {says("active", p1, p2, func(p *subscription.Provider) { p.UserID = "" }), plan, subscription.SkipUserUnmapped},
	} {
		o := subscription.Apply(nil, c.p, subscription.News{Created: p1, Received: p1}, c.plan, leeway)
		require.Equal(t, c.skip, o.Skip, name)
		require.True(t, o.Skip.Quarantine(), name)
		require.Zero(t, o.Next, name)
	}
}

func TestOrder(t *testing.T) {
	active := says("active", p1, p2)
	later := says("past_due", p2, p3)
	r := (&row{t: t}).hears(later, p2).hears(active, p1)
	require.Equal(t, subscription.SkipStale, r.last.Skip)
	require.False(t, r.last.Mark, "strictly older is certain")

	for name, pair := range map[string][2]subscription.Provider{
		"created and updated": {says("incomplete", p1, p2), active},
		"rank":                {active, says("past_due", p1, p2)},
		"later period":        {active, says("active", p2, p3)},
		"set to end":          {active, says("active", p1, p2, func(p *subscription.Provider) { p.CancelAtPeriodEnd = true })},
		"end of it all":       {active, says("canceled", p1, p2, func(p *subscription.Provider) { p.EndedAt = p1 })},
	} {
		one := (&row{t: t}).hears(pair[0], p1).hears(pair[1], p1)
		other := (&row{t: t}).hears(pair[1], p1).hears(pair[0], p1)
		require.Equal(t, one.sub.Status, other.sub.Status, name)
		require.Equal(t, one.sub.AccessUntil(), other.sub.AccessUntil(), name)
		require.Equal(t, one.sub.CancelAtPeriodEnd, other.sub.CancelAtPeriodEnd, name)
	}
	tie := (&row{t: t}).hears(active, p1).hears(says("past_due", p1, p2), p1)
	require.True(t, tie.sub.NeedsReconcile, "the order within a second was only guessed")
}

func TestATruthFromTheFutureIsAskedAbout(t *testing.T) {
	for truth, marked := range map[time.Time]bool{p1.AddDate(70, 0, 0): true, p1.Add(time.Minute): false} {
		r := (&row{t: t}).hears(says("active", p1, p2), truth)
		o := subscription.Apply(r.sub, says("canceled", p1, p2), subscription.News{Created: p1, Received: p1}, plan, leeway)
		require.Equal(t, subscription.SkipStale, o.Skip)
		require.Equal(t, marked, o.Mark, "two clocks may differ by a little; %s shuts out all news until then", truth)
	}
}

func TestLocalFactsStay(t *testing.T) {
	r := (&row{t: t}).hears(says("active", p1, p2), p1)
	r.sub.HeldAt, r.sub.CompUntil = p1.Add(day), p4
	r.hears(says("active", p2, p3), p2)
	require.Equal(t, p1.Add(day), r.sub.HeldAt, "no event lifts a hold")
	require.Equal(t, p4, r.sub.CompUntil)
}

func TestAMarkedRowComesBackOnlyForMoreTime(t *testing.T) {
	r := (&row{t: t}).hears(says("active", p1, p2), p1)
	r.sub.Status, r.sub.ExpiredAt = subscription.Expired, p2.Add(leeway)
	same := *r.sub
	r.hears(says("past_due", p1, p2), p2.Add(2*leeway))
	require.Equal(t, subscription.Expired, r.sub.Status)
	require.Equal(t, same.ExpiredAt, r.sub.ExpiredAt)
	r.hears(says("active", p2, p3), p2.Add(3*leeway))
	require.Equal(t, subscription.Active, r.sub.Status)
	require.Zero(t, r.sub.ExpiredAt)
	require.Contains(t, r.types(), subscription.EventRenewed)
}

func TestStartIsNeverAfterTheReceipt(t *testing.T) {
	r := (&row{t: t}).hears(says("active", p1, p2, func(p *subscription.Provider) { p.StartDate = p2 }), p1)
	require.Equal(t, p1.Add(time.Second), r.sub.StartedAt)
}
