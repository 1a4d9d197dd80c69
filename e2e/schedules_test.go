package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"termkeeper/internal/simulator"
)

// jobs are the schedules by id, with the workflow and the queue that the contract gives them.
var jobs = []struct{ id, workflow, queue, every string }{
	{"subscription-expiry", "ExpireSubscriptions", "subscriptions", "10s"},
	{"webhook-apply", "ApplyWebhookEvents", "payments", "10s"},
	{"outbox-delivery", "DeliverOutbox", "notifications", "10s"},
	{"idempotency-cleanup", "CleanUpIdempotencyKeys", "operations", "60s"},
	{"subscription-reminders", "RemindSubscriptions", "subscriptions", "300s"},
	{"subscription-reconcile", "ReconcileSubscriptions", "payments", "900s"},
	{"order-reconcile", "ReconcileOrders", "payments", "60s"},
	{"order-expiry", "ExpireOrders", "payments", "30s"},
}

// everyJob overrides the cadence of all jobs.
func everyJob(cadence string) []string {
	var environ []string
	for _, job := range jobs {
		environ = append(environ, "TERMKEEPER_JOB_"+strings.ToUpper(strings.ReplaceAll(job.id, "-", "_"))+"_EVERY="+cadence)
	}
	return environ
}

// operator is a person with the Temporal CLI.
type operator struct {
	binary  string
	environ []string
}

