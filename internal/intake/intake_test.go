package intake_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bench struct {
	t      *testing.T
	pool   *pgxpool.Pool
	store  *store.Store
	intake *intake.Intake
	drain  func()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return benchWith(t, intake.Settings{Owner: t.Name(), Leeway: time.Hour})
}

func benchWith(t *testing.T, settings intake.Settings) *bench {
	t.Helper()
	pool := storetest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key, stripe_price_ids) VALUES ('pro', '{price_1}')`)
	require.NoError(t, err)
	b := &bench{t: t, pool: pool, store: store.New(pool), intake: intake.New(store.New(pool), settings, zap.NewNop())}
	b.drain = sync.OnceFunc(func() { require.NoError(t, b.intake.Drain(context.WithoutCancel(t.Context()))) })
	t.Cleanup(b.drain)
	return b
}

const created = 1_790_000_000

// body is a subscription event in the shape of 2023-10-16, or with its period at the items as of 2025-03-31.
func body(id, sub, user string, newShape bool) []byte {
	period := fmt.Sprintf(`"current_period_start":%d,"current_period_end":%d`, created, created+40*24*3600)
	top, item := period+",", ""
	if newShape {
		top, item = "", ","+period
	}
	return fmt.Appendf(nil, `{"id":%q,"object":"event","type":"customer.subscription.updated","created":%d,"livemode":false,"api_version":"x",
		"data":{"object":{"id":%q,"object":"subscription","status":"active","customer":"cus_%s","start_date":%d,%s"cancel_at_period_end":false,
		"metadata":{"user_id":%q},"items":{"data":[{"id":"si_1","price":{"id":"price_1"}%s}]}}}}`, id, created, sub, user, created, top, user, item)
}

func (b *bench) receive(raw []byte) bool {
	b.t.Helper()
	event, err := payment.ParseEvent(raw)
	require.NoError(b.t, err)
	duplicate, err := b.intake.Receive(b.t.Context(), event, raw)
	require.NoError(b.t, err)
	return duplicate
}

func (b *bench) count(query string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), query, args...).Scan(&n))
	return n
}

func (b *bench) eventually(want int, query string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.count(query) == want }, 10*time.Second, 5*time.Millisecond, query)
}

func TestBothShapesGiveTheSameRow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.False(t, b.receive(body("evt_1", "sub_old", "u_old", false)))
	require.False(t, b.receive(body("evt_2", "sub_new", "u_new", true)))
	b.eventually(2, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`)
	require.Equal(t, 1, b.count(`SELECT count(DISTINCT (plan_key, status, started_at, expires_at, leeway_until, access_until, provider_period_start)) FROM subscriptions`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM subscriptions WHERE expires_at = to_timestamp($1)`, created+40*24*3600))
	require.True(t, b.receive(body("evt_1", "sub_old", "u_old", false)))
}

func TestAThousandCopiesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	raw := body("evt_1", "sub_1", "u_1", true)
	event, err := payment.ParseEvent(raw)
	require.NoError(t, err)
	var fresh, failed atomic.Int32
	var callers sync.WaitGroup
	for range 1000 {
		callers.Go(func() {
			duplicate, err := b.intake.Receive(context.WithoutCancel(t.Context()), event, raw)
			switch {
			case err != nil:
				failed.Add(1)
			case !duplicate:
				fresh.Add(1)
			}
		})
	}
	callers.Wait()
	require.Zero(t, failed.Load())
	require.EqualValues(t, 1, fresh.Load())
	b.eventually(1, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM subscription_events`))
}

func TestDrainAppliesWhatWasTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 600 {
		b.receive(body(fmt.Sprintf("evt_%d", i), fmt.Sprintf("sub_%d", i), fmt.Sprintf("u_%d", i), i%2 == 0))
	}
	b.drain()
	require.Equal(t, 600, b.count(`SELECT count(*) FROM subscriptions`))
	require.Zero(t, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status <> 'processed' OR lease_owner IS NOT NULL`))
	_, err := b.intake.Receive(t.Context(), payment.Event{ID: "evt_late"}, nil)
	require.ErrorIs(t, err, intake.ErrClosed)
}

func TestPoisonStopsNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.pool.Exec(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poison'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON subscriptions FOR EACH ROW WHEN (NEW.user_id = 'u_poison') EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	for i := range 20 {
		user := fmt.Sprintf("u_%d", i)
		if i == 7 {
			user = "u_poison"
		}
		b.receive(body(fmt.Sprintf("evt_%d", i), fmt.Sprintf("sub_%d", i), user, true))
	}
	b.eventually(19, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`)
	const waiting = `SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND last_error LIKE '%poison%' AND next_attempt_at > now() AND lease_owner IS NULL`
	b.eventually(1, waiting)
	tally, err := b.intake.ApplyDue(t.Context(), 100)
	require.NoError(t, err)
	require.Equal(t, intake.Tally{}, tally, "its pause is not over")
	for range intake.MaxAttempts - 1 {
		_, err := b.pool.Exec(t.Context(), `UPDATE payment_webhook_events SET next_attempt_at = now()`)
		require.NoError(t, err)
		tally, err := b.intake.ApplyDue(t.Context(), 100)
		require.NoError(t, err)
		require.Equal(t, intake.Tally{Scanned: 1, Failed: 1}, tally)
	}
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'failed' AND attempts = 12`))

	_, err = b.pool.Exec(t.Context(), `DROP TRIGGER refuse ON subscriptions`)
	require.NoError(t, err)
	var id string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT id FROM payment_webhook_events WHERE status = 'failed'`).Scan(&id))
	require.NoError(t, b.intake.Replay(t.Context(), id))
	require.Equal(t, 20, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'processed'`))
}

func TestWhatIsOnlyKept(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for reason, raw := range map[string]string{
		"thin_event":     `{"id":"evt_1","object":"v2.core.event","type":"v1.billing.meter.no_meter_found"}`,
		"other_account":  `{"id":"evt_2","object":"event","type":"customer.subscription.updated","account":"acct_1","data":{"object":{"id":"sub_1"}}}`,
		"other_livemode": `{"id":"evt_3","object":"event","type":"customer.subscription.updated","livemode":true,"data":{"object":{"id":"sub_1"}}}`,
		"unused_type":    `{"id":"evt_4","object":"event","type":"invoice.upcoming","data":{"object":{"id":"in_1"}}}`,
		"no_object":      `{"id":"evt_5","object":"event","type":"customer.subscription.updated"}`,
	} {
		require.False(t, b.receive([]byte(raw)))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'ignored' AND reason = $1 AND convert_from(payload, 'UTF8') = $2`, reason, raw))
	}
	var id string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT id FROM payment_webhook_events WHERE external_event_id = 'evt_4'`).Scan(&id))
	require.NoError(t, b.intake.Replay(t.Context(), id))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM payment_webhook_events WHERE id = $1 AND status = 'ignored' AND reason = 'unused_type'`, id))
}

func TestApplyDueTakesWhatOthersLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.pool.Exec(t.Context(), `INSERT INTO payment_webhook_events (provider, external_event_id, type, payload) VALUES ('stripe', 'evt_1', 'customer.subscription.updated', $1)`,
		body("evt_1", "sub_1", "u_1", true))
	require.NoError(t, err)
	for i := range 5 {
		_, err := b.pool.Exec(t.Context(), `INSERT INTO payment_webhook_events (external_event_id, type, payload, leased_until, lease_owner) VALUES ($1, 'x', 'no JSON', now() - interval '1s', 'gone')`,
			fmt.Sprintf("evt_bad_%d", i))
		require.NoError(t, err)
	}
	tally, err := b.intake.ApplyDue(t.Context(), 3)
	require.NoError(t, err)
	require.True(t, tally.More)
	rest, err := b.intake.ApplyDue(t.Context(), 100)
	require.NoError(t, err)
	require.False(t, rest.More)
	require.Equal(t, 6, tally.Scanned+rest.Scanned)
	require.Equal(t, 1, tally.Changed+rest.Changed)
	require.Equal(t, 5, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status = 'failed' AND last_error LIKE '%not JSON%' AND attempts = 1`))
}
