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
	"termkeeper/internal/store"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
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
	pool, err := store.Open(ctx, c.DatabaseURL.Reveal(), store.PoolOptions{
		Name: "termkeeper worker", MaxConns: workerConns, StatementTimeout: 30 * time.Second, LockTimeout: 5 * time.Second,
	})
	if err != nil {
		return databaseError(err)
	}
	defer pool.Close()
	metrics.WatchPool("worker", pool)
	s := store.New(pool)
	if err := checkSchema(ctx, s); err != nil {
		return err
	}
	if err := s.ClaimEnvironment(ctx, c.Environment); err != nil {
		return err
	}
	sdkMetrics, err := temporalclient.NewMetrics(metrics.Registry(), log)
	if err != nil {
		return err
	}
	tc, err := temporalclient.Lazy(temporalclient.Options{Environ: p.environ, Identity: c.InstanceID, Logger: log, Metrics: sdkMetrics})
	if err != nil {
		return usage(err)
	}
	defer tc.Close()
	jobs, err := newJobs(c, tc, s, metrics, log)
	if err != nil {
		return usage(err)
	}
	defer jobs.drain(log)
	workers, err := worker.New(worker.Options{Client: tc, InstanceID: c.InstanceID, Queues: queues, Activities: jobs.activities, Logger: log})
	if err != nil {
		return err
	}
	ops, err := telemetry.OpenOps(c.OpsAddr, metrics, level, func(ctx context.Context) error {
		return errors.Join(workers.Ready(ctx), s.Ping(ctx))
	})
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
	return workers.Run(ctx, prepare)
}

// jobs is what the jobs of one process are made of.
type jobs struct {
	activities worker.Activities
	intake     *intake.Intake
}

// newJobs wires the activities. The caller drains it.
func newJobs(c config.Config, tc temporalclient.Client, s *store.Store, metrics *telemetry.Metrics, log *zap.Logger) (*jobs, error) {
	var sender *mail.Sender
	if c.SMTPURL.Empty() {
		log.Warn("SMTP_URL is not set: nobody is told by mail")
	} else {
		var err error
		if sender, err = mail.New(c.SMTPURL.Reveal()); err != nil {
			return nil, fmt.Errorf("SMTP_URL: %w", err)
		}
	}
	schedules := temporalclient.NewSchedules(tc, workflows.JobIDs())
	metrics.WatchSkippedOverlaps(func(ctx context.Context) (map[string]int64, error) {
		list, err := schedules.List(ctx)
		skipped := make(map[string]int64, len(list))
		for id, schedule := range list {
			skipped[id] = schedule.SkippedOverlaps
		}
		return skipped, err
	})
	runs := &activities.Runs{Store: s, Metrics: metrics, Describe: schedules.Describe}
	in := intake.New(s, intake.Settings{Owner: c.InstanceID, Leeway: c.RenewalLeeway, Livemode: c.Livemode()}, log)
	return &jobs{
		activities: worker.Activities{
			Subscriptions: &activities.Subscriptions{Store: s, Runs: runs},
			Webhooks:      &activities.Webhooks{Intake: in, Runs: runs},
			Outbox:        &activities.Outbox{Store: s, Mail: sender, Owner: c.InstanceID, Runs: runs},
		},
		intake: in,
	}, nil
}

// drain ends what the activities left behind, when no activity runs any more.
func (j *jobs) drain(log *zap.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := j.intake.Drain(ctx); err != nil {
		log.Warn("the intake was not drained", zap.Error(err))
	}
}

// newSchedules are the schedules of the catalog with the cadences of the environment.
func newSchedules(c config.Config, tc temporalclient.Client, out io.Writer) (*worker.Schedules, error) {
	list, err := workflows.CatalogEvery(c.JobEvery)
	if err != nil {
		return nil, err
	}
	return &worker.Schedules{Client: tc, Environment: c.Environment, Jobs: list, Out: out}, nil
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
