// Package worker runs the workflows and activities of the table of jobs, and applies its schedules.
package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

// Options are what the workers of one process need.
type Options struct {
	Client     temporalclient.Client
	InstanceID string // names the process in histories and poller lists
	Queues     []string
	Activities Activities
	Logger     *zap.Logger
}

// Activities are the activity structs of all queues. Those of queues that are not served may be nil.
type Activities struct {
	Subscriptions  *activities.Subscriptions
	Webhooks       *activities.Webhooks
	Outbox         *activities.Outbox
	Idempotency    *activities.Idempotency
	Orders         *activities.Orders
	Reconciliation *activities.Reconciliation
}

// of is what the jobs of a queue call.
func (a Activities) of(queue string) []any {
	switch queue {
	case workflows.QueueSubscriptions:
		return []any{a.Subscriptions}
	case workflows.QueuePayments:
		return []any{a.Webhooks, a.Orders, a.Reconciliation}
	case workflows.QueueNotifications:
		return []any{a.Outbox}
	case workflows.QueueOperations:
		return []any{a.Idempotency}
	default:
		return nil
	}
}

// Workers are one SDK worker per queue.
type Workers struct {
	options Options
	polling atomic.Bool
	fatal   chan error
}

// New checks the queues and makes workers that do not run yet.
func New(o Options) (*Workers, error) {
	queues, err := Queues(o.Queues)
	if err != nil {
		return nil, err
	}
	o.Queues = queues
	return &Workers{options: o, fatal: make(chan error, len(queues))}, nil
}

// Queues checks a selection of queues; none means all.
func Queues(selected []string) ([]string, error) {
	if len(selected) == 0 {
		return workflows.Queues(), nil
	}
	var queues []string
	for _, queue := range selected {
		queue = strings.TrimSpace(queue)
		if !slices.Contains(workflows.Queues(), queue) {
			return nil, fmt.Errorf("there is no queue %q; the queues are %s", queue, strings.Join(workflows.Queues(), ", "))
		}
		if !slices.Contains(queues, queue) {
			queues = append(queues, queue)
		}
	}
	return queues, nil
}

// Run polls until ctx ends, then lets what runs finish and returns nil. While Temporal cannot be reached at the start it
// tries again; before, when it first answers, it calls prepare (which applies the schedules). An error means that the
// process is of no use: prepare failed for another reason than an absent server, or a worker gave up for good.
func (w *Workers) Run(ctx context.Context, prepare func(context.Context) error) error {
	err := w.reach(ctx, prepare)
	var running []worker.Worker
	if err == nil {
		running, err = w.start(ctx)
	}
	if ctx.Err() != nil { // told to stop before it came to polling
		stop(running)
		return nil //nolint:nilerr // stopping is what was asked for; err only says that the server was away
	}
	if err != nil {
		return err
	}
	w.polling.Store(true)
	w.options.Logger.Info("workers poll", zap.Strings("queues", w.options.Queues), zap.String("namespace", w.options.Client.Namespace))
	select {
	case <-ctx.Done():
	case err = <-w.fatal:
	}
	w.polling.Store(false)
	stop(running)
	return err
}

// Ready says why the process cannot take tasks now, nil when it can: it polls, and the server answers.
func (w *Workers) Ready(ctx context.Context) error {
	if !w.polling.Load() {
		return errors.New("the workers do not poll yet: Temporal cannot be reached")
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if _, err := w.options.Client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return errors.New("Temporal does not answer") //nolint:staticcheck // ST1005: a product name is written with a capital.
	}
	return nil
}

// reach calls prepare until the server has answered.
func (w *Workers) reach(ctx context.Context, prepare func(context.Context) error) error {
	return w.again(ctx, func() error {
		if _, err := w.options.Client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
			return fmt.Errorf("%w: %w", temporalclient.ErrUnavailable, err)
		}
		if prepare == nil {
			return nil
		}
		return prepare(ctx)
	})
}

// start starts all workers or none. The SDK's worker cannot be started a second time, so each attempt makes new ones.
func (w *Workers) start(ctx context.Context) (running []worker.Worker, err error) {
	err = w.again(ctx, func() error {
		running = nil
		for _, queue := range w.options.Queues {
			one := w.build(queue)
			if err := one.Start(); err != nil {
				stop(running)
				return fmt.Errorf("starting the worker of the queue %s: %w", queue, err)
			}
			running = append(running, one)
		}
		return nil
	})
	return running, err
}

// again repeats do while its error says that the server is away.
func (w *Workers) again(ctx context.Context, do func() error) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := do()
		if err == nil || !temporalclient.Unavailable(err) {
			return err
		}
		w.options.Logger.Warn("Temporal cannot be reached; trying again", zap.Duration("pause", pause), zap.Error(err))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (w *Workers) build(queue string) worker.Worker {
	one := worker.New(w.options.Client.Client, queue, worker.Options{
		Identity:                               w.options.InstanceID,
		MaxConcurrentActivityExecutionSize:     activitiesAtOnce,
		MaxConcurrentWorkflowTaskExecutionSize: workflowTasksAtOnce,
		MaxConcurrentActivityTaskPollers:       pollers,
		MaxConcurrentWorkflowTaskPollers:       pollers,
		WorkerStopTimeout:                      stopTimeout,
		OnFatalError: func(err error) {
			select {
			case w.fatal <- fmt.Errorf("the worker of the queue %s gave up: %w", queue, err):
			default:
			}
		},
	})
	for _, job := range workflows.Catalog() {
		if job.Queue == queue {
			one.RegisterWorkflowWithOptions(job.Run, workflow.RegisterOptions{Name: job.Workflow})
		}
	}
	for _, set := range w.options.Activities.of(queue) {
		one.RegisterActivity(set)
	}
	return one
}

// stop stops all workers at the same time, so that their time-outs do not add up.
func stop(running []worker.Worker) {
	stopped := make(chan struct{})
	for _, one := range running {
		go func() {
			one.Stop()
			stopped <- struct{}{}
		}()
	}
	for range running {
		<-stopped
	}
}