// try runs the Temporal CLI and returns its output.
func (o operator) try(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// As docs/operations.md says, but without the settings of whoever runs the tests.
	cmd := exec.CommandContext(ctx, o.binary, append(args, "--output", "json", "--disable-config-file")...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}, o.environ...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("temporal %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// done runs it as a person does, who asks again where the server of a busy machine does not answer in time.
func (o operator) done(t *testing.T, args ...string) string {
	t.Helper()
	var out string
	await(t, "temporal "+strings.Join(args, " "), func() (err error) {
		out, err = o.try(t.Context(), args...)
		if err != nil && !strings.Contains(err.Error(), "busy") && !strings.Contains(err.Error(), "deadline exceeded") {
			require.NoError(t, err)
		}
		return err
	})
	return out
}

// described is what the CLI says of a schedule.
type described struct {
	Schedule struct {
		Spec struct {
			Interval []struct{ Interval string } `json:"interval"`
		} `json:"spec"`
		State struct {
			Notes  string `json:"notes"`
			Paused bool   `json:"paused"`
		} `json:"state"`
	} `json:"schedule"`
}

func (o operator) describe(t *testing.T, id string) described {
	t.Helper()
	var d described
	require.NoError(t, json.Unmarshal([]byte(o.done(t, "schedule", "describe", "--schedule-id", id)), &d))
	require.Len(t, d.Schedule.Spec.Interval, 1, id)
	return d
}
func (d described) every() string { return d.Schedule.Spec.Interval[0].Interval }

// newOperator is somebody at the Temporal CLI of a system's namespace.
func newOperator(t *testing.T) (*system, operator, client.Client) {
	t.Helper()
	s := newSystem(t)
	temporal := s.useTemporal(t)
	return s, operator{temporalBinary(t), s.environ}, temporal
}

// reaching runs a command that asks Temporal. A server that a busy machine keeps from answering in time is asked again.
func (p program) reaching(t *testing.T, args ...string) string {
	t.Helper()
	var out string
	await(t, "Temporal is reached", func() error {
		r := p.run(t, args...)
		out += r.stdout // what an attempt did before it lost the server is done
		if r.code == exitUnreachable {
			return errors.New(r.stderr)
		}
		require.Zero(t, r.code, r.stderr)
		return nil
	})
	return out
}

// The fixed set of schedules: the same whoever applies it, and an operator's pause stays.
func TestSchedulesAreApplied(t *testing.T) {
	t.Parallel()
	s, o, _ := newOperator(t)
	made := 0
	for _, r := range s.program().atOnce(t, 5, "schedules", "apply") {
		made += strings.Count(r.stdout, "created ")
		if r.code == exitUnreachable {
			continue // a busy server
		}
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, fmt.Sprintf("%d schedules are as they should be", len(jobs)))
	}
	require.LessOrEqual(t, made, len(jobs), "none is made by two of the five")
	require.Contains(t, s.program().reaching(t, "schedules", "apply"), fmt.Sprintf("%d schedules are as they should be", len(jobs)))

	// The list comes from an index that is written a little later.
	await(t, "all schedules are listed", func() error {
		var list []struct {
			ID string `json:"scheduleId"`
		}
		out, err := o.try(t.Context(), "schedule", "list")
		if err == nil {
			err = json.Unmarshal([]byte(out), &list)
		}
		if err == nil && len(list) != len(jobs) {
			err = fmt.Errorf("listed: %+v", list)
		}
		return err
	})
	for _, job := range jobs {
		d := o.describe(t, job.id)
		require.Equal(t, job.every, d.every(), job.id)
		require.NotEmpty(t, d.Schedule.State.Notes, "the note says what the job does")
		require.Contains(t, s.program().reaching(t, "schedules", "list"), job.id)
	}

	t.Run("a cadence reaches the server", func(t *testing.T) {
		out := s.program("TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s").reaching(t, "schedules", "apply")
		require.Contains(t, out, "changed subscription-expiry")
		require.Equal(t, "2s", o.describe(t, "subscription-expiry").every())
		require.Equal(t, "10s", o.describe(t, "webhook-apply").every())
		again := s.program("TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s").reaching(t, "schedules", "apply")
		require.NotContains(t, again, "changed")
	})

	t.Run("a pause stays", func(t *testing.T) {
		for _, job := range jobs {
			o.done(t, "schedule", "toggle", "--schedule-id", job.id, "--pause", "--reason", "moving the database")
		}
		out := s.program().reaching(t, "schedules", "apply") // back to 10s: it is written, not only looked at
		require.Contains(t, out, "changed subscription-expiry")
		list := s.program().reaching(t, "schedules", "list")
		for _, job := range jobs {
			d := o.describe(t, job.id)
			require.True(t, d.Schedule.State.Paused, job.id)
			require.Equal(t, "moving the database", d.Schedule.State.Notes, job.id)
			require.Equal(t, job.every, d.every(), job.id)
		}
		require.Equal(t, len(jobs), strings.Count(list, "moving the database"), list)
		for _, job := range jobs {
			o.done(t, "schedule", "toggle", "--schedule-id", job.id, "--unpause", "--reason", "moved")
			require.False(t, o.describe(t, job.id).Schedule.State.Paused, job.id)
		}
	})

	t.Run("another environment's are left alone", func(t *testing.T) {
		staging := s.program("TERMKEEPER_ENV=staging", "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=3s")
		var r said
		await(t, "Temporal is reached", func() error {
			if r = staging.run(t, "schedules", "apply"); r.code == exitUnreachable {
				return errors.New(r.stderr)
			}
			return nil
		})
		require.Equal(t, exitNo, r.code, "%s%s", r.stdout, r.stderr)
		require.Contains(t, r.stderr, "development")
		require.Contains(t, r.stderr, "staging")
		require.Equal(t, "10s", o.describe(t, "subscription-expiry").every())
	})
}

// Everything that an operator can do to a job, on every job, several at once: each thing is done once all the same.
func TestOperatorRunsJobsAtWill(t *testing.T) {
	t.Parallel()
	s, o, temporal := newOperator(t)
	s.plan(t)
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.WithoutCancel(t.Context()))) })
	for range 2 {
		s.startWorker(t, append(everyJob("4s"), "SMTP_URL="+sim.SMTPURL())...)
	}
	for _, job := range jobs {
		s.awaitWholeRun(t, job.id)
	}

	work := &seededWork{s: s}
	work.add(t)
	at := time.Now().UTC()
	for _, job := range jobs {
		o.done(t, "schedule", "backfill", "--schedule-id", job.id, "--overlap-policy", "AllowAll",
			"--start-time", at.Add(-40*time.Second).Format(time.RFC3339), "--end-time", at.Add(-10*time.Second).Format(time.RFC3339))
		work.add(t)
		for _, policy := range []string{"AllowAll", "BufferOne", "Skip"} {
			o.done(t, "schedule", "trigger", "--schedule-id", job.id, "--overlap-policy", policy)
		}
		o.done(t, "schedule", "trigger", "--schedule-id", job.id)
	}
	for _, job := range jobs {
		await(t, "the backfill of "+job.id, func() error { return s.runs(t, job.id, "backfill", 7) })
		// The CLI names a run by the second, as a tick does. Where the two meet there is one run, and it counts as the tick's.
		await(t, "the trigger of "+job.id, func() error {
			err := s.runs(t, job.id, "manual", 1)
			if err != nil {
				o.done(t, "schedule", "trigger", "--schedule-id", job.id, "--overlap-policy", "AllowAll")
			}
			return err
		})
	}

	// What the Web UI does for "start like this one" and for "reset".
	for _, job := range jobs {
		work.add(t)
		manual := s.count(t, `SELECT count(*) FROM job_runs WHERE job = $1 AND trigger = 'manual'`, job.id)
		id, runID, input := finishedRun(t, temporal, s, job.id)
		for range 3 {
			o.done(t, "workflow", "start", "--type", job.workflow, "--task-queue", job.queue, "--workflow-id", id, "--input", input)
		}
		o.done(t, "workflow", "start", "--type", job.workflow, "--task-queue", job.queue, "--workflow-id", "by-hand-"+job.id, "--input", input)
		o.done(t, "workflow", "reset", "--workflow-id", id, "--run-id", runID, "--type", "FirstWorkflowTask", "--reason", "once more")
		await(t, "the reruns of "+job.id, func() error { return s.runs(t, job.id, "manual", manual+2) })
	}

	// A pause that an operator sets holds, and lifting it lets the job go on.
	for _, job := range jobs {
		o.done(t, "schedule", "toggle", "--schedule-id", job.id, "--pause", "--reason", "looking")
		o.done(t, "schedule", "toggle", "--schedule-id", job.id, "--unpause", "--reason", "looked")
		s.awaitWholeRun(t, job.id)
	}
	s.awaitExpired(t, work.ends)
	s.awaitEventsDone(t)
	s.awaitDispatched(t)
	await(t, "the mails", func() error {
		if n := s.count(t, `SELECT count(*) FROM deliveries WHERE status <> 'sent'`); n > 0 {
			return fmt.Errorf("%d are not sent", n)
		}
		return nil
	})
	for _, job := range jobs {
		s.awaitWholeRun(t, job.id)
	}
	t.Logf("%d ends, %d events, %d mails, %d runs", work.ends, work.events, work.mails, s.count(t, `SELECT count(*) FROM job_runs`))
	require.Zero(t, s.count(t, `SELECT count(*) FROM job_runs WHERE outcome NOT IN ('ok', 'empty')`))
	require.Equal(t, work.events, s.count(t, `SELECT count(*) FROM subscriptions WHERE provider = 'stripe' AND version = 1`))
	s.requireExpired(t, work.ends)
	got := map[string]int{}
	for _, m := range sim.Messages() {
		got[m.MessageID]++
	}
	require.Len(t, got, work.mails, "mails, by their ids")
	require.Len(t, sim.Messages(), work.mails, "each is sent once: nothing was killed")
}

