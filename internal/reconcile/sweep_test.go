package reconcile_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
)

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

// A list says nothing about a row that was heard of in the second in which it was asked for, or later: that one is asked for by
// itself, and what is answered then counts.
func TestListIsOlderThanWhatIsHeardOfMeanwhile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.seed(active(1), active(2))
	ended := sub{"status": "canceled", "ended_at": time.Now().Add(-time.Hour).Unix()}
	b.do(func() { b.stale = map[string]sub{"sub_00001": active(1).with(ended)} })
	b.change("sub_00002", ended)
	b.exec(`UPDATE subscriptions SET truth_at = date_trunc('second', now()) + interval '30 seconds'`)
	before := b.versions()
	b.run()
	require.Equal(t, before["sub_00001"], b.versions()["sub_00001"])
	require.Equal(t, 1, b.asked("/v1/subscriptions/sub_00001"))
	require.Equal(t, "canceled", b.text(`SELECT status FROM subscriptions WHERE external_id = 'sub_00002'`))
	require.Equal(t, map[string]int{"ended_there repaired": 1}, b.found)
}
