package subscription_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/subscription"
)

// spelled writes facts as "topic/kind key@boundary", instants in hours from the base.
func spelled(facts []subscription.Fact, base time.Time) []string {
	hours := func(t time.Time) string {
		if subscription.IsForever(t) {
			return "∞"
		}
		return fmt.Sprint(t.Sub(base).Hours())
	}
	var list []string
	for _, f := range facts {
		name := string(f.Topic)
		if f.Kind != "" {
			name += "/" + f.Kind
		}
		list = append(list, fmt.Sprintf("%s to %s at %s", name, hours(f.Boundary), hours(f.At)))
	}
	return list
}

func TestFacts(t *testing.T) {
	t.Parallel()
	base := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	h := func(hours int) time.Time { return base.Add(time.Duration(hours) * time.Hour) }
	const at = 100
	type change = func(*subscription.Subscription)
	row := func(changes ...change) *subscription.Subscription {
		s := &subscription.Subscription{ID: "s", Status: subscription.Active, StartedAt: h(0), ExpiresAt: h(200)}
		for _, c := range changes {
			c(s)
		}
		return s
	}
	status := func(s subscription.Status) change { return func(r *subscription.Subscription) { r.Status = s } }
	until := func(hours int) change { return func(r *subscription.Subscription) { r.ExpiresAt = h(hours) } }
	starts := func(hours int) change { return func(r *subscription.Subscription) { r.StartedAt = h(hours) } }
	stripe := func(r *subscription.Subscription) { r.Provider = subscription.Stripe }
	held := func(r *subscription.Subscription) { r.HeldAt = h(90) }
	toEnd := func(r *subscription.Subscription) { r.CancelAtPeriodEnd = true }
	unpaid := func(grace int) change {
		return func(r *subscription.Subscription) {
			r.Status, r.ExpiresAt, r.UnpaidSince, r.GraceUntil = subscription.PastDue, h(80), h(80), h(grace)
		}
	}
	comp := func(hours int) change { return func(r *subscription.Subscription) { r.CompUntil = h(hours) } }
	leeway := func(r *subscription.Subscription) { r.LeewayUntil = r.ExpiresAt.Add(time.Hour) }
	lifetime := func(r *subscription.Subscription) { r.ExpiresAt = subscription.Forever }

	for name, c := range map[string]struct {
		prev, next *subscription.Subscription
		want       []string
	}{
		"a new one":                            {nil, row(), []string{"access.started/first to 200 at 100"}},
		"a new lifetime":                       {nil, row(lifetime), []string{"access.started/first to ∞ at 100"}},
		"a new one that begins later":          {nil, row(starts(150)), []string{"access.started/first to 200 at 150"}},
		"a new one that has ended":             {nil, row(until(100)), nil},
		"a new one that ends before it begins": {nil, row(starts(250)), nil},
		"a new one that is paused":             {nil, row(status(subscription.Paused)), nil},
		"a new one that was canceled":          {nil, row(stripe, status(subscription.Canceled)), nil},
		"first seen past due":                  {nil, row(stripe, unpaid(140)), []string{"access.started/first to 140 at 100", "payment.failed to 140 at 100"}},
		"first seen past due without grace":    {nil, row(stripe, unpaid(0)), []string{"payment.failed to 80 at 100"}},
		"a renewal":                            {row(), row(until(400)), []string{"access.changed/extended to 400 at 100"}},
		"a renewal before the mark":            {row(until(99)), row(until(400)), []string{"access.changed/extended to 400 at 100"}},
		"a renewal after the mark":             {row(status(subscription.Expired), until(99)), row(until(400)), []string{"access.started/returned to 400 at 100"}},
		"a renewal of a canceled one":          {row(status(subscription.Canceled), until(99)), row(stripe, until(400)), []string{"access.started/returned to 400 at 100"}},
		"a mark that only moves":               {row(status(subscription.Expired), until(90)), row(status(subscription.Expired), until(91)), nil},
		"canceled now":                         {row(), row(status(subscription.Canceled), until(100)), []string{"access.ended/canceled to 100 at 100"}},
		"canceled by the provider earlier":     {row(stripe), row(stripe, status(subscription.Canceled), until(98)), []string{"access.ended/canceled to 98 at 100"}},
		"canceled with time given on top":      {row(stripe, comp(300)), row(stripe, comp(300), status(subscription.Canceled), until(98)), []string{"access.ended/canceled to 100 at 100"}},
		"canceled while held":                  {row(held), row(held, status(subscription.Canceled), until(100)), []string{"access.ended/canceled to 100 at 100"}},
		"canceled before it began":             {row(starts(150)), row(starts(150), status(subscription.Canceled), until(100)), nil},
		"canceled after the mark":              {row(stripe, status(subscription.Expired), until(90)), row(stripe, status(subscription.Canceled), until(90)), nil},
		"deleted at its date, before the mark": {row(stripe, toEnd, until(99)), row(stripe, toEnd, status(subscription.Canceled), until(99)), []string{"access.ended/ended to 99 at 100"}},
		"over and deleted, before the mark":    {row(until(99)), row(status(subscription.Canceled), until(99)), []string{"access.ended/expired to 99 at 100"}},
		"set to end":                           {row(), row(toEnd), []string{"access.changed/ending to 200 at 100"}},
		"an end moved to the past":             {row(), row(until(50)), nil},
		"held":                                 {row(), row(held), []string{"access.changed/paused to 200 at 100"}},
		"resumed":                              {row(held), row(), []string{"access.changed/resumed to 200 at 100"}},
		"paused by the provider":               {row(stripe), row(stripe, status(subscription.Paused)), []string{"access.changed/paused to 200 at 100"}},
		"made paused, begins now":              {row(status(subscription.Paused)), row(), []string{"access.started/first to 200 at 100"}},
		"made paused, canceled":                {row(status(subscription.Paused)), row(status(subscription.Canceled), until(100)), nil},
		"paused by the provider, canceled":     {row(stripe, status(subscription.Paused), until(50)), row(stripe, status(subscription.Canceled), until(50)), []string{"access.ended/canceled to 50 at 100"}},
		"past due":                             {row(stripe), row(stripe, unpaid(140)), []string{"payment.failed to 140 at 100", "access.changed/shortened to 140 at 100"}},
		"past due goes on":                     {row(stripe, unpaid(140)), row(stripe, unpaid(140)), nil},
		"another invoice, then the renewal":    {row(stripe, status(subscription.PastDue)), row(stripe, unpaid(140)), []string{"payment.failed to 140 at 100", "access.changed/shortened to 140 at 100"}},
		"paid in time":                         {row(stripe, unpaid(140)), row(stripe, until(800)), []string{"payment.recovered/in_time to 800 at 100", "access.changed/renewed to 800 at 100"}},
		"paid late": {row(stripe, unpaid(90), status(subscription.Expired)), row(stripe, until(800)), []string{
			"payment.recovered/late to 800 at 100", "access.started/returned to 800 at 100",
		}},
		"given time on top of what is unpaid": {row(stripe, unpaid(90), status(subscription.Expired)), row(stripe, unpaid(90), comp(150)), []string{"access.started/returned to 150 at 100"}},
		"canceled in grace":                   {row(stripe, unpaid(140)), row(stripe, status(subscription.Canceled), until(100)), []string{"access.ended/canceled to 100 at 100"}},
		"renewed by the provider":             {row(stripe), row(stripe, until(400)), []string{"access.changed/renewed to 400 at 100"}},
		"given time on top":                   {row(stripe), row(stripe, comp(300)), []string{"access.changed/extended to 300 at 100"}},
		"shortened":                           {row(), row(until(150)), []string{"access.changed/shortened to 150 at 100"}},
		"set to end, without its leeway":      {row(stripe, leeway), row(stripe, toEnd), []string{"access.changed/ending to 200 at 100"}},
		"the end taken back":                  {row(stripe, toEnd), row(stripe, leeway), []string{"access.changed/not_ending to 201 at 100"}},
		"resumed by the provider":             {row(stripe, status(subscription.Paused)), row(stripe), []string{"access.started/first to 200 at 100", "access.changed/resumed to 200 at 100"}},
		"held and paused by the provider":     {row(stripe, held), row(stripe, held, status(subscription.Paused)), nil},
		"another plan at a renewal": {row(stripe), row(stripe, until(400), func(r *subscription.Subscription) { r.PlanKey = "team" }), []string{
			"access.changed/plan_changed to 400 at 100", "access.changed/renewed to 400 at 100",
		}},
		"another plan": {row(), row(func(r *subscription.Subscription) { r.PlanKey = "team" }), []string{"access.changed/plan_changed to 200 at 100"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, spelled(subscription.Facts(c.prev, *c.next, h(at)), base))
		})
	}
}

