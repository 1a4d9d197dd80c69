package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"termkeeper/internal/config"
	"termkeeper/internal/devstack"
	"termkeeper/internal/simulator"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
	"termkeeper/worker"
	"termkeeper/workflows"
)

// devStop bounds the orderly end of the whole system: 20 s for the API, 20 s for running batches, the rest for the
// servers.
const devStop = 60 * time.Second

func devCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole system on this machine",
		Long: `Runs everything on this machine: a private PostgreSQL, a Temporal dev server with its Web UI, the schema, the schedules,
the API, all workers, an offline Stripe and a mail sink. State stays in the data folder. Ctrl-C stops it all in order.
With DATABASE_URL or TEMPORAL_ADDRESS set it uses those servers; with STRIPE_API_KEY or SMTP_URL set, those.`,
		Example: `  termkeeper dev
  termkeeper dev --ephemeral --http 127.0.0.1:0 --ops 127.0.0.1:0 --temporal-ui 127.0.0.1:0`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runDev(cmd) },
	}
	cmd.Flags().String("data-dir", defaultDataDir, "folder that keeps the state over restarts")
	cmd.Flags().Bool("ephemeral", false, "use a fresh folder and remove it at the end")
	cmd.Flags().String("temporal-ui", "127.0.0.1:8233", "address of Temporal's Web UI; port 0 takes a free one")
	overrideFlag(cmd, "http", "TERMKEEPER_HTTP_ADDR", "address of the API; port 0 takes a free one")
	overrideFlag(cmd, "ops", "TERMKEEPER_OPS_ADDR", "address of health and metrics; port 0 takes a free one")
	return cmd
}

func (p *program) runDev(cmd *cobra.Command) (err error) {
	c, err := p.config(cmd)
	if err != nil {
		return err
	}
	dataDir, cleanUp, err := devDataDir(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()
	// Before anything is touched: the folder may belong to a system that runs.
	release, err := devstack.HoldFolder(dataDir)
	if err != nil {
		return err
	}
	defer release()
	if err := removeDevFile(dataDir); err != nil {
		return err
	}
	uiAddress, err := cmd.Flags().GetString("temporal-ui")
	if err != nil {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(dataDir, "termkeeper.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer func() { _ = logFile.Close() }()
	log, level := telemetry.NewLogger(logFile, zapcore.InfoLevel)

	d := &dev{program: p, config: c, dataDir: dataDir, uiAddress: uiAddress, log: log, level: level}
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	err = d.start(ctx, cancel)
	if err == nil {
		d.banner(p.stdout)
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			err = cause
		}
		_, _ = fmt.Fprintln(p.stdout, "stopping …") // a closed terminal stops nothing
	} else if cmd.Context().Err() != nil {
		err = nil // it was told to stop while it started
	}
	return errors.Join(err, removeDevFile(dataDir), d.stop())
}

// devDataDir is the folder of the state, as an absolute path, and how to leave it.
func devDataDir(cmd *cobra.Command) (string, func() error, error) {
	keep := func() error { return nil }
	ephemeral, err := cmd.Flags().GetBool("ephemeral")
	if err != nil {
		return "", keep, err
	}
	if ephemeral && cmd.Flags().Changed("data-dir") {
		return "", keep, usage(errors.New("--ephemeral uses a folder of its own; leave --data-dir out"))
	}
	if ephemeral {
		dir, err := os.MkdirTemp("", "termkeeper-dev-")
		return dir, func() error { return os.RemoveAll(dir) }, err
	}
	dir, err := cmd.Flags().GetString("data-dir")
	if err != nil {
		return "", keep, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", keep, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", keep, fmt.Errorf("making the data folder: %w", err)
	}
	return dir, keep, nil
}

// dev is the whole system in one process, with PostgreSQL and Temporal as its children.
type dev struct {
	program   *program
	config    config.Config
	dataDir   string
	uiAddress string
	log       *zap.Logger
	level     zap.AtomicLevel

	postgres *devstack.Postgres // nil where the environment names another
	temporal *devstack.Temporal
	file     devFile
	stops    []func(context.Context) error // in the order of the starts; they run backwards
}

func (d *dev) onStop(stop func(context.Context) error) { d.stops = append(d.stops, stop) }

func (d *dev) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), devStop)
	defer cancel()
	var err error
	for i := len(d.stops) - 1; i >= 0; i-- {
		err = errors.Join(err, d.stops[i](ctx))
	}
	return err
}

// start brings everything up, in the order in which one needs the other, and tells where it is. fail ends the system when
// a part of it ends by itself.
func (d *dev) start(ctx context.Context, fail context.CancelCauseFunc) error {
	if err := d.startServers(ctx, fail); err != nil {
		return err
	}
	if err := d.prepareDatabase(ctx); err != nil {
		return err
	}
	sim, err := d.startSimulator(ctx)
	if err != nil {
		return err
	}
	if err := d.startTermkeeper(ctx, sim, fail); err != nil {
		return err
	}
	return d.file.write(d.dataDir)
}

