package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/subscription"
)

const day = 24 * time.Hour

// remindAll goes once over all ends that are near at the instant at.
func remindAll(ctx context.Context, s *store.Store, at time.Time, batch int) (store.Reminded, error) {
	var total store.Reminded
	for {
		r, err := s.RemindDue(ctx, at, batch)
		if err != nil || r.Looked == 0 {
			return total, err
		}
		total.Looked, total.Told, total.Superseded = total.Looked+r.Looked, total.Told+r.Told, total.Superseded+r.Superseded
	}
}

func remindAt(t *testing.T, s *store.Store, at time.Time) store.Reminded {
	t.Helper()
	r, err := remindAll(t.Context(), s, at, 100)
	require.NoError(t, err)
	return r
}

// lasting makes n users with an address whose subscription began long ago and ends at end.
func lasting(t *testing.T, pool *pgxpool.Pool, n int, end time.Time) {
	t.Helper()
	for _, query := range []string{
		`INSERT INTO plans (key) VALUES ('pro') ON CONFLICT DO NOTHING`,
		`INSERT INTO users (id, email) SELECT 'u_' || i, 'u' || i || '@example.com' FROM generate_series(1, $1::int) i`,
		`INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at) SELECT 'u_' || i, 'pro', 'active', $2::timestamptz - interval '60 days', $2 FROM generate_series(1, $1::int) i`,
	} {
		args := []any{n, end}
		switch query[:17] {
		case "INSERT INTO plans":
			args = nil
		case "INSERT INTO users":
			args = args[:1]
		}
		_, err := pool.Exec(t.Context(), query, args...)
		require.NoError(t, err)
	}
}

// mailsAt dispatches and claims everything at the instant at and returns how many are to be sent.
func mailsAt(t *testing.T, s *store.Store, at time.Time) (fresh, stale int) {
	t.Helper()
	_, err := s.DispatchFacts(t.Context(), at, true, "", 1000)
	require.NoError(t, err)
	for {
		claimed := claim(t, s, at, "a")
		if len(claimed) == 0 {
			return fresh, stale
		}
		for _, d := range claimed {
			l, err := s.Letter(t.Context(), d, at, time.Second)
			require.NoError(t, err)
			end := store.DeliverySent
			if l.Stale {
				end, stale = store.DeliverySuperseded, stale+1
			} else {
				fresh++
			}
			require.NoError(t, s.FinishDelivery(t.Context(), d, end, ""))
		}
	}
}

func TestThousandTicksSendOneMailPerBucket(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	begin := dbNow(t, s)
	end := begin.Add(8 * day)
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "No/Where", "UTC"}
	lasting(t, pool, len(zones), end)
	for i, zone := range zones {
		_, err := pool.Exec(t.Context(), `UPDATE users SET time_zone = $2 WHERE id = 'u_' || $1::int`, i+1, zone)
		require.NoError(t, err)
	}
	told := map[string]int{}
	for tick := range 1000 {
		at := begin.Add(time.Duration(tick) * (8*day + time.Hour) / 1000)
		if r := remindAt(t, s, at); r.Told > 0 {
			require.Zero(t, r.Superseded)
			fresh, stale := mailsAt(t, s, at)
			require.Equal(t, r.Told, fresh)
			require.Zero(t, stale)
		}
	}
	rows, err := pool.Query(t.Context(), `SELECT kind, count(*) FROM outbox WHERE topic = 'access.ending_soon' GROUP BY 1`)
	require.NoError(t, err)
	for rows.Next() {
		var kind string
		var n int
		require.NoError(t, rows.Scan(&kind, &n))
		told[kind] = n
	}
	require.NoError(t, rows.Err())
	require.Equal(t, map[string]int{"7d": len(zones), "3d": len(zones), "1d": len(zones)}, told)
	require.Equal(t, 3*len(zones), count(t, pool, `SELECT count(*) FROM deliveries WHERE status = 'sent'`))
	require.Equal(t, 3*len(zones), count(t, pool, `SELECT count(DISTINCT (subscription_id, event_type, boundary)) FROM subscription_events WHERE detail IS NULL`))

	// A renewal begins anew.
	_, err = pool.Exec(t.Context(), `UPDATE subscriptions SET expires_at = expires_at + interval '30 days'`)
	require.NoError(t, err)
	require.Zero(t, remindAt(t, s, end))
	require.Equal(t, store.Reminded{Looked: len(zones), Told: len(zones)}, remindAt(t, s, end.Add(30*day-7*day+2*time.Hour)))
}

// The same instant is due in one zone and not yet in another: the hour that spring takes away.
func TestReminderComesAtTheUsersTimeOfDay(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	end := time.Date(2099, 3, 30, 10, 0, 0, 0, time.UTC) // 12:00 in Berlin; its clocks go forward on 29 March 2099
	lasting(t, pool, 2, end)
	_, err := pool.Exec(t.Context(), `UPDATE users SET time_zone = 'Europe/Berlin' WHERE id = 'u_1'`)
	require.NoError(t, err)
	early := time.Date(2099, 3, 27, 10, 0, 0, 0, time.UTC) // 11:00 in Berlin
	remindAt(t, s, early.Add(-time.Second))                // seven days before, for both
	require.Equal(t, 1, remindAt(t, s, early).Told, "three times 24 hours are three days in UTC only")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox WHERE kind = '3d' AND user_id = 'u_2'`))
	require.Zero(t, remindAt(t, s, early.Add(time.Hour-time.Microsecond)).Told)
	require.Equal(t, 1, remindAt(t, s, early.Add(time.Hour)).Told)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox WHERE kind = '3d' AND user_id = 'u_1'`))
}

