package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"termkeeper/activities"
	"termkeeper/internal/config"
	"termkeeper/internal/intake"
	"termkeeper/internal/mail"
	"termkeeper/internal/payment"
	"termkeeper/internal/reconcile"
	"termkeeper/internal/secret"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
	"termkeeper/internal/webhook"
	"termkeeper/worker"
	"termkeeper/workflows"
)

// workerConns is the pool of one worker process: what its activities use at once, and the intake of webhook-apply.
const workerConns = 24

func workerCommand(p *program) *cobra.Command {
	var queues []string
	var noSchedules bool
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run the jobs: workers for all queues, or for those named",
		Long: `Runs the workers of the task queues and applies the schedules when it starts; any number of worker processes may do so
at once. It is not ready while Temporal cannot be reached, and tries again until it can. SIGTERM stops the polling and
lets running batches finish, for twenty seconds at most.`,
		Example: `  termkeeper worker
  termkeeper worker --queues subscriptions,payments
  termkeeper worker --no-schedules`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config(cmd, config.NeedDatabase)
			if err != nil {
				return err
			}
			if queues, err = worker.Queues(queues); err != nil {
				return usage(err)
			}
			return p.runWorker(cmd.Context(), c, queues, !noSchedules)
		},
	}
	cmd.Flags().StringSliceVar(&queues, "queues", nil, "task queues to serve (default all)")
	cmd.Flags().BoolVar(&noSchedules, "no-schedules", false, "leave the schedules alone")
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	overrideFlag(cmd, "ops", "TERMKEEPER_OPS_ADDR", "address of health and metrics")
	return cmd
}

// runWorker runs the workers until ctx ends.
func (p *program) runWorker(ctx context.Context, c config.Config, queues []string, applySchedules bool) error {
	log, level := telemetry.NewLogger(p.stderr, zapcore.InfoLevel)
	log = log.With(zap.String("instance_id", c.InstanceID))
	metrics := telemetry.NewMetrics()
	sdkMetrics, err := temporalclient.NewMetrics(metrics.Registry(), log)
	if err != nil {
		return err
	}
	tc, err := temporalclient.Lazy(temporalclient.Options{Environ: p.environ, Identity: c.InstanceID, Logger: log, Metrics: sdkMetrics})
	if err != nil {
		return usage(err)
	}
	defer tc.Close()
	schedules := temporalclient.NewSchedules(tc, workflows.JobIDs())
	watchSkippedOverlaps(metrics, schedules)
	w, err := openWorker(ctx, workerOptions{
		config: c, log: log, metrics: metrics, temporal: tc, schedules: schedules, queues: queues,
	})
	if err != nil {
		return err
	}
	defer w.close()
	ops, err := telemetry.OpenOps(c.OpsAddr, metrics, level, w.ready)
	if err != nil {
		return err
	}
	go func() {
		if err := ops.Serve(); err != nil {
			log.Error("health and metrics ended", zap.Error(err))
		}
	}()
	defer shutDown(ops, log)

	var prepare func(context.Context) error
	if applySchedules {
		schedules, err := newSchedules(c, tc, p.stderr)
		if err != nil {
			return usage(err)
		}
		prepare = schedules.Apply
	}
	log.Info("worker starts", zap.Strings("queues", queues), zap.String("ops_addr", ops.Addr()))
	return w.workers.Run(ctx, prepare)
}

// workerOptions is what the workers of a process are opened with.
type workerOptions struct {
	config    config.Config
	log       *zap.Logger
	metrics   *telemetry.Metrics
	temporal  temporalclient.Client
	schedules *temporalclient.Schedules
	queues    []string
}

// openedWorker is the workers of a process, ready to run.
type openedWorker struct {
	workers *worker.Workers
	store   *store.Store
	close   func()
}

// openWorker opens the pool, checks that the database is the right one and of the right schema, and wires the jobs.
func openWorker(ctx context.Context, o workerOptions) (*openedWorker, error) {
	pool, err := store.Open(ctx, o.config.DatabaseURL.Reveal(), store.PoolOptions{
		Name: "termkeeper worker", MaxConns: workerConns, StatementTimeout: 30 * time.Second, LockTimeout: 5 * time.Second,
	})
	if err != nil {
		return nil, databaseError(err)
	}
	s := store.New(pool)
	opened, err := func() (*openedWorker, error) {
		if err := checkSchema(ctx, s); err != nil {
			return nil, err
		}
		if err := s.ClaimEnvironment(ctx, o.config.Environment); err != nil {
			return nil, err
		}
		jobs, err := newJobs(o, s)
		if err != nil {
			return nil, usage(err)
		}
		closeAll := func() {
			jobs.drain(o.log)
			pool.Close()
		}
		workers, err := worker.New(worker.Options{
			Client: o.temporal, InstanceID: o.config.InstanceID, Queues: o.queues, Activities: jobs.activities, Logger: o.log,
		})
		if err != nil {
			closeAll()
			return nil, err
		}
		return &openedWorker{workers: workers, store: s, close: closeAll}, nil
	}()
	if err != nil {
		pool.Close() // closing a closed pool does nothing
		return nil, err
	}
	o.metrics.WatchPool("worker", pool)
	return opened, nil
}