// runs demands that at least n runs of a kind have ended well.
func (s *system) runs(t *testing.T, job, trigger string, n int) error {
	t.Helper()
	if have := s.count(t, `SELECT count(*) FROM job_runs WHERE job = $1 AND trigger = $2 AND outcome IN ('ok', 'empty')`, job, trigger); have < n {
		return fmt.Errorf("%d of %d", have, n)
	}
	return nil
}

// seededWork is work for every job, put into the tables as the contract lets others do.
type seededWork struct {
	s                   *system
	ends, events, mails int
}

// add makes 200 subscriptions that have ended, five of them of users with an address, and 20 events that were left behind.
func (w *seededWork) add(t *testing.T) {
	t.Helper()
	const ends, mails, events = 200, 5, 20
	// The addresses come first: an end is told within milliseconds, by mail only where there is one.
	w.s.exec(t, `INSERT INTO users (id, email) SELECT 'u_' || i, 'u_' || i || '@example.com' FROM generate_series($1::int, $2::int) i`, w.ends+1, w.ends+mails)
	w.s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at)
		SELECT 'u_' || i, 'pro', 'active', now() - interval '1 day', now() FROM generate_series($1::int, $2::int) i`, w.ends+1, w.ends+ends)
	for i := range events {
		n := w.events + i
		e := stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
			ID: fmt.Sprintf("sub_left_%d", n), UserID: fmt.Sprintf("u_left_%d", n), PeriodStart: now(), PeriodEnd: now().Add(30 * day),
		})
		w.s.exec(t, `INSERT INTO payment_webhook_events (external_event_id, type, payload) VALUES ($1, $2, $3)`, e.id, created, e.body)
	}
	w.ends, w.mails, w.events = w.ends+ends, w.mails+mails, w.events+events
}

// finishedRun is a run of a job that a backfill started and that has ended, with its input.
func finishedRun(t *testing.T, temporal client.Client, s *system, job string) (id, runID, input string) {
	t.Helper()
	runID = s.text(t, `SELECT run_id FROM job_runs WHERE job = $1 AND trigger = 'backfill' AND finished_at IS NOT NULL ORDER BY started_at LIMIT 1`, job)
	await(t, "the run is listed", func() error { // by an index that is written a little later
		list, err := temporal.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{Query: fmt.Sprintf("RunId = '%s'", runID)})
		if err == nil && len(list.Executions) != 1 {
			err = fmt.Errorf("%d executions", len(list.Executions))
		}
		if err == nil {
			id = list.Executions[0].Execution.WorkflowId
		}
		return err
	})
	require.True(t, strings.HasPrefix(id, job), "the id of a run begins with its schedule's: %s", id)
	history := temporal.GetWorkflowHistory(t.Context(), id, runID, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	first, err := history.Next()
	require.NoError(t, err)
	payloads := first.GetWorkflowExecutionStartedEventAttributes().GetInput().GetPayloads()
	require.Len(t, payloads, 1)
	return id, runID, string(payloads[0].GetData())
}
