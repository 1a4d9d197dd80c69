package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/reconcile"
	"termkeeper/internal/secret"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// bench is a reconciler between a database and a provider.
type bench struct {
	testing.TB
	*provider
	pool *pgxpool.Pool
	reconcile.Reconciler

	mu    sync.Mutex
	found map[string]int // by kind and action
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{TB: t, provider: newProvider(t), pool: storetest.New(t), found: map[string]int{}}
	client := payment.NewClient(secret.NewText("sk_test_1"), b.URL)
	t.Cleanup(client.Close)
	s := store.New(b.pool)
	in := intake.New(s, intake.Settings{Owner: "test", Leeway: time.Hour, Fetch: client.Subscription}, zap.NewNop())
	t.Cleanup(func() { require.NoError(t, in.Drain(context.WithoutCancel(t.Context()))) })
	b.Reconciler = reconcile.Reconciler{Store: s, Intake: in, Provider: client, Log: zap.NewNop(), Settings: reconcile.Settings{
		Leeway: time.Hour, Zone: time.UTC, OnFinding: func(kind, action string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.found[kind+" "+action]++
		},
	}}
	b.exec(`INSERT INTO plans (key, stripe_price_ids, grace_period) VALUES ('pro', '{price_pro}', '72 hours'), ('team', '{price_team}', '72 hours')`)
	return b
}

func (b *bench) exec(query string, args ...any) {
	b.Helper()
	_, err := b.pool.Exec(b.Context(), query, args...)
	require.NoError(b, err)
}

func (b *bench) count(query string, args ...any) (n int) {
	b.Helper()
	require.NoError(b, b.pool.QueryRow(b.Context(), query, args...).Scan(&n))
	return n
}

func (b *bench) text(query string, args ...any) (s string) {
	b.Helper()
	require.NoError(b, b.pool.QueryRow(b.Context(), query, args...).Scan(&s))
	return s
}

func stay(context.Context) bool { return false }

// run is a whole run that must end well.
func (b *bench) run() reconcile.Tally {
	b.Helper()
	tally, err := b.Run(b.Context(), stay)
	require.NoError(b, err)
	return tally
}

// seed has subscriptions at the provider, and rows for them as their events would have made them, an hour ago.
func (b *bench) seed(list ...sub) {
	b.Helper()
	for _, s := range list {
		_, _, err := b.Store.ApplyTruth(b.Context(), b.truth(s), time.Hour)
		require.NoError(b, err)
	}
	b.do(func() { b.subs = append(b.subs, list...) })
}

func (b *bench) truth(s sub) store.Truth {
	b.Helper()
	said, err := payment.Subscription(encoded(b.TB, s))
	require.NoError(b, err)
	return store.Truth{Provider: said, Asked: time.Now().UTC().Add(-time.Hour).Truncate(time.Second), Actor: store.ActorStripe}
}

// change changes a subscription at the provider alone.
func (b *bench) change(id string, fields sub) {
	b.do(func() {
		i := slices.IndexFunc(b.subs, func(s sub) bool { return s.id() == id })
		b.subs[i] = b.subs[i].with(fields)
	})
}

// versions are those of all rows by external id.
func (b *bench) versions() map[string]int64 {
	b.Helper()
	rows, err := b.pool.Query(b.Context(), `SELECT external_id, version FROM subscriptions`)
	require.NoError(b, err)
	versions := map[string]int64{}
	var id string
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&id, &version}, func() error { versions[id] = version; return nil })
	require.NoError(b, err)
	return versions
}

// tomorrow lets the next run sweep again.
func (b *bench) tomorrow() { b.exec(`UPDATE reconcile_state SET swept_on = swept_on - 1`) }

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

