package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"termkeeper/api"
	"termkeeper/internal/access"
	"termkeeper/internal/config"
	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

func apiCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve the HTTP API",
		Long: `Serves the HTTP API, and health and metrics on an address of their own. It needs PostgreSQL; Temporal may be down.
SIGTERM or Ctrl-C stops it in order: not ready, no new connections, running requests, events taken in. A second one ends it at once.`,
		Example: `  termkeeper api
  termkeeper api --http 0.0.0.0:8080 --ops 127.0.0.1:9090`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runAPI(cmd) },
	}
	overrideFlag(cmd, "http", "TERMKEEPER_HTTP_ADDR", "address of the API; port 0 takes a free one")
	overrideFlag(cmd, "ops", "TERMKEEPER_OPS_ADDR", "address of health and metrics; port 0 takes a free one")
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}

// gcPercent lets the heap grow to five times what lives: that is some 10 MB, which the usual doubling would have collected
// ten times a second under load. GOGC overrides it, GOMEMLIMIT bounds it.
const gcPercent = 400

func (p *program) runAPI(cmd *cobra.Command) error {
	c, err := p.config(cmd, config.NeedDatabase, config.NeedWebhookSecrets)
	if err != nil {
		return err
	}
	if p.getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log, level := telemetry.NewLogger(p.stderr, zapcore.InfoLevel)
	log = log.With(zap.String("instance", c.InstanceID))
	metrics := telemetry.NewMetrics()
	sdkMetrics, err := temporalclient.NewMetrics(metrics.Registry(), log)
	if err != nil {
		return err
	}
	temporal, err := temporalclient.Lazy(temporalclient.Options{Environ: p.environ, Identity: c.InstanceID, Logger: log, Metrics: sdkMetrics})
	if err != nil {
		return usage(err)
	}
	defer temporal.Close()

	schedules := temporalclient.NewSchedules(temporal, workflows.JobIDs())
	watchSkippedOverlaps(metrics, schedules)
	server, err := startAPI(cmd.Context(), apiOptions{config: c, log: log, metrics: metrics, schedules: schedules})
	if err != nil {
		return err
	}
	ops, err := telemetry.OpenOps(c.OpsAddr, metrics, level, server.ready)
	if err != nil {
		return errors.Join(err, server.stop())
	}
	opsFailed := make(chan error, 1)
	go func() { opsFailed <- ops.Serve() }()
	log.Info("serving", zap.String("http_addr", server.addr()), zap.String("ops_addr", ops.Addr()), zap.String("environment", c.Environment))

	var failure error
	select {
	case <-cmd.Context().Done():
		log.Info("stopping")
	case failure = <-server.failed:
	case failure = <-opsFailed:
	}
	failure = errors.Join(failure, server.stop())
	last, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), time.Second)
	defer cancel()
	return errors.Join(failure, ops.Shutdown(last))
}

// apiOptions is what an API server is started with.
type apiOptions struct {
	config    config.Config
	log       *zap.Logger
	metrics   *telemetry.Metrics
	schedules *temporalclient.Schedules
}

// apiServer is a running API with its own pools of connections: one for the access path, one for the events that come in
// and one for the rest, so that none can take the connections of another.
type apiServer struct {
	listener net.Listener
	server   *api.Server
	reader   *access.Reader
	cached   *access.Cached // nil in strict mode
	intake   *intake.Intake
	payments *payment.Client // nil where no key is configured
	pools    apiPools
	stopping atomic.Bool
	failed   chan error // gets the error of a server that ended by itself
}

type apiPools struct {
	access, intake, rest *pgxpool.Pool
	feed                 *pgxpool.Pool // of changes, for the cached access mode; nil in strict mode
}