// ready: the workers poll, and both servers answer.
func (w *openedWorker) ready(ctx context.Context) error {
	return errors.Join(w.workers.Ready(ctx), w.store.Ping(ctx))
}

// jobs is what the jobs of one process are made of.
type jobs struct {
	activities worker.Activities
	intake     *intake.Intake
	payments   *payment.Client // nil where no key is configured
}

// newJobs wires the activities. The caller drains it.
func newJobs(o workerOptions, s *store.Store) (*jobs, error) {
	c := o.config
	var sender *mail.Sender
	if c.SMTPURL.Empty() {
		o.log.Warn("SMTP_URL is not set: nobody is told by mail")
	} else {
		var err error
		if sender, err = mail.New(c.SMTPURL.Reveal()); err != nil {
			return nil, fmt.Errorf("SMTP_URL: %w", err)
		}
	}
	calls := webhooker(c)
	if calls == nil {
		o.log.Warn("TERMKEEPER_SECRET_KEY is not set: no webhook endpoint can be made or called")
	}
	runs := &activities.Runs{Store: s, Metrics: o.metrics, Describe: o.schedules.Describe}
	payments := paymentClient(c)
	orders := &settlement.Settler{Store: s, Provider: payments, Owner: c.InstanceID, Log: o.log}
	in := intake.New(s, intakeSettings(c, o.metrics, payments, orders), o.log)
	return &jobs{
		activities: worker.Activities{
			Subscriptions: &activities.Subscriptions{Store: s, Runs: runs},
			Webhooks:      &activities.Webhooks{Intake: in, Runs: runs},
			Outbox:        &activities.Outbox{Store: s, Mail: sender, Webhooks: calls, Owner: c.InstanceID, Runs: runs},
			Idempotency:   &activities.Idempotency{Store: s, Runs: runs},
			Orders:        &activities.Orders{Settler: orders, Runs: runs},
			Reconciliation: &activities.Reconciliation{Runs: runs, Reconciler: &reconcile.Reconciler{
				Store: s, Intake: in, Provider: payments, Log: o.log,
				Settings: reconcile.Settings{Leeway: c.RenewalLeeway, Zone: c.Zone(), OnFinding: o.metrics.CountDrift()},
			}},
		},
		intake: in, payments: payments,
	}, nil
}

// sealer seals stored credentials; nil where no key is configured. Load has checked the key.
func sealer(c config.Config) *secret.Sealer {
	s, err := secret.NewSealer(c.SecretKey)
	if err != nil {
		return nil
	}
	return s
}

// webhooker calls webhook endpoints; nil where no key for their secrets is configured.
func webhooker(c config.Config) *activities.Webhooker {
	s := sealer(c)
	if s == nil {
		return nil
	}
	return &activities.Webhooker{Sender: webhook.New(webhook.Options{AllowPrivate: c.PrivateTargets()}), Sealer: s}
}

// drain ends what the activities left behind, when no activity runs any more.
func (j *jobs) drain(log *zap.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := j.intake.Drain(ctx); err != nil {
		log.Warn("the intake was not drained", zap.Error(err))
	}
	j.payments.Close()
}

// newSchedules are the schedules of the catalog with the cadences of the environment.
func newSchedules(c config.Config, tc temporalclient.Client, out io.Writer) (*worker.Schedules, error) {
	list, err := workflows.CatalogEvery(c.JobEvery)
	if err != nil {
		return nil, err
	}
	return &worker.Schedules{Client: tc, Environment: c.Environment, Jobs: workflows.InZone(list, c.TimeZone), Out: out}, nil
}

func shutDown(ops *telemetry.OpsServer, log *zap.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := ops.Shutdown(ctx); err != nil {
		log.Warn("health and metrics were cut off", zap.Error(err))
	}
}

// reachTemporal makes a client and proves that the server answers.
func (p *program) reachTemporal(ctx context.Context, c config.Config) (temporalclient.Client, error) {
	tc, err := temporalclient.Lazy(temporalclient.Options{Environ: p.environ, Identity: c.InstanceID, Logger: zap.NewNop()})
	if err != nil {
		return tc, usage(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := tc.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		tc.Close()
		return tc, unreachable(errors.New("Temporal cannot be reached; check that it runs and that TEMPORAL_ADDRESS points at it")) //nolint:staticcheck // ST1005: a product name is written with a capital.
	}
	return tc, nil
}
