package activities_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/mail"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
)

// bench runs activities against a database and a mail sink of the test's own. Only Temporal is a stand-in here.
type bench struct {
	t        *testing.T
	pool     *pgxpool.Pool
	store    *store.Store
	schedule *schedule
	runs     *activities.Runs
}

func newBench(t *testing.T) *bench {
	t.Helper()
	pool := storetest.New(t)
	s := store.New(pool)
	sched := &schedule{starts: []temporalclient.Start{{RunID: testRunID, ScheduledAt: time.Now().Truncate(time.Second)}}}
	b := &bench{t: t, pool: pool, store: s, schedule: sched}
	b.runs = &activities.Runs{Store: s, Metrics: telemetry.NewMetrics(), Describe: sched.describe}
	b.exec(`INSERT INTO plans (key, name) VALUES ('pro', 'Pro')`)
	return b
}

// testRunID is the run id that the SDK's test environment gives.
const testRunID = "default-test-run-id"

// schedule answers for the server.
type schedule struct {
	mu     sync.Mutex
	paused bool
	down   bool
	starts []temporalclient.Start
	asked  int
}

func (s *schedule) describe(context.Context, string) (temporalclient.Schedule, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.down {
		return temporalclient.Schedule{}, temporalclient.ErrUnavailable
	}
	return temporalclient.Schedule{Paused: s.paused, Starts: s.starts}, nil
}

func (s *schedule) set(change func(*schedule)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *schedule) askedTimes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (b *bench) exec(query string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), query, args...)
	require.NoError(b.t, err)
}

func (b *bench) count(query string) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), query).Scan(&n))
	return n
}

func (b *bench) text(query string, args ...any) string {
	b.t.Helper()
	var text string
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), query, args...).Scan(&text))
	return text
}

// due makes n users with an address, each with a subscription that has ended.
func (b *bench) due(n int) {
	b.t.Helper()
	b.exec(`INSERT INTO users (id, email, name) SELECT 'u_' || i, 'u' || i || '@example.com', 'User ' || i FROM generate_series(1, $1) i`, n)
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, expires_at) SELECT 'u_' || i, 'pro', 'active', now() - interval '1 minute' FROM generate_series(1, $1) i`, n)
}

// manual is a run that a person asked for: it drains and never waits.
func manual(job string) activities.Run {
	now := time.Now()
	return activities.Run{
		Scan: activities.Scan{
			Job: job, Every: activities.Duration(10 * time.Second), CatchUp: activities.Duration(10 * time.Second),
			Budget: activities.Duration(time.Minute), Lingers: true, Batch: 100, MaxBatch: 400,
		},
		PublishedAt: now, DeadlineAt: now.Add(3 * time.Minute),
	}
}

// scheduled is a run of a tick that is due just now, of the given cadence.
func scheduled(job string, every time.Duration) activities.Run {
	run := manual(job)
	run.Every = activities.Duration(every)
	run.ScheduledAt = time.Now().Truncate(time.Second)
	run.Offset = activities.Duration(time.Duration(run.ScheduledAt.Unix()%int64(every/time.Second)) * time.Second)
	return run
}

func (b *bench) environment() *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.SetTestTimeout(time.Minute)
	return env
}

func (b *bench) run(env *testsuite.TestActivityEnvironment, activity any, in activities.Run) (activities.Tally, error) {
	env.RegisterActivity(activity)
	var tally activities.Tally
	answer, err := env.ExecuteActivity(activity, in)
	if err == nil {
		err = answer.Get(&tally)
	}
	return tally, err
}

func (b *bench) expire(in activities.Run) (activities.Tally, error) {
	subscriptions := &activities.Subscriptions{Store: b.store, Runs: b.runs}
	return b.run(b.environment(), subscriptions.Expire, in)
}

// expired runs the scan once over everything.
func (b *bench) expired() {
	b.t.Helper()
	_, err := b.expire(manual(store.JobExpiry))
	require.NoError(b.t, err)
}

func (b *bench) sink() *simulator.Simulator {
	b.t.Helper()
	sim, err := simulator.Start(b.t.Context(), simulator.Options{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, sim.Close(context.WithoutCancel(b.t.Context()))) })
	return sim
}

func (b *bench) outbox(smtpURL string) *activities.Outbox {
	b.t.Helper()
	sender, err := mail.New(smtpURL)
	require.NoError(b.t, err)
	return &activities.Outbox{Store: b.store, Mail: sender, Owner: "test", Runs: b.runs}
}

func (b *bench) deliver(o *activities.Outbox) activities.Tally {
	b.t.Helper()
	tally, err := b.run(b.environment(), o.Deliver, manual("outbox-delivery"))
	require.NoError(b.t, err)
	return tally
}

// lastRun is the newest run of the expiry.
func (b *bench) lastRun() store.Run {
	b.t.Helper()
	list, err := b.store.RecentRuns(b.t.Context(), store.JobExpiry, store.RunCursor{}, 1)
	require.NoError(b.t, err)
	require.Len(b.t, list, 1)
	return list[0]
}

// metrics is what a scrape would read.
func (b *bench) metrics() string {
	b.t.Helper()
	request := httptest.NewRequestWithContext(b.t.Context(), http.MethodGet, "/metrics", nil)
	answer := httptest.NewRecorder()
	telemetry.OpsHandler(b.runs.Metrics, zap.NewAtomicLevel(), func(context.Context) error { return nil }).ServeHTTP(answer, request)
	return answer.Body.String()
}
