package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"termkeeper/internal/devstack"
	"termkeeper/internal/storetest"
	"termkeeper/internal/temporalclient"
	"termkeeper/worker"
	"termkeeper/workflows"
)

func TestFiveProcessesApplyAtOnce(t *testing.T) {
	t.Parallel()
	tc := dial(t)
	var group errgroup.Group
	for range 5 {
		group.Go(func() error { return schedulesOf(tc, "development", nil).Apply(t.Context()) })
	}
	require.NoError(t, group.Wait())
	known, err := temporalclient.NewSchedules(tc, workflows.JobIDs()).List(t.Context())
	require.NoError(t, err)
	require.Len(t, known, len(workflows.JobIDs()))
	for _, job := range workflows.Catalog() {
		require.Equal(t, job.Every, known[job.ID].Every)
		require.Equal(t, job.Offset, known[job.ID].Offset)
		require.Equal(t, job.Summary, known[job.ID].Note)
		require.False(t, known[job.ID].NextRunAt.IsZero())
	}
}

func TestApplyKeepsWhatIsTheOperators(t *testing.T) {
	t.Parallel()
	tc := dial(t)
	require.NoError(t, schedulesOf(tc, "development", nil).Apply(t.Context()))
	control := temporalclient.NewSchedules(tc, workflows.JobIDs())
	const id = workflows.JobSubscriptionExpiry
	require.NoError(t, control.Pause(t.Context(), id, "the database is being moved"))
	var told strings.Builder
	faster := schedulesOf(tc, "development", map[string]time.Duration{id: 7 * time.Second})
	faster.Out = &told
	require.NoError(t, faster.Apply(t.Context()))
	require.Contains(t, told.String(), "changed "+id+": interval 1 10s offset 0s -> 7s offset 0s")
	require.NotContains(t, told.String(), workflows.JobWebhookApply, "only what differs is written")
	state, err := control.Describe(t.Context(), id)
	require.NoError(t, err)
	require.True(t, state.Paused)
	require.Equal(t, "the database is being moved", state.Note)
	require.Equal(t, 7*time.Second, state.Every, "the changed cadence reached the server")
	require.True(t, state.NextRunAt.IsZero())

	require.NoError(t, control.Unpause(t.Context(), id))
	state, err = control.Describe(t.Context(), id)
	require.NoError(t, err)
	require.False(t, state.Paused)
	require.Equal(t, workflows.Catalog()[0].Summary, state.Note)
	_, err = control.Describe(t.Context(), "no-such-job")
	require.ErrorIs(t, err, temporalclient.ErrNoSchedule)
}

// Whoever pauses while schedules are applied, again and again with another cadence, finds the job paused.
func TestPauseIsNotLostToAnApplyAtTheSameTime(t *testing.T) {
	t.Parallel()
	tc := dial(t)
	require.NoError(t, schedulesOf(tc, "development", nil).Apply(t.Context()))
	control := temporalclient.NewSchedules(tc, workflows.JobIDs())
	const id = workflows.JobWebhookApply
	for round := range 3 {
		var group errgroup.Group
		for i := range 2 {
			group.Go(func() error {
				err := schedulesOf(tc, "development", map[string]time.Duration{id: time.Duration(20+10*round+i) * time.Second}).Apply(t.Context())
				if err != nil && !strings.Contains(err.Error(), "changed by others") {
					return err
				}
				return nil
			})
		}
		group.Go(func() error { return control.Pause(t.Context(), id, "stop") })
		require.NoError(t, group.Wait())
		require.Eventually(t, func() bool {
			state, err := control.Describe(t.Context(), id)
			return err == nil && state.Paused && state.Note == "stop"
		}, patience, poll)
		require.NoError(t, control.Unpause(t.Context(), id))
	}
}

func TestSchedulesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	tc := dial(t)
	foreign := func(id string) client.ScheduleHandle {
		handle, err := tc.ScheduleClient().Create(t.Context(), client.ScheduleOptions{
			ID: id, Spec: client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: 24 * time.Hour}}},
			Action: &client.ScheduleWorkflowAction{ID: id, Workflow: "Theirs", TaskQueue: "theirs"},
		})
		require.NoError(t, err)
		return handle
	}
	theirs := foreign("theirs")
	require.NoError(t, schedulesOf(tc, "staging", nil).Apply(t.Context()))
	description, err := theirs.Describe(t.Context())
	require.NoError(t, err)
	require.Equal(t, 24*time.Hour, description.Schedule.Spec.Intervals[0].Every)

	err = schedulesOf(tc, "production", map[string]time.Duration{workflows.JobSubscriptionExpiry: 5 * time.Second}).Apply(t.Context())
	require.ErrorIs(t, err, worker.ErrForeign)
	require.ErrorContains(t, err, "of the environment staging, this process is production")
	state, err := temporalclient.NewSchedules(tc, workflows.JobIDs()).Describe(t.Context(), workflows.JobSubscriptionExpiry)
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, state.Every)

	other := dial(t)
	_, err = other.ScheduleClient().Create(t.Context(), client.ScheduleOptions{
		ID: workflows.JobOutboxDelivery, Spec: client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: time.Hour}}},
		Action: &client.ScheduleWorkflowAction{ID: "x", Workflow: "Theirs", TaskQueue: "theirs"},
	})
	require.NoError(t, err)
	require.ErrorIs(t, schedulesOf(other, "staging", nil).Apply(t.Context()), worker.ErrForeign, "our id, somebody else's schedule")
}

func TestApplyWaitsForANamespaceThatIsBeingMade(t *testing.T) {
	t.Parallel()
	address, namespace := storetest.Temporal(t)
	later := namespace + "-later"
	tc := dialTo(t, address, later)
	applied := make(chan error, 1)
	go func() { applied <- schedulesOf(tc, "development", nil).Apply(t.Context()) }()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	require.NoError(t, devstack.EnsureNamespace(t.Context(), workflowservice.NewWorkflowServiceClient(conn), later))
	require.NoError(t, <-applied)
}

func TestServerThatIsAwayIsSaidToBe(t *testing.T) {
	t.Parallel()
	tc := dialTo(t, "127.0.0.1:1", "default")
	control := temporalclient.NewSchedules(tc, workflows.JobIDs())
	_, err := control.List(t.Context())
	require.ErrorIs(t, err, temporalclient.ErrUnavailable)
	require.ErrorIs(t, control.Trigger(t.Context(), workflows.JobWebhookApply), temporalclient.ErrUnavailable)
	require.ErrorIs(t, control.Pause(t.Context(), workflows.JobWebhookApply, "x"), temporalclient.ErrUnavailable)
}