// ways are ten ways to drift apart: how the n-th subscription is changed at the provider or here, and what it is then.
var ways = []struct { //nolint:gochecknoglobals // a constant table
	kind   string
	there  func(sub) sub
	here   string // SQL on the row of $1
	expect string // a condition on the row after the repair
}{
	{kind: "ended_there", there: func(s sub) sub {
		return s.with(sub{"status": "canceled", "ended_at": time.Now().Add(-2 * time.Hour).Unix()})
	}, expect: `status = 'canceled' AND access_until < now()`},
	{kind: "period", there: func(s sub) sub {
		end := s.seconds("current_period_end")
		return s.with(sub{"current_period_start": end.Unix(), "current_period_end": end.AddDate(0, 0, 30).Unix()})
	}, expect: `status = 'active' AND expires_at > now() + interval '29 days' AND leeway_until = expires_at + interval '1 hour'`},
	{kind: "plan", there: func(s sub) sub {
		return s.with(sub{"items": map[string]any{"object": "list", "data": []any{map[string]any{"id": "si", "price": map[string]any{"id": "price_team"}}}}})
	}, expect: `plan_key = 'team'`},
	{kind: "set_to_end", there: func(s sub) sub { return s.with(sub{"cancel_at_period_end": true}) }, expect: `cancel_at_period_end AND leeway_until IS NULL`},
	{kind: "status", there: func(s sub) sub {
		start := time.Now().UTC().Truncate(time.Second).Add(-time.Hour)
		return s.with(sub{
			"status": "past_due", "current_period_start": start.Unix(), "current_period_end": start.AddDate(0, 0, 30).Unix(),
			"latest_invoice": map[string]any{"id": "in_2", "object": "invoice", "status": "open", "billing_reason": "subscription_cycle"},
		})
	}, expect: `status = 'past_due' AND expires_at < now() AND access_until > now() + interval '70 hours'`},
	{kind: "owner", there: func(s sub) sub {
		return s.with(sub{"metadata": map[string]any{"user_id": "other_" + s.id()}})
	}, expect: `user_id LIKE 'other_sub_%'`},
	{kind: "customer", there: func(s sub) sub { return s.with(sub{"customer": "cus_other_" + s.id()}) }, expect: `provider_customer_id LIKE 'cus_other_%'`},
	{kind: "missing", here: `DELETE FROM subscriptions WHERE external_id = $1`, expect: `status = 'active' AND access_until > now()`},
	{
		kind: "ended_here", here: `UPDATE subscriptions SET status = 'canceled', expires_at = now() - interval '1 day', leeway_until = NULL WHERE external_id = $1`,
		expect: `status = 'active' AND access_until > now()`,
	},
	{kind: "status", there: func(s sub) sub { return s.with(sub{"status": "paused"}) }, expect: `status = 'paused'`},
}

// drift has n subscriptions of which every twentieth drifts, the ways in turn. It returns the ids that do, by way.
func (b *bench) drift(n int) [][]string {
	b.Helper()
	list := make([]sub, n)
	for i := range list {
		list[i] = active(i)
	}
	b.do(func() { b.subs = list })
	b.plant(list)
	drifted := make([][]string, len(ways))
	for i := 0; i < n; i += 20 {
		way, id := i/20%len(ways), list[i].id()
		drifted[way] = append(drifted[way], id)
		if ways[way].there != nil {
			b.do(func() { b.subs[i] = ways[way].there(b.subs[i]) })
		}
		if ways[way].here != "" {
			b.exec(ways[way].here, id)
		}
	}
	return drifted
}

// plant makes the rows of active subscriptions, all at once, as their events would have made them an hour ago.
func (b *bench) plant(list []sub) {
	b.Helper()
	ids, users, customers := make([]string, len(list)), make([]string, len(list)), make([]string, len(list))
	starts, ends := make([]time.Time, len(list)), make([]time.Time, len(list))
	for i, s := range list {
		ids[i], users[i], customers[i] = s.id(), s["metadata"].(map[string]any)["user_id"].(string), s["customer"].(map[string]any)["id"].(string)
		starts[i], ends[i] = s.seconds("current_period_start"), s.seconds("current_period_end")
	}
	b.exec(`INSERT INTO subscriptions (id, user_id, plan_key, status, started_at, expires_at, leeway_until, provider, external_id, provider_status,
			provider_customer_id, provider_period_start, provider_period_end, truth_at)
		SELECT uuid_v7(now()), u.user_id, 'pro', 'active', u.start, u.until, u.until + interval '1 hour', 'stripe', u.id, 'active', u.customer, u.start, u.until,
			date_trunc('second', now()) - interval '1 hour'
		FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[]) AS u(id, user_id, customer, start, until)`,
		ids, users, customers, starts, ends)
}

// requireRepaired demands that what drifted, and nothing else, was found and repaired once.
func (b *bench) requireRepaired(before map[string]int64, drifted [][]string) {
	b.Helper()
	kinds := map[string]int{}
	after := b.versions()
	for way, ids := range drifted {
		kinds[ways[way].kind] += len(ids)
		require.Equal(b, len(ids), b.count(`SELECT count(*) FROM subscriptions WHERE external_id = ANY ($1) AND (`+ways[way].expect+`)`, ids), ways[way].expect)
		for _, id := range ids {
			if ways[way].kind == "missing" {
				require.EqualValues(b, 1, after[id])
			} else {
				require.Equal(b, before[id]+1, after[id], "%s is written once", id)
			}
			delete(before, id)
			delete(after, id)
		}
	}
	require.Equal(b, before, after, "no other row is touched")
	for kind, n := range kinds {
		require.Equal(b, n, b.count(`SELECT count(*) FROM drift_findings WHERE kind = $1 AND action = 'repaired'`, kind), kind)
		require.Equal(b, n, b.found[kind+" repaired"], kind)
	}
	require.Equal(b, b.count(`SELECT count(DISTINCT external_id) FROM drift_findings`), b.count(`SELECT count(*) FROM drift_findings`))
}

