package activities_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/activities"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

func (b *bench) remind() activities.Tally {
	b.t.Helper()
	b.exec(`DELETE FROM job_runs`) // the run id is always the same here
	subscriptions := &activities.Subscriptions{Store: b.store, Runs: b.runs}
	in := manual(store.JobReminders)
	in.Lingers = false
	tally, err := b.run(b.environment(), subscriptions.Remind, in)
	require.NoError(b.t, err)
	return tally
}

// near makes n users with an address, each with a subscription that began long ago and ends in the time that is left.
func (b *bench) near(n int, left string) {
	b.t.Helper()
	b.exec(`INSERT INTO users (id, email, name) SELECT 'u_' || i, 'u' || i || '@example.com', 'User ' || i FROM generate_series(1, $1::int) i`, n)
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at)
		SELECT 'u_' || i, 'pro', 'active', now() - interval '60 days', now() + $2::text::interval FROM generate_series(1, $1::int) i`, n, left)
}

func subjects(messages []simulator.Message) map[string]string {
	list := map[string]string{}
	for _, m := range messages {
		list[strings.TrimSuffix(m.To, "@example.com")] += m.Subject
	}
	return list
}

func TestRemindersReachTheUsers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	b.near(6, "3 days")
	b.exec(`UPDATE subscriptions SET cancel_at_period_end = true WHERE user_id = 'u_2'`)
	b.exec(`UPDATE subscriptions SET status = 'past_due' WHERE user_id = 'u_3'`)
	b.exec(`UPDATE users SET locale = 'zh-CN', time_zone = 'Asia/Shanghai' WHERE id = 'u_4'`)
	b.exec(`UPDATE subscriptions SET leeway_until = expires_at + interval '1 hour' WHERE user_id = 'u_5'`)
	b.exec(`DELETE FROM users WHERE id = 'u_6'`)
	require.Equal(t, activities.Tally{Scanned: 10, Changed: 5, Skipped: 5}, b.remind(), "and what was passed over")
	require.Zero(t, b.remind())
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, map[string]string{
		"u1": "Your access to Pro ends in 3 days", "u2": "Your subscription to Pro ends in 3 days",
		"u3": "Payment is still missing: your access to Pro ends in 3 days", "u4": "您的“Pro”使用权限将于 3 天后到期",
	}, subjects(sim.Messages()))
}

// Whatever happens between the fact and its mail wins.
func TestReminderThatIsNoLongerTrueIsNotSent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.near(7, "1 day")
	require.EqualValues(t, 7, b.remind().Changed)
	now, err := b.store.Now(t.Context())
	require.NoError(t, err)
	_, err = b.store.DispatchFacts(t.Context(), now, true, "", 100)
	require.NoError(t, err)
	for user, change := range map[string]string{
		"u_1": `expires_at = expires_at + interval '30 days'`,
		"u_2": `status = 'canceled', expires_at = now()`,
		"u_3": `held_at = now()`,
		"u_4": `leeway_until = expires_at + interval '1 hour'`,
		"u_5": `expires_at = now() - interval '1 second'`,
		"u_6": `comp_until = expires_at + interval '1 day'`,
	} {
		b.exec(`UPDATE subscriptions SET `+change+` WHERE user_id = $1`, user)
	}
	sim := b.sink()
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, "sent 1, superseded 6", b.deliveries())
	require.Equal(t, map[string]string{"u7": "Your access to Pro ends tomorrow"}, subjects(sim.Messages()))
}

func TestPoisonReminderIsSetAsideAndComesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.near(250, "3 days")
	b.exec(`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.user_id IN ('u_7', 'u_200') THEN RAISE EXCEPTION 'canary-%@example.com', NEW.user_id; END IF; RETURN NEW; END $$`)
	b.exec(`CREATE TRIGGER poison BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION poison()`)
	tally := b.remind()
	require.Equal(t, []int64{248, 2}, []int64{tally.Changed, tally.Failed})
	require.Equal(t, 2, b.count(`SELECT count(*) FROM set_aside_rows a JOIN subscriptions s ON s.id = a.row_id WHERE s.user_id IN ('u_7', 'u_200') AND last_error NOT LIKE '%canary%'`))
	require.Zero(t, b.remind(), "they are not first in line again")
	b.exec(`DROP TRIGGER poison ON outbox`)
	b.exec(`UPDATE set_aside_rows SET next_attempt_at = now()`)
	require.EqualValues(t, 2, b.remind().Changed)
	require.Equal(t, 250, b.count(`SELECT count(DISTINCT subscription_id) FROM outbox`))
	require.Zero(t, b.count(`SELECT count(*) FROM set_aside_rows`))
}

// story plays changes of one subscription of a provider and delivers after each.
func TestEveryFactHasItsMail(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	b.exec(`INSERT INTO users (id, email) VALUES ('u_1', 'u1@example.com')`)
	sub, err := b.store.CreateSubscription(t.Context(), subscription.Subscription{
		UserID: "u_1", PlanKey: "pro", Status: subscription.Active, ExpiresAt: time.Now().Add(90 * 24 * time.Hour), Provider: subscription.Stripe, ExternalID: "sub_1",
	}, "test")
	require.NoError(t, err)
	change := func(with func(s subscription.Subscription, at time.Time) subscription.Subscription) {
		_, err := b.store.ChangeSubscription(t.Context(), sub.ID, "test", "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
			return with(s, at), nil, nil
		})
		require.NoError(t, err)
	}
	var read int
	said := func() []string {
		b.exec(`DELETE FROM job_runs`)
		b.deliver(o)
		var list []string
		for _, m := range sim.Messages()[read:] {
			list = append(list, m.Subject)
		}
		read = len(sim.Messages())
		return list
	}
	require.Equal(t, []string{"You now have access to Pro"}, said())
	change(func(s subscription.Subscription, at time.Time) subscription.Subscription {
		s.Status, s.UnpaidSince, s.ExpiresAt, s.GraceUntil = subscription.PastDue, at, at, at.Add(72*time.Hour)
		return s
	})
	require.Equal(t, []string{"Your payment for Pro failed"}, said())
	change(func(s subscription.Subscription, at time.Time) subscription.Subscription {
		s.Status, s.UnpaidSince, s.ExpiresAt, s.GraceUntil = subscription.Active, time.Time{}, at.Add(720*time.Hour), time.Time{}
		return s
	})
	require.Equal(t, []string{"Your payment for Pro has arrived"}, said())
	change(func(s subscription.Subscription, at time.Time) subscription.Subscription {
		s.Status, s.ExpiresAt = subscription.Canceled, at
		return s
	})
	require.Equal(t, []string{"Your subscription to Pro was canceled"}, said())
	change(func(s subscription.Subscription, at time.Time) subscription.Subscription {
		s.Status, s.UnpaidSince, s.ExpiresAt = subscription.PastDue, at, at
		s.GraceUntil = at.Add(time.Millisecond)
		return s
	})
	require.Eventually(t, func() bool { return b.count(`SELECT count(*) FROM subscriptions WHERE access_until < now()`) == 1 }, time.Second, time.Millisecond)
	b.exec(`DELETE FROM job_runs`)
	b.expired()
	require.Equal(t, []string{"Your access to Pro has ended"}, said(), "that it began again and was not paid is no longer so")
	change(func(s subscription.Subscription, at time.Time) subscription.Subscription {
		s.Status, s.ExpiredAt, s.UnpaidSince, s.GraceUntil, s.ExpiresAt = subscription.Active, time.Time{}, time.Time{}, time.Time{}, at.Add(time.Hour)
		return s
	})
	require.Equal(t, []string{"Your access to Pro is back"}, said(), "and not that the payment has arrived as well")
	require.Equal(t, "access.started payment.failed payment.recovered access.ended access.started payment.failed access.ended payment.recovered access.started",
		b.text(`SELECT string_agg(topic, ' ' ORDER BY id) FROM outbox`))
}

// A start that lies ahead is told when it comes, and not if the subscription is canceled before.
func TestLaterStartIsToldWhenItComes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	for i := range 2 {
		b.exec(`INSERT INTO users (id, email) VALUES ($1, $2)`, fmt.Sprintf("u_%d", i), fmt.Sprintf("u%d@example.com", i))
		sub, err := b.store.CreateSubscription(t.Context(), subscription.Subscription{
			UserID: fmt.Sprintf("u_%d", i), PlanKey: "pro", Status: subscription.Active, StartedAt: time.Now().Add(time.Hour), ExpiresAt: time.Now().Add(48 * time.Hour),
		}, "test")
		require.NoError(t, err)
		if i == 1 {
			_, err = b.store.ChangeSubscription(t.Context(), sub.ID, "test", "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
				return s.Cancel(at, false)
			})
			require.NoError(t, err)
		}
	}
	require.Zero(t, b.deliver(o))
	pending, _, err := b.store.OutboxBacklog(t.Context())
	require.NoError(t, err)
	require.Zero(t, pending, "what is not true yet is no backlog")
	b.exec(`UPDATE outbox SET next_attempt_at = now()`)
	b.exec(`UPDATE subscriptions SET started_at = now() - interval '1 second'`)
	b.deliver(o)
	require.Equal(t, map[string]string{"u0": "You now have access to Pro"}, subjects(sim.Messages()))
	require.Equal(t, "sent 1, superseded 1", b.deliveries())
}