// startSimulator starts the offline Stripe and the mail sink. Of what the environment names instead, nothing is told.
func (d *dev) startSimulator(ctx context.Context) (*simulator.Simulator, error) {
	sim, err := simulator.Start(ctx, simulator.Options{Log: d.log})
	if err != nil {
		return nil, err
	}
	d.onStop(sim.Close)
	if d.config.SMTPURL.Empty() {
		d.file.MailURL = sim.MailURL()
		d.set("SMTP_URL", sim.SMTPURL())
	}
	if d.config.StripeAPIKey.Empty() {
		d.file.StripeURL = sim.StripeURL()
		d.set("STRIPE_API_KEY", "sk_test_simulator")
		d.set("STRIPE_API_BASE", sim.StripeURL())
	}
	return sim, nil
}

// set changes a variable of the environment that the parts are configured by.
func (d *dev) set(name, value string) { d.program.environ = append(d.program.environ, name+"="+value) }

// startTermkeeper starts the API and all workers, configured as the single commands are, with one set of metrics.
func (d *dev) startTermkeeper(ctx context.Context, sim *simulator.Simulator, fail context.CancelCauseFunc) error {
	d.set("TERMKEEPER_HTTP_ADDR", d.config.HTTPAddr) // flags came before the file's own variables
	d.set("TERMKEEPER_OPS_ADDR", d.config.OpsAddr)
	c, err := config.Load(d.program.environ, workflows.JobIDs(), config.NeedDatabase, config.NeedWebhookSecrets)
	if err != nil {
		return usage(err)
	}
	metrics := telemetry.NewMetrics()
	sdkMetrics, err := temporalclient.NewMetrics(metrics.Registry(), d.log)
	if err != nil {
		return err
	}
	tc, err := temporalclient.Lazy(temporalclient.Options{Environ: d.program.environ, Identity: c.InstanceID, Logger: d.log, Metrics: sdkMetrics})
	if err != nil {
		return usage(err)
	}
	d.onStop(func(context.Context) error { tc.Close(); return nil })
	schedules := temporalclient.NewSchedules(tc, workflows.JobIDs())
	watchSkippedOverlaps(metrics, schedules)

	server, err := startAPI(ctx, apiOptions{config: c, log: d.log, metrics: metrics, schedules: schedules})
	if err != nil {
		return err
	}
	d.onStop(func(context.Context) error { return server.stop() })
	d.file.APIURL = "http://" + server.addr()
	if d.file.StripeURL != "" {
		endpoint := simulator.Endpoint{URL: d.file.APIURL + "/v1/webhooks/stripe", Secret: d.file.WebhookSecret, Shape: simulator.Shape2025}
		if err := sim.SetEndpoint(endpoint); err != nil {
			return err
		}
	}
	workers, err := d.startWorkers(ctx, c, tc, schedules, metrics, fail)
	if err != nil {
		return err
	}
	ops, err := telemetry.OpenOps(c.OpsAddr, metrics, d.level, func(ctx context.Context) error {
		return errors.Join(server.ready(ctx), workers.ready(ctx))
	})
	if err != nil {
		return err
	}
	d.onStop(ops.Shutdown)
	d.file.OpsURL = "http://" + ops.Addr()
	go func() {
		if err := ops.Serve(); err != nil {
			fail(err)
		}
	}()
	go func() {
		select {
		case err := <-server.failed:
			fail(err)
		case <-ctx.Done():
		}
	}()
	return waitReady(ctx, workers.ready)
}

// waitReady asks until the answer is yes. The last no is the error when ctx ends first.
func waitReady(ctx context.Context, ready func(context.Context) error) error {
	const atMost = time.Minute
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return err
		}
	}
}

// startWorkers runs all workers until the system stops.
func (d *dev) startWorkers(ctx context.Context, c config.Config, tc temporalclient.Client, schedules *temporalclient.Schedules,
	metrics *telemetry.Metrics, fail context.CancelCauseFunc,
) (*openedWorker, error) {
	c.InstanceID += "-worker" // its leases are not the API's
	queues, err := worker.Queues(nil)
	if err != nil {
		return nil, err
	}
	opened, err := openWorker(ctx, workerOptions{config: c, log: d.log, metrics: metrics, temporal: tc, schedules: schedules, queues: queues})
	if err != nil {
		return nil, err
	}
	applied, err := newSchedules(c, tc, io.Discard)
	if err != nil {
		opened.close()
		return nil, usage(err)
	}
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := opened.workers.Run(running, applied.Apply); err != nil {
			fail(err)
		}
	}()
	d.onStop(func(context.Context) error {
		end()
		<-done
		opened.close()
		return nil
	})
	return opened, nil
}