func TestSilenceTellsOnlyWhatIsStillOfUse(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	begin := dbNow(t, s)
	lasting(t, pool, 1, begin.Add(7*day))
	require.Equal(t, store.Reminded{Looked: 1, Told: 1}, remindAt(t, s, begin.Add(time.Hour)))
	// The mail server is away as well: the first mail waits.
	_, err := s.DispatchFacts(t.Context(), begin.Add(time.Hour), true, "", 10)
	require.NoError(t, err)
	late := begin.Add(6*day + 2*time.Hour)
	require.Equal(t, store.Reminded{Looked: 1, Told: 1, Superseded: 1}, remindAt(t, s, late))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM subscription_events WHERE event_type = 'reminded_3d' AND detail = '{"superseded_by": "reminded_1d"}'`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM outbox WHERE kind = '3d'`))
	fresh, stale := mailsAt(t, s, late)
	require.Equal(t, []int{1, 1}, []int{fresh, stale}, "the newest reminder is the one that comes")
	require.Zero(t, remindAt(t, s, late.Add(time.Minute)))
}

func TestNoReminderForATermThatIsShorterThanItsBucket(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	at := dbNow(t, s)
	sub, err := s.CreateSubscription(t.Context(), subscription.Subscription{UserID: "u", PlanKey: "pro", Status: subscription.Active, ExpiresAt: at.Add(2 * day)}, "test")
	require.NoError(t, err)
	require.Zero(t, remindAt(t, s, at.Add(time.Minute)).Told, "at its purchase")
	r := remindAt(t, s, at.Add(day+time.Minute))
	require.Equal(t, []int{1, 0}, []int{r.Told, r.Superseded}, "a day before its end")

	// A term that began long ago and is moved by two days is as short.
	_, err = pool.Exec(t.Context(), `UPDATE subscriptions SET started_at = now() - interval '90 days'`)
	require.NoError(t, err)
	_, err = s.ChangeSubscription(t.Context(), sub.ID, "test", "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Extend(at, 2*time.Hour)
	})
	require.NoError(t, err)
	require.Zero(t, remindAt(t, s, at.Add(time.Hour)).Told)
	require.Equal(t, 1, remindAt(t, s, at.Add(day+3*time.Hour)).Told)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM outbox WHERE topic = 'access.ending_soon' AND kind = '1d'`))
}

func TestOnlyWhatEndsForGoodIsReminded(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	at := dbNow(t, s)
	lasting(t, pool, 11, at.Add(2*day))
	for user, change := range map[string]string{
		"u_1":  `leeway_until = expires_at + interval '1 hour'`,
		"u_2":  `held_at = now()`,
		"u_3":  `expires_at = 'infinity'`,
		"u_4":  `status = 'canceled'`,
		"u_5":  `status = 'paused'`,
		"u_6":  `status = 'expired', expires_at = now()`,
		"u_7":  `comp_until = expires_at + interval '30 days'`,
		"u_8":  `status = 'trialing'`,
		"u_9":  `status = 'past_due', grace_period_ends_at = expires_at + interval '1 hour'`,
		"u_10": `cancel_at_period_end = true, provider = 'stripe', external_id = 'sub_10'`,
	} {
		_, err := pool.Exec(t.Context(), `UPDATE subscriptions SET `+change+` WHERE user_id = $1`, user)
		require.NoError(t, err)
	}
	require.Equal(t, 4, remindAt(t, s, at).Told)
	require.Equal(t, 4, count(t, pool, `SELECT count(*) FROM outbox WHERE user_id IN ('u_8', 'u_9', 'u_10', 'u_11') AND kind = '3d'`))
}

func TestTwoRunsRemindOnce(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	at := dbNow(t, s)
	lasting(t, pool, 500, at.Add(2*day))
	var done [2]store.Reminded
	var group errgroup.Group
	for i := range done {
		group.Go(func() (err error) {
			done[i], err = remindAll(t.Context(), s, at, 50)
			return err
		})
	}
	require.NoError(t, group.Wait())
	_, err := remindAll(t.Context(), s, at, 50) // what each left to the other
	require.NoError(t, err)
	require.Equal(t, 500, count(t, pool, `SELECT count(*) FROM outbox WHERE topic = 'access.ending_soon' AND kind = '3d'`))
	require.Equal(t, 500, count(t, pool, `SELECT count(DISTINCT subscription_id) FROM outbox`))
	require.Equal(t, 1000, count(t, pool, `SELECT count(*) FROM subscription_events`), "and the seven-day ones that were passed over")
}

func TestRenewalThatHoldsTheRowIsNotReminded(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	at := dbNow(t, s)
	lasting(t, pool, 2, at.Add(2*day))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `UPDATE subscriptions SET expires_at = expires_at + interval '30 days' WHERE user_id = 'u_1'`)
	require.NoError(t, err)
	require.Equal(t, 1, remindAt(t, s, at).Told)
	require.NoError(t, tx.Commit(t.Context()))
	require.Zero(t, remindAt(t, s, at).Told)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox WHERE user_id = 'u_2'`))
}