// startAPI opens the pools, checks that the database is the right one and of the right schema, and serves.
func startAPI(ctx context.Context, o apiOptions) (*apiServer, error) {
	pools, err := openAPIPools(ctx, o.config)
	if err != nil {
		return nil, databaseError(err)
	}
	rest := store.New(pools.rest)
	if err := checkSchema(ctx, rest); err != nil {
		pools.close()
		return nil, err
	}
	if err := rest.ClaimEnvironment(ctx, o.config.Environment); err != nil {
		pools.close()
		return nil, databaseError(err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.config.HTTPAddr)
	if err != nil {
		pools.close()
		return nil, fmt.Errorf("listening on %s: %w; choose another address with TERMKEEPER_HTTP_ADDR", o.config.HTTPAddr, err)
	}
	pools.watch(o.metrics)
	o.metrics.WatchBacklog(func(ctx context.Context) (telemetry.Backlog, error) { return backlog(ctx, rest) })

	a := &apiServer{listener: listener, pools: pools, failed: make(chan error, 1)}
	a.reader = access.NewReader(store.New(pools.access))
	var reader api.AccessReader = a.reader
	if pools.feed != nil {
		a.cached = access.NewCached(a.reader, store.New(pools.feed), o.log)
		o.metrics.WatchAccessCache(func() telemetry.AccessCache { return telemetry.AccessCache(a.cached.Stats()) })
		reader = a.cached
	}
	a.payments = paymentClient(o.config)
	orders := &settlement.Settler{Store: rest, Provider: a.payments, Owner: o.config.InstanceID, Log: o.log}
	a.intake = intake.New(store.New(pools.intake), intakeSettings(o.config, o.metrics, a.payments, orders), o.log)
	a.server = api.New(api.Parts{
		Access: reader, Keys: store.New(pools.access), Store: rest,
		Webhooks: api.Webhooks{
			Intake: a.intake, Secrets: o.config.WebhookKeys(),
			Provider: api.Provider{
				Client: a.payments, Leeway: o.config.RenewalLeeway,
				Orders: orders,
			},
			Outgoing: api.Endpoints{Sealer: sealer(o.config), AllowPrivate: o.config.PrivateTargets()},
		},
		Schedules: o.schedules,
		Telemetry: api.Telemetry{Log: o.log, Metrics: o.metrics},
	})
	go func() {
		if err := a.server.Serve(listener); err != nil {
			a.failed <- err
		}
	}()
	return a, nil
}

// intakeSettings are the same where events come in and where the job applies what was left.
func intakeSettings(c config.Config, metrics *telemetry.Metrics, provider *payment.Client, orders *settlement.Settler) intake.Settings {
	settings := intake.Settings{
		Owner: c.InstanceID, Leeway: c.RenewalLeeway, Livemode: c.Livemode(), Orders: orders,
		OnResult: func(eventType, outcome string) {
			metrics.WebhookApplied.WithLabelValues(telemetry.EventType(eventType), outcome).Inc()
		},
	}
	if provider != nil {
		settings.Fetch, settings.Money = provider.Subscription, provider
	}
	return settings
}

// paymentClient speaks to the payment provider; nil where no key is configured.
func paymentClient(c config.Config) *payment.Client {
	if c.StripeAPIKey.Empty() {
		return nil
	}
	return payment.NewClient(c.StripeAPIKey, c.StripeAPIBase)
}

// openAPIPools: the sum of the connections, 22 and one more in cached mode, is what one API process takes of max_connections.
func openAPIPools(ctx context.Context, c config.Config) (apiPools, error) {
	var p apiPools
	var err error
	open := func(to **pgxpool.Pool, o store.PoolOptions) {
		if err == nil {
			*to, err = store.Open(ctx, c.DatabaseURL.Reveal(), o)
		}
	}
	// Two readers and the look-ups of keys. The statements end before the deadline of an access check does.
	open(&p.access, store.PoolOptions{
		Name: "termkeeper api access", MaxConns: 4, StatementTimeout: 350 * time.Millisecond, LockTimeout: 200 * time.Millisecond, GenericPlans: true,
		KeepOpen: true, // when others use up what the server has, access is answered all the same
	})
	open(&p.intake, store.PoolOptions{Name: "termkeeper api intake", MaxConns: 8, StatementTimeout: 8 * time.Second, LockTimeout: 4 * time.Second})
	open(&p.rest, store.PoolOptions{Name: "termkeeper api", MaxConns: 10, StatementTimeout: 8 * time.Second, LockTimeout: 3 * time.Second})
	if c.AccessMode == config.AccessCached {
		open(&p.feed, store.PoolOptions{
			Name: "termkeeper api feed", MaxConns: 1, StatementTimeout: 3 * time.Second, LockTimeout: time.Second, GenericPlans: true, IndexScans: true,
		})
	}
	if err != nil {
		p.close()
	}
	return p, err
}

func (p apiPools) close() {
	for _, pool := range []*pgxpool.Pool{p.access, p.intake, p.rest, p.feed} {
		if pool != nil {
			pool.Close()
		}
	}
}

func (p apiPools) watch(m *telemetry.Metrics) {
	m.WatchPool("access", p.access)
	m.WatchPool("intake", p.intake)
	m.WatchPool("api", p.rest)
}

func backlog(ctx context.Context, s *store.Store) (telemetry.Backlog, error) {
	var b telemetry.Backlog
	var err error
	if b.WebhookOldestUnprocessed, err = s.OldestUnprocessedWebhookEvent(ctx); err != nil {
		return b, err
	}
	b.OutboxPending, b.OutboxOldest, err = s.OutboxBacklog(ctx)
	return b, err
}

// watchSkippedOverlaps is called once for a process: the schedules are the same for its API and its workers.
func watchSkippedOverlaps(metrics *telemetry.Metrics, schedules *temporalclient.Schedules) {
	metrics.WatchSkippedOverlaps(func(ctx context.Context) (map[string]int64, error) {
		list, err := schedules.List(ctx)
		skipped := make(map[string]int64, len(list))
		for job, schedule := range list {
			skipped[job] = schedule.SkippedOverlaps
		}
		return skipped, err
	})
}

// addr is the address that is really listened on.
func (a *apiServer) addr() string { return a.listener.Addr().String() }

// ready: the API can answer when the database does. Temporal may be down.
func (a *apiServer) ready(ctx context.Context) error {
	if a.stopping.Load() {
		return errors.New("stopping")
	}
	if err := a.pools.access.Ping(ctx); err != nil {
		return errors.New("the database does not answer")
	}
	return nil
}

const (
	httpDrain   = 10 * time.Second // for requests that run
	intakeDrain = 10 * time.Second // for events that were taken in and not applied yet
)

// stop ends the server in order: not ready, no new connections, running requests, events taken in, pools.
func (a *apiServer) stop() error {
	a.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), httpDrain)
	defer cancel()
	err := a.server.Stop(ctx)
	ctx, cancel = context.WithTimeout(context.Background(), intakeDrain)
	defer cancel()
	err = errors.Join(err, a.intake.Drain(ctx))
	a.payments.Close()
	if a.cached != nil {
		a.cached.Close()
	}
	a.reader.Close()
	a.pools.close()
	return err
}