// The keys name what happened and its period, and not the change that was heard of.
func TestKeysOfFacts(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 123456000, time.UTC)
	live := subscription.Subscription{ID: "s", Status: subscription.Active, StartedAt: at.Add(-time.Hour), ExpiresAt: at.Add(time.Hour)}
	canceled := live
	canceled.Status, canceled.ExpiresAt = subscription.Canceled, at
	keys := func(facts []subscription.Fact) []string {
		var list []string
		for _, f := range facts {
			list = append(list, f.Key)
		}
		return list
	}
	require.Equal(t, []string{fmt.Sprintf("start:s:%d", live.StartedAt.UnixMicro())}, keys(subscription.Facts(nil, live, at)))
	require.Equal(t, []string{fmt.Sprintf("end:s:%d", at.UnixMicro())}, keys(subscription.Facts(&live, canceled, at)), "as the scan names it")
	require.Equal(t, []string{fmt.Sprintf("start:s:%d", at.UnixMicro())}, keys(subscription.Facts(&canceled, live, at)))
	paused := live
	paused.Status = subscription.Paused
	require.Equal(t, keys(subscription.Facts(nil, live, at)), keys(subscription.Facts(&paused, live, at.Add(time.Minute))), "a resumption is no second start")

	held := live
	held.Version, held.HeldAt = 7, at
	again := live
	again.Version = 8
	require.Equal(t, []string{"resumed:s:7"}, keys(subscription.Facts(&held, again, at)), "one change is written once")

	unpaid := live
	unpaid.Status, unpaid.UnpaidSince = subscription.PastDue, at.Add(-time.Minute)
	require.Equal(t, []string{fmt.Sprintf("fail:s:%d", unpaid.UnpaidSince.UnixMicro())}, keys(subscription.Facts(&live, unpaid, at)))
	require.Equal(t, []string{fmt.Sprintf("paid:s:%d", unpaid.UnpaidSince.UnixMicro())}, keys(subscription.Facts(&unpaid, live, at)))
	other := unpaid
	other.UnpaidSince, other.TruthAt = time.Time{}, at.Add(-time.Second)
	require.Equal(t, []string{fmt.Sprintf("fail:s:%d", other.TruthAt.UnixMicro())}, keys(subscription.Facts(&live, other, at)), "no term is unpaid")
}