func TestTenThousandSubscriptionsOfWhichFiveHundredDrifted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	drifted := b.drift(10_000)
	before := b.versions()
	tally := b.run()
	require.EqualValues(t, 500, tally.Changed)
	require.EqualValues(t, 10_000, tally.Scanned)
	b.requireRepaired(before, drifted)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE topic = 'alert.drift' AND payload @> '{"repaired": 500}'`))
	b.tomorrow()
	require.Zero(t, b.run().Changed, "a repair leaves no difference")
}

func TestGoesOnWhereItWasKilled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	drifted := b.drift(1000)
	before := b.versions()
	ctx, kill := context.WithCancel(t.Context())
	sweeping := 0
	b.do(func() {
		b.calls = nil
		b.fail = func(_ int, path string, _ http.ResponseWriter) bool {
			if path == "/v1/subscriptions" {
				if sweeping++; sweeping == 5 {
					kill()
				}
			}
			return false
		}
	})
	_, err := b.Run(ctx, stay)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "sweep", b.text(`SELECT phase FROM reconcile_state`))
	require.Equal(t, "sub_00399", b.text(`SELECT phase_after FROM reconcile_state`))
	b.do(func() { b.calls = nil })
	b.run()
	require.Equal(t, 6, b.asked("/v1/subscriptions?"), "the pages that were done are not asked for again")
	require.Equal(t, 1, b.asked("starting_after=sub_00399"))
	b.requireRepaired(before, drifted)
}

// A process that is killed, or cut off, loses its lock with its connection: another run goes on at once, and what is left of
// the first one writes no progress.
func TestRunThatLostItsLockWritesNoProgress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	drifted := b.drift(600)
	before := b.versions()
	pages := 0
	b.do(func() {
		b.fail = func(_ int, path string, _ http.ResponseWriter) bool {
			if path != "/v1/subscriptions" {
				return false
			}
			if pages++; pages == 3 {
				b.exec(`SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
					WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()`)
			}
			return false
		}
	})
	_, err := b.Run(t.Context(), stay)
	require.Error(t, err)
	require.NotErrorIs(t, err, payment.ErrNoAnswer)
	require.Equal(t, "sub_00199", b.text(`SELECT phase_after FROM reconcile_state`))
	b.run()
	b.requireRepaired(before, drifted)
}

func TestProviderThatFailsHalfWayRepairsNothingByGuess(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(http.ResponseWriter){
		"500":           func(w http.ResponseWriter) { say(w, http.StatusInternalServerError, map[string]any{}) },
		"401":           func(w http.ResponseWriter) { say(w, http.StatusUnauthorized, map[string]any{}) },
		"a page":        func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>log in</html>")) },
		"an empty list": func(w http.ResponseWriter) { say(w, http.StatusOK, map[string]any{"object": "list"}) },
		"half a list": func(w http.ResponseWriter) {
			_, _ = w.Write([]byte(`{"object":"list","has_more":false,"data":[{"id":"sub_00400","object":"subscription","status":"canceled"`))
		},
		"404": func(w http.ResponseWriter) {
			say(w, http.StatusNotFound, map[string]any{"error": map[string]any{"message": "no"}})
		},
		"a reset": func(w http.ResponseWriter) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = connection.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			drifted := b.drift(400)
			before := b.versions()
			b.do(func() {
				pages := 0
				b.fail = func(_ int, path string, w http.ResponseWriter) bool {
					if path == "/v1/subscriptions" {
						pages++
					}
					if pages > 2 {
						fail(w)
						return true
					}
					return false
				}
			})
			tally, err := b.Run(t.Context(), stay)
			require.ErrorIs(t, err, payment.ErrNoAnswer)
			require.EqualValues(t, 10, tally.Changed, "two pages were answered")
			after := b.versions()
			for n := 200; n < 400; n++ {
				id := active(n).id()
				require.Equal(t, before[id], after[id], "%s was not answered for", id)
			}
			require.Equal(t, 10, b.count(`SELECT count(*) FROM drift_findings`))
			b.do(func() { b.fail = nil })
			b.run()
			b.requireRepaired(before, drifted)
		})
	}
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
}

func (b *bench) ids(query string) []string {
	b.Helper()
	rows, err := b.pool.Query(b.Context(), query)
	require.NoError(b, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b, err)
	return ids
}

func TestLostEventsAreTakenFromTheProvidersList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1), active(2), active(3))
	b.run()
	now := time.Now().UTC().Truncate(time.Second)
	next := sub{"current_period_end": now.AddDate(0, 0, 60).Unix()}
	recent, old := active(1).with(next), active(2).with(next)
	var list []told
	list = append(list, told{id: "evt_recent", kind: "customer.subscription.updated", created: now.Add(-time.Minute), object: recent, delivered: true})
	for n := range 250 { // of no use here, and more than two pages
		list = append(list, told{id: fmt.Sprintf("evt_noise_%d", n), kind: "charge.succeeded", created: now.Add(-time.Minute), object: sub{"id": "ch_1", "object": "charge"}, delivered: true})
	}
	list = append(list, told{id: "evt_old", kind: "customer.subscription.updated", created: now.AddDate(0, 0, -20), object: old},
		told{id: "evt_too_old", kind: "customer.subscription.updated", created: now.AddDate(0, 0, -31), object: active(3).with(next)})
	b.do(func() {
		b.events = list
		b.subs[0], b.subs[1] = recent, old
	})
	b.run()
	require.Equal(t, 2, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM payment_webhook_events`), "what is of no use is not kept")
	require.Equal(t, 2, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at > now() + interval '59 days'`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM drift_findings WHERE kind = 'event_missing' AND action = 'repaired' AND cause LIKE 'event evt_%was not delivered'
		AND subscription_id IS NOT NULL AND event_id IN ('evt_recent', 'evt_old')`))
	require.Equal(t, map[string]int{"event_missing repaired": 2}, b.found)
	b.run()
	require.Equal(t, 2, b.count(`SELECT count(*) FROM drift_findings`), "once")

	// What an event that stays undone would have told is its cause.
	b.exec(`UPDATE payment_webhook_events SET status = 'failed', object_id = 'sub_00003' WHERE external_event_id = 'evt_old'`)
	b.change("sub_00003", sub{"cancel_at_period_end": true})
	b.tomorrow()
	b.run()
	require.Equal(t, "event evt_old could not be applied", b.text(`SELECT cause FROM drift_findings WHERE kind = 'set_to_end'`))
}

