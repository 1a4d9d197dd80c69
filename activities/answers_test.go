package activities_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/activities"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

// TestNoJobChangesAnAnswer plays random histories of users: terms of ours and of the provider, actions, events. Between
// them the expiry, the reminders and the delivery run. No run changes allowed or reason of any answer, now or at any later instant.
func TestNoJobChangesAnAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`UPDATE plans SET features = '{images}', stripe_price_ids = '{price_pro}', grace_period = '1 hour' WHERE key = 'pro'`)
	b.exec(`INSERT INTO plans (key, stripe_price_ids) VALUES ('team', '{price_team}')`)
	outbox := b.outbox(b.sink().SMTPURL())
	round, marked := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		h := &histories{bench: b, r: r, round: round}
		for range rapid.IntRange(3, 12).Draw(r, "steps") {
			switch rapid.IntRange(0, 6).Draw(r, "step") {
			case 0, 1:
				h.create()
			case 2:
				h.hear()
			case 3:
				h.act()
			case 4:
				marked += h.unchangedBy(func() activities.Tally {
					tally, err := b.expire(manual(store.JobExpiry))
					require.NoError(t, err)
					return tally
				})
			case 5:
				h.unchangedBy(func() activities.Tally { return b.deliver(outbox) })
			case 6:
				h.unchangedBy(b.remind)
			}
		}
		marked += h.unchangedBy(func() activities.Tally {
			tally, err := b.expire(manual(store.JobExpiry))
			require.NoError(t, err)
			return tally
		})
	})
	require.Positive(t, marked, "the histories gave the scan something to mark")
}

// histories are those of three users of one round.
type histories struct {
	*bench
	r      *rapid.T
	round  int
	ids    []string
	events int
}

func (h *histories) users() []string {
	users := make([]string, 3)
	for i := range users {
		users[i] = fmt.Sprintf("round_%d_%d", h.round, i)
	}
	return users
}

// minutes is an instant around now, in whole minutes: ends that are past, and some that lie ahead.
func (h *histories) minutes(label string) time.Time {
	return time.Now().UTC().Truncate(time.Minute).Add(time.Duration(rapid.IntRange(-180, 60).Draw(h.r, label)) * time.Minute)
}

func (h *histories) create() {
	sub := subscription.Subscription{
		UserID: rapid.SampledFrom(h.users()).Draw(h.r, "user"), PlanKey: rapid.SampledFrom([]string{"pro", "team"}).Draw(h.r, "plan"),
		Status:    rapid.SampledFrom([]subscription.Status{subscription.Trialing, subscription.Active, subscription.PastDue, subscription.Paused}).Draw(h.r, "status"),
		StartedAt: h.minutes("start"), ExpiresAt: h.minutes("end"),
	}
	if rapid.IntRange(0, 9).Draw(h.r, "lifetime") == 0 {
		sub.ExpiresAt = subscription.Forever
	}
	created, err := h.store.CreateSubscription(h.t.Context(), sub, "test")
	require.NoError(h.t, err)
	h.ids = append(h.ids, created.ID)
}

// hear applies an event of the provider about one of two subscriptions.
func (h *histories) hear() {
	h.events++
	end := h.minutes("period end")
	p := subscription.Provider{
		ExternalID: fmt.Sprintf("sub_%d_%d", h.round, rapid.IntRange(0, 1).Draw(h.r, "subscription")), CustomerID: fmt.Sprintf("cus_%d", h.round),
		UserID: rapid.SampledFrom(h.users()).Draw(h.r, "user"), PriceIDs: []string{rapid.SampledFrom([]string{"price_pro", "price_team"}).Draw(h.r, "price")},
		Status:      rapid.SampledFrom([]string{"trialing", "active", "past_due", "unpaid", "paused", "canceled", "incomplete"}).Draw(h.r, "status"),
		PeriodStart: end.Add(-time.Hour), PeriodEnd: end, StartDate: end.Add(-2 * time.Hour), CancelAtPeriodEnd: rapid.Bool().Draw(h.r, "set to end"),
	}
	id := store.NewID()
	_, err := h.store.InsertWebhookEvents(h.t.Context(), []store.WebhookEvent{{
		ID: id, Provider: "stripe", ExternalID: fmt.Sprintf("evt_%d_%d", h.round, h.events), Type: "customer.subscription.updated", Payload: []byte("{}"),
	}}, "test", time.Minute)
	require.NoError(h.t, err)
	_, err = h.store.ApplySubscriptionNews(h.t.Context(), []store.SubscriptionNews{{
		EventID: id, Provider: p, News: subscription.News{Created: h.minutes("created")},
	}}, "test", 10*time.Minute)
	require.NoError(h.t, err)
}

// act does what an operator may do; what is not possible now changes nothing.
func (h *histories) act() {
	if len(h.ids) == 0 {
		return
	}
	action := rapid.SampledFrom([]string{"cancel", "cancel at end", "pause", "resume", "extend"}).Draw(h.r, "action")
	_, err := h.store.ChangeSubscription(h.t.Context(), rapid.SampledFrom(h.ids).Draw(h.r, "id"), "test", "",
		func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
			switch action {
			case "cancel":
				return s.Cancel(at, false)
			case "cancel at end":
				return s.Cancel(at, true)
			case "pause":
				return s.Pause(at)
			case "resume":
				return s.Resume(at, true)
			default:
				return s.Extend(at, time.Minute)
			}
		})
	if err != nil {
		require.ErrorIs(h.t, err, subscription.ErrConflict)
	}
}

// unchangedBy runs a job and holds every answer from then on against what it would have been without the run.
func (h *histories) unchangedBy(job func() activities.Tally) (changed int) {
	h.exec(`DELETE FROM job_runs`) // the run id is always the same here
	before, _, err := h.store.Holdings(h.t.Context(), h.users())
	require.NoError(h.t, err)
	tally := job()
	after, now, err := h.store.Holdings(h.t.Context(), h.users())
	require.NoError(h.t, err)
	for _, user := range h.users() {
		instants := []time.Time{now}
		for _, s := range after[user] {
			for _, edge := range []time.Time{s.StartedAt, s.ExpiresAt, s.AccessUntil()} {
				for _, at := range []time.Time{edge.Add(-time.Microsecond), edge, edge.Add(time.Microsecond)} {
					if at.After(now) && !subscription.IsForever(at) {
						instants = append(instants, at)
					}
				}
			}
		}
		for _, ask := range []subscription.Ask{{}, {Feature: "images"}, {Plan: "team"}, {Feature: "images", Plan: "team"}} {
			for _, at := range instants {
				was, is := subscription.Decide(before[user], ask, at), subscription.Decide(after[user], ask, at)
				require.Equal(h.t, was.Allowed, is.Allowed, "%+v at %s", ask, at)
				require.Equal(h.t, was.Reason, is.Reason, "%+v at %s", ask, at)
				require.Equal(h.t, was.NextChangeAt, is.NextChangeAt, "%+v at %s", ask, at)
			}
		}
	}
	return int(tally.Changed)
}
