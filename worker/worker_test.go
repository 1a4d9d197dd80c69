package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"termkeeper/internal/devstack"
	"termkeeper/internal/store"
	"termkeeper/internal/temporalclient"
	"termkeeper/worker"
	"termkeeper/workflows"
)

// TestEndIsMarkedByTheScheduledJob is the main job on real parts: the end passes, the schedule's run marks it, and the
// facts become what they are to become.
func TestEndIsMarkedByTheScheduledJob(t *testing.T) {
	t.Parallel()
	tc := dial(t)
	s := start(t, tc, schedulesOf(tc, "development", map[string]time.Duration{
		workflows.JobSubscriptionExpiry: 3 * time.Second, workflows.JobOutboxDelivery: 3 * time.Second,
	}).Apply)
	require.Eventually(t, func() bool { return s.workers.Ready(t.Context()) == nil }, patience, poll)
	_, err := s.pool.Exec(t.Context(), `INSERT INTO subscriptions (user_id, plan_key, status, expires_at)
		SELECT 'u_' || i, 'pro', 'active', now() + i * interval '20 ms' FROM generate_series(1, 200) i`)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM outbox WHERE status = 'dispatched' AND payload = '{"still_has_access": false}'`) == 200
	}, patience, poll)
	require.Equal(t, 200, s.count(`SELECT count(*) FROM subscriptions WHERE status = 'expired' AND expired_at >= access_until`))
	require.Zero(t, s.count(`SELECT count(*) FROM job_runs WHERE trigger <> 'scheduled' AND published_at < scheduled_at + interval '10 seconds'`))
	s.stop()
	require.Eventually(t, func() bool { return s.workers.Ready(t.Context()) != nil }, patience, poll)
}

// TestWhatStartedARun tries every way in which a run can be started, on a real server.
func TestWhatStartedARun(t *testing.T) {
	t.Parallel()
	tc := dial(t)
	const id, every = workflows.JobWebhookApply, 4 * time.Second
	s := start(t, tc, schedulesOf(tc, "development", map[string]time.Duration{id: every}).Apply)
	finished := func(trigger string) int {
		return s.count(`SELECT count(*) FROM job_runs WHERE job = $1 AND trigger = $2 AND finished_at IS NOT NULL`, id, trigger)
	}
	require.Eventually(t, func() bool { return finished(store.TriggerScheduled) > 0 }, patience, poll)
	handle := tc.ScheduleClient().GetHandle(t.Context(), id)
	control := temporalclient.NewSchedules(tc, workflows.JobIDs())
	manual := 0
	began := func(trigger string, n int, how string) {
		t.Helper()
		require.Eventually(t, func() bool { return finished(trigger) == n }, patience, poll, how)
	}

	for range 3 { // the API, several in the same second
		require.Eventually(t, func() bool { // a busy server is asked again, as a person would
			err := control.Trigger(t.Context(), id)
			require.True(t, err == nil || errors.Is(err, temporalclient.ErrUnavailable), "%v", err)
			return err == nil
		}, patience, poll)
		manual++
	}
	began(store.TriggerManual, manual, "the API")

	// The CLI and the Web UI, in the very second of a tick that has just run: the server's attribute looks like the tick's.
	inTheSecondOfATick := func() bool {
		return s.count(`SELECT count(*) FROM job_runs WHERE job = $1 AND trigger = 'scheduled' AND finished_at IS NOT NULL AND outcome IS NOT NULL
			AND scheduled_at = date_trunc('second', clock_timestamp()) AND clock_timestamp() - scheduled_at < interval '700 ms'`, id) == 1
	}
	require.Eventually(t, inTheSecondOfATick, patience, poll)
	require.NoError(t, handle.Trigger(t.Context(), client.ScheduleTriggerOptions{Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL}))
	manual++
	began(store.TriggerManual, manual, "the CLI")

	// The Web UI's "start workflow like this one", with the input of a run and with its instant.
	rerun := client.StartWorkflowOptions{ID: id + "-rerun", TaskQueue: workflows.QueuePayments}
	jobs, err := workflows.CatalogEvery(map[string]time.Duration{id: every})
	require.NoError(t, err)
	input := jobs[1].Scan()
	_, err = tc.ExecuteWorkflow(t.Context(), rerun, "ApplyWebhookEvents", input)
	require.NoError(t, err)
	manual++
	began(store.TriggerManual, manual, "a copy without the instant")
	rerun.ID += "-2"
	rerun.TypedSearchAttributes = temporal.NewSearchAttributes(temporal.NewSearchAttributeKeyTime("TemporalScheduledStartTime").ValueSet(
		time.Now().Truncate(every).Add(jobs[1].Offset - every)))
	_, err = tc.ExecuteWorkflow(t.Context(), rerun, "ApplyWebhookEvents", input)
	require.NoError(t, err)
	manual++
	began(store.TriggerManual, manual, "a copy with the instant")

	hourAgo := time.Now().Add(-time.Hour).Truncate(every)
	require.NoError(t, handle.Backfill(t.Context(), client.ScheduleBackfillOptions{Backfill: []client.ScheduleBackfill{{
		Start: hourAgo, End: hourAgo.Add(3*every - time.Second), Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL,
	}}}))
	began(store.TriggerBackfill, 3, "a backfill")
	require.Equal(t, manual, finished(store.TriggerManual))
	require.Zero(t, s.count(`SELECT count(*) FROM job_runs WHERE trigger = 'scheduled' AND job = $1
		AND mod(extract(epoch FROM scheduled_at)::bigint - $2::bigint, $3::bigint) <> 0`, id, int(jobs[1].Offset/time.Second), int(every/time.Second)))
}

func TestWorkerWaitsForAServerThatIsAway(t *testing.T) {
	t.Parallel()
	binary, err := devstack.FindTemporal(t.Context(), t.Output())
	require.NoError(t, err)
	options := devstack.TemporalOptions{Binary: binary, DBFile: t.TempDir() + "/temporal.db", Namespace: "default"}
	server, err := devstack.StartTemporal(t.Context(), options)
	require.NoError(t, err)
	address := server.Address()
	options.Port = server.Port()
	server.Kill()
	<-server.Done()

	tc := dialTo(t, address, server.Namespace())
	s := start(t, tc, schedulesOf(tc, "development", nil).Apply)
	require.Never(t, func() bool { return s.workers.Ready(t.Context()) == nil }, time.Second, poll)
	server, err = devstack.StartTemporal(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })
	require.Eventually(t, func() bool { return s.workers.Ready(t.Context()) == nil }, patience, poll)
	require.Eventually(t, func() bool { return s.count(`SELECT count(*) FROM job_runs WHERE outcome IS NOT NULL`) > 0 }, patience, poll)
}

func TestWorkerOfAnotherEnvironmentEnds(t *testing.T) {
	t.Parallel()
	tc := dial(t)
	require.NoError(t, schedulesOf(tc, "staging", nil).Apply(t.Context()))
	w, err := worker.New(worker.Options{Client: tc, InstanceID: t.Name(), Logger: nopLogger()})
	require.NoError(t, err)
	require.ErrorIs(t, w.Run(t.Context(), schedulesOf(tc, "production", nil).Apply), worker.ErrForeign)
	require.Error(t, w.Ready(t.Context()))
}

func TestWorkerThatIsToldToStopWhileTheServerIsAwayEndsWell(t *testing.T) {
	t.Parallel()
	w, err := worker.New(worker.Options{Client: dialTo(t, "127.0.0.1:1", "default"), InstanceID: t.Name(), Logger: nopLogger()})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("told to stop"))
	defer cancel()
	require.NoError(t, w.Run(ctx, nil))
}

func TestQueues(t *testing.T) {
	t.Parallel()
	all, err := worker.Queues(nil)
	require.NoError(t, err)
	require.Equal(t, workflows.Queues(), all)
	some, err := worker.Queues([]string{" payments", "subscriptions", "payments"})
	require.NoError(t, err)
	require.Equal(t, []string{"payments", "subscriptions"}, some)
	_, err = worker.Queues([]string{"nonsense"})
	require.ErrorContains(t, err, "there is no queue")
}
