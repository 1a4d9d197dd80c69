package reconcile_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

func TestWhatAgreesIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var list []sub
	for n := range 120 {
		list = append(list, active(n))
	}
	b.seed(list...)
	// A row that was made by SQL has the right terms and none of the provider's words.
	b.exec(`UPDATE subscriptions SET provider_status = NULL, provider_customer_id = NULL, provider_period_start = NULL, provider_period_end = NULL,
		truth_at = NULL, started_at = now() WHERE external_id = 'sub_00007'`)
	before := b.versions()
	tally := b.run()
	require.EqualValues(t, 120, tally.Scanned)
	require.Zero(t, tally.Changed)
	require.Equal(t, before, b.versions())
	require.Zero(t, b.count(`SELECT count(*) FROM drift_findings`))
	require.Zero(t, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.drift'`))
	require.Equal(t, 2, b.asked("/v1/subscriptions?"))
	b.run()
	require.Equal(t, 2, b.asked("/v1/subscriptions?"), "one sweep a day")
	b.tomorrow()
	b.run()
	require.Equal(t, 4, b.asked("/v1/subscriptions?"))
}

func TestLatePaymentRevivesOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := active(1)
	start := time.Now().UTC().Truncate(time.Second).Add(-3 * time.Hour)
	s = s.with(sub{"current_period_start": start.AddDate(0, 0, -30).Unix(), "current_period_end": start.Unix()})
	b.seed(s)
	batch, err := b.Store.ExpireDue(t.Context(), time.Now().UTC(), store.ExpiryCursor{}, 10, false)
	require.NoError(t, err)
	require.Equal(t, 1, batch.Count)
	b.change(s.id(), sub{"current_period_start": start.Unix(), "current_period_end": start.AddDate(0, 0, 30).Unix()})
	b.tomorrow()
	var runs sync.WaitGroup
	for range 4 {
		runs.Go(func() { _, _ = b.Run(t.Context(), stay) })
	}
	runs.Wait()
	b.tomorrow()
	b.run()
	require.Equal(t, "active", b.text(`SELECT status FROM subscriptions`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE gives_access(subscriptions, now()) AND expired_at IS NULL`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'access.started' AND kind = 'returned'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events WHERE event_type = 'renewed'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE kind = 'ended_here' AND action = 'repaired' AND user_id = 'u_00001'
		AND ours ->> 'status' = 'expired' AND theirs ->> 'status' = 'active'`))
	require.Equal(t, map[string]int{"ended_here repaired": 1}, b.found)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.drift' AND payload @> '{"repaired": 1, "kinds": {"ended_here": 1}}'`))
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.drift(200)
	b.do(func() {
		b.calls = nil
		b.fail = func(_ int, path string, w http.ResponseWriter) bool {
			if path != "/v1/subscriptions" {
				return false
			}
			w.Header().Set("Retry-After", "600")
			say(w, http.StatusTooManyRequests, map[string]any{"error": map[string]any{"type": "rate_limit_error", "message": "slow down"}})
			return true
		}
	})
	tally := b.run()
	require.EqualValues(t, 1, tally.Failed)
	require.Zero(t, tally.Changed)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM reconcile_state WHERE not_before BETWEEN now() + interval '590 seconds' AND now() + interval '600 seconds'`))
	calls := b.asked("/")
	require.Zero(t, b.run())
	require.Equal(t, calls, b.asked("/"), "nothing is asked before")
	b.exec(`UPDATE reconcile_state SET not_before = now()`)
	b.do(func() { b.fail = nil })
	require.EqualValues(t, 10, b.run().Changed)
}

func TestWhatIsNotMappedIsQuarantinedAndHealsWithItsMapping(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	nobodys := active(1).with(sub{"metadata": map[string]any{}})
	unsold := active(2).with(sub{"items": map[string]any{"object": "list", "data": []any{map[string]any{"id": "si", "price": map[string]any{"id": "price_new"}}}}})
	ended := active(3).with(sub{"metadata": map[string]any{}, "status": "canceled", "ended_at": time.Now().Add(-time.Hour).Unix()})
	old := active(4).with(sub{"status": "canceled", "ended_at": time.Now().AddDate(0, 0, -31).Unix()})
	strange := active(5).with(sub{"status": "hibernating"})
	never := active(6).with(sub{"status": "incomplete"})
	b.do(func() { b.subs = []sub{nobodys, unsold, ended, old, strange, never} })
	for range 3 {
		b.run()
		b.tomorrow()
	}
	require.Zero(t, b.count(`SELECT count(*) FROM subscriptions`))
	require.Equal(t, 3, b.count(`SELECT count(*) FROM drift_findings WHERE action = 'quarantined' AND resolved_at IS NULL AND reason = kind`), "each is one row")
	require.Equal(t, map[string]int{"user_unmapped quarantined": 1, "plan_unmapped quarantined": 1, "unknown_status quarantined": 1}, b.found)
	require.Zero(t, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.drift'`))

	b.run() // today's sweep is over; what is mapped now does not wait for the next
	_, err := b.Store.LinkStripeCustomer(t.Context(), "cus_00001", "u_linked")
	require.NoError(t, err)
	b.exec(`UPDATE plans SET stripe_price_ids = '{price_pro,price_new}' WHERE key = 'pro'`)
	require.EqualValues(t, 2, b.run().Changed)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE external_id = 'sub_00001' AND user_id = 'u_linked'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscriptions WHERE external_id = 'sub_00002' AND user_id = 'u_00002'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE action = 'quarantined' AND resolved_at IS NULL`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM drift_findings WHERE kind = 'missing' AND action = 'repaired'`))
}

func TestRowsThatTheProviderDidNotListAreAskedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	list := make([]sub, 8)
	for n := range list {
		list[n] = active(n)
	}
	b.seed(list...)
	b.exec(`UPDATE subscriptions SET status = 'canceled', expires_at = now() - interval '31 days', leeway_until = NULL WHERE external_id = 'sub_00005'`) // too long ago
	b.exec(`UPDATE subscriptions SET status = 'canceled', expires_at = now() - interval '29 days', leeway_until = NULL WHERE external_id = 'sub_00006'`)
	b.do(func() {
		b.hide = map[string]bool{"sub_00003": true, "sub_00004": true, "sub_00005": true, "sub_00006": true}
		b.subs = b.subs[:7] // the provider does not know the last one
		b.subs[4] = b.subs[4].with(sub{"status": "canceled", "ended_at": time.Now().Add(-time.Hour).Unix()})
	})
	before := b.versions()
	b.run()
	require.Equal(t, 1, b.asked("/v1/subscriptions/sub_00003"))
	require.Zero(t, b.asked("/v1/subscriptions/sub_00000"))
	require.Zero(t, b.asked("/v1/subscriptions/sub_00005"))
	require.Equal(t, "canceled", b.text(`SELECT status FROM subscriptions WHERE external_id = 'sub_00004'`))
	require.Equal(t, "active", b.text(`SELECT status FROM subscriptions WHERE external_id = 'sub_00006'`))
	require.Equal(t, before["sub_00007"], b.versions()["sub_00007"], "a 404 repairs nothing")
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE external_id = 'sub_00007' AND kind = 'unknown_there' AND action = 'none'
		AND reason LIKE '%proves no deletion'`))
	require.Equal(t, map[string]int{"ended_there repaired": 1, "ended_here repaired": 1, "unknown_there none": 1}, b.found)
	b.tomorrow()
	b.run()
	require.Equal(t, 3, b.count(`SELECT count(*) FROM drift_findings`), "what stays is one row")
}

func TestRowsInDoubtAreAskedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1), active(2), active(3))
	b.run()
	b.change("sub_00002", sub{"cancel_at_period_end": true})
	b.do(func() { b.subs = b.subs[:2] })
	b.exec(`UPDATE subscriptions SET needs_reconcile = true`)
	require.EqualValues(t, 1, b.run().Changed)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE external_id = 'sub_00002' AND kind = 'set_to_end' AND cause LIKE '%order%'`))
	require.Equal(t, []string{"sub_00003"}, b.ids(`SELECT external_id FROM subscriptions WHERE needs_reconcile`), "a 404 is no answer")
	b.run()
	require.Equal(t, 1, b.asked("/v1/subscriptions/sub_00003"), "and not asked for in every run")
	b.exec(`UPDATE drift_findings SET seen_at = now() - interval '61 minutes'`)
	b.run()
	require.Equal(t, 2, b.asked("/v1/subscriptions/sub_00003"))
}

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1))
	lock, err := b.Store.LockReconcile(t.Context())
	require.NoError(t, err)
	require.NotNil(t, lock)
	require.Zero(t, b.run())
	require.Zero(t, b.asked("/"))
	lock.Release(t.Context())
	require.EqualValues(t, 1, b.run().Scanned)
}

func TestWeeklyReport(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`INSERT INTO drift_findings (kind, action, external_id, reason, found_at) SELECT kind, action, 'sub_' || n, 'r', date_trunc('week', now()) - ago
		FROM (VALUES ('period', 'repaired', interval '1 hour', 1), ('period', 'repaired', interval '6 days', 2), ('plan', 'none', interval '2 days', 3),
			('plan', 'repaired', interval '8 days', 4), ('plan', 'repaired', interval '0', 5)) AS v(kind, action, ago, n)`)
	for range 2 {
		b.run()
	}
	year, week := time.Now().UTC().AddDate(0, 0, -7).ISOWeek()
	name := fmt.Sprintf("%d-W%02d", year, week)
	require.Equal(t, "report.drift:"+name, b.text(`SELECT dedupe_key FROM outbox WHERE topic = 'report.drift'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'report.drift' AND payload @> $1`, `{"week":"`+name+`","open":1,
		"counts":[{"kind":"period","action":"repaired","count":2},{"kind":"plan","action":"none","count":1}]}`))
}

func TestWithoutAKeyThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Provider = nil
	require.Zero(t, b.run())
}

func TestListThatCannotBeGoneOnWithBeginsAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1))
	b.exec(`UPDATE reconcile_state SET phase = 'sweep', phase_after = 'sub_gone', swept_on = current_date`)
	_, err := b.Run(t.Context(), stay)
	require.ErrorIs(t, err, payment.ErrNoAnswer)
	require.NotContains(t, err.Error(), "sk_test")
	require.EqualValues(t, 1, b.run().Scanned)
}
