package worker_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/intake"
	"termkeeper/internal/reconcile"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
	"termkeeper/worker"
	"termkeeper/workflows"
)

const (
	patience = 60 * time.Second
	poll     = 20 * time.Millisecond
)

// dial is a client on a namespace of the test's own. Its schedules end with the test: the server is everybody's, and
// schedules that nobody works for would tick on.
func dial(t *testing.T) temporalclient.Client {
	t.Helper()
	address, namespace := storetest.Temporal(t)
	tc := dialTo(t, address, namespace)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, id := range workflows.JobIDs() {
			var notFound *serviceerror.NotFound
			if err := tc.ScheduleClient().GetHandle(ctx, id).Delete(ctx); !errors.As(err, &notFound) {
				require.NoError(t, err)
			}
		}
	})
	return tc
}

func dialTo(t *testing.T, address, namespace string) temporalclient.Client {
	t.Helper()
	tc, err := temporalclient.Lazy(temporalclient.Options{
		Environ: []string{"TEMPORAL_ADDRESS=" + address, "TEMPORAL_NAMESPACE=" + namespace}, Identity: t.Name(), Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	t.Cleanup(tc.Close)
	return tc
}

func schedulesOf(tc temporalclient.Client, environment string, every map[string]time.Duration) *worker.Schedules {
	jobs, err := workflows.CatalogEvery(every)
	if err != nil {
		panic(err) // the test's own table
	}
	return &worker.Schedules{Client: tc, Environment: environment, Jobs: jobs, Out: io.Discard}
}

// system runs the workers on a database of the test's own until the test ends.
type system struct {
	t       *testing.T
	pool    *pgxpool.Pool
	store   *store.Store
	tc      temporalclient.Client
	workers *worker.Workers
	ended   chan error
	stop    context.CancelFunc
}

func start(t *testing.T, tc temporalclient.Client, prepare func(context.Context) error) *system {
	t.Helper()
	pool := storetest.New(t)
	s := &system{t: t, pool: pool, store: store.New(pool), tc: tc, ended: make(chan error, 1)}
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	runs := &activities.Runs{Store: s.store, Metrics: telemetry.NewMetrics(), Describe: temporalclient.NewSchedules(tc, workflows.JobIDs()).Describe}
	in := intake.New(s.store, intake.Settings{Owner: t.Name(), Leeway: time.Hour}, zap.NewNop())
	s.workers, err = worker.New(worker.Options{Client: tc, InstanceID: t.Name(), Logger: zap.NewNop(), Activities: worker.Activities{
		Subscriptions:  &activities.Subscriptions{Store: s.store, Runs: runs},
		Webhooks:       &activities.Webhooks{Intake: in, Runs: runs},
		Outbox:         &activities.Outbox{Store: s.store, Owner: t.Name(), Runs: runs},
		Idempotency:    &activities.Idempotency{Store: s.store, Runs: runs},
		Reconciliation: &activities.Reconciliation{Reconciler: &reconcile.Reconciler{Store: s.store}, Runs: runs},
	}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = stop
	go func() { s.ended <- s.workers.Run(ctx, prepare) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-s.ended)
		require.NoError(t, in.Drain(context.WithoutCancel(t.Context())))
	})
	return s
}

func (s *system) count(query string, args ...any) int {
	s.t.Helper()
	var n int
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), query, args...).Scan(&n))
	return n
}

func nopLogger() *zap.Logger { return zap.NewNop() }