func TestEventsThatAreUnderWayAreNotMissing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1))
	b.run()
	now := time.Now().UTC().Truncate(time.Second)
	e := told{id: "evt_1", kind: "customer.subscription.updated", created: now, object: active(1).with(sub{"cancel_at_period_end": true})}
	b.do(func() { b.events = []told{e} })
	delivered := make(chan error, 1)
	asked := false
	b.do(func() {
		b.fail = func(_ int, path string, _ http.ResponseWriter) bool {
			if path == "/v1/events" && !asked {
				asked = true
				go func() { // the webhook comes while the list is read
					body := encoded(t, sub{"id": e.id, "object": "event", "type": e.kind, "created": e.created.Unix(), "livemode": false, "data": sub{"object": e.object}})
					event, err := payment.ParseEvent(body)
					if err == nil {
						_, err = b.Intake.Receive(t.Context(), event, body)
					}
					delivered <- err
				}()
			}
			return false
		}
	})
	b.run()
	require.NoError(t, <-delivered)
	require.Zero(t, b.count(`SELECT count(*) FROM drift_findings WHERE event_id IS NOT NULL`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
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

func TestRunThatIsToldToLeaveGoesOnLater(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	drifted := b.drift(600)
	before := b.versions()
	left := 0
	for more := true; more; left++ {
		looks := 0
		tally, err := b.Run(t.Context(), func(context.Context) bool {
			looks++
			return looks > 9
		})
		require.NoError(t, err)
		more = tally.More
		require.Less(t, left, 100)
	}
	require.Greater(t, left, 3)
	b.requireRepaired(before, drifted)
}

func TestRowThatCannotBeWrittenStopsNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	drifted := b.drift(400)
	b.exec(`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.external_id = '` + drifted[0][0] + `' THEN RAISE EXCEPTION 'poison'; END IF; RETURN NEW; END $$`)
	b.exec(`CREATE TRIGGER poison BEFORE UPDATE ON subscriptions FOR EACH ROW EXECUTE FUNCTION poison()`)
	require.EqualValues(t, 19, b.run().Changed)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM drift_findings WHERE action = 'none' AND reason = 'the row cannot be written'`))
	b.exec(`DROP TRIGGER poison ON subscriptions`)
	b.tomorrow()
	require.EqualValues(t, 1, b.run().Changed)
	require.Zero(t, b.count(`SELECT count(*) FROM drift_findings WHERE action = 'none' AND resolved_at IS NULL`))
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
	require.False(t, strings.Contains(err.Error(), "sk_test"))
	require.EqualValues(t, 1, b.run().Scanned)
	require.False(t, errors.Is(err, context.Canceled))
}
