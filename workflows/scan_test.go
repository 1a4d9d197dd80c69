package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"termkeeper/activities"
	"termkeeper/workflows"
)

// environment runs a job's workflow in a world whose time passes at once. The activities are named by their real types.
func environment(t *testing.T) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterActivity(&activities.Subscriptions{})
	env.RegisterActivity(&activities.Webhooks{})
	env.RegisterActivity(&activities.Outbox{})
	env.RegisterActivity(&activities.Idempotency{})
	env.RegisterActivity(&activities.Orders{})
	env.RegisterActivity(&activities.Reconciliation{})
	return env
}

// activityName is what histories call the activity of a job. A method that is renamed makes runs under way fail.
var activityName = map[string]string{ //nolint:gochecknoglobals // a constant table
	workflows.JobSubscriptionExpiry: "Expire", workflows.JobWebhookApply: "Apply", workflows.JobOutboxDelivery: "Deliver",
	workflows.JobReminders:          "Remind",
	workflows.JobIdempotencyCleanup: "CleanUpKeys",
	workflows.JobReconcile:          "Reconcile",
	workflows.JobOrderReconcile:     "ReconcilePending",
	workflows.JobOrderExpiry:        "ExpireOverdue",
}

func activityOptions(name string) activity.RegisterOptions {
	return activity.RegisterOptions{Name: name}
}

// expiry is the row of a job that the shape is tried with.
func expiry() workflows.Job { return workflows.Catalog()[0] }

func tallyOf(t *testing.T, env *testsuite.TestWorkflowEnvironment) workflows.Tally {
	t.Helper()
	require.True(t, env.IsWorkflowCompleted())
	require.NoError(t, env.GetWorkflowError())
	var tally workflows.Tally
	require.NoError(t, env.GetWorkflowResult(&tally))
	return tally
}

func TestEachJobIsOneActivityInTheOrdinaryCase(t *testing.T) {
	t.Parallel()
	for _, job := range workflows.Catalog() {
		t.Run(job.ID, func(t *testing.T) {
			t.Parallel()
			env := environment(t)
			begun := env.Now()
			tick := begun.Add(-100 * time.Millisecond).Truncate(time.Second)
			require.NoError(t, env.SetTypedSearchAttributesOnStart(temporal.NewSearchAttributes(
				temporal.NewSearchAttributeKeyTime("TemporalScheduledStartTime").ValueSet(tick))))
			var handed []activities.Run
			env.OnActivity(activityName[job.ID], mock.Anything, mock.Anything).Return(func(_ context.Context, in activities.Run) (activities.Tally, error) {
				handed = append(handed, in)
				return activities.Tally{Scanned: 3, Changed: 2, Skipped: 1}, nil
			})
			env.ExecuteWorkflow(job.Run, job.Scan())
			require.Equal(t, workflows.Tally{Scanned: 3, Changed: 2, Skipped: 1}, tallyOf(t, env))
			require.Len(t, handed, 1)
			require.Equal(t, job.Scan(), handed[0].Scan)
			require.True(t, handed[0].ScheduledAt.Equal(tick))
			require.WithinRange(t, handed[0].PublishedAt, begun.Add(-time.Second), begun.Add(time.Second))
			require.Equal(t, job.Timeout, handed[0].DeadlineAt.Sub(handed[0].PublishedAt))
		})
	}
}

func TestDrainGoesOnWhileThereIsMore(t *testing.T) {
	t.Parallel()
	env := environment(t)
	var parts []int
	env.OnActivity("Expire", mock.Anything, mock.Anything).Return(func(_ context.Context, in activities.Run) (activities.Tally, error) {
		parts = append(parts, in.Part)
		return activities.Tally{Scanned: 10, Changed: 10, More: len(parts) < 3}, nil
	})
	env.ExecuteWorkflow(workflows.ExpireSubscriptions, expiry().Scan())
	require.Equal(t, workflows.Tally{Scanned: 30, Changed: 30}, tallyOf(t, env))
	require.Equal(t, []int{0, 1, 2}, parts)
}

func TestDrainEndsWithItsBudget(t *testing.T) {
	t.Parallel()
	env := environment(t)
	budget := expiry().Budget
	parts := 0
	env.OnActivity("Expire", mock.Anything, mock.Anything).After(budget / 3).Return(func(context.Context, activities.Run) (activities.Tally, error) {
		parts++
		return activities.Tally{Scanned: 1, Changed: 1, More: true}, nil
	})
	env.ExecuteWorkflow(workflows.ExpireSubscriptions, expiry().Scan())
	require.Equal(t, workflows.Tally{Scanned: 3, Changed: 3, More: true}, tallyOf(t, env), "the next tick goes on")
	require.Equal(t, 3, parts)
}

func TestFailedAttemptIsTriedAgainAndWrongInputIsNot(t *testing.T) {
	t.Parallel()
	env := environment(t)
	attempts := 0
	env.OnActivity("Expire", mock.Anything, mock.Anything).Return(func(context.Context, activities.Run) (activities.Tally, error) {
		if attempts++; attempts < 3 {
			return activities.Tally{}, temporal.NewApplicationError("the database cannot be reached", activities.FailureDatabase)
		}
		return activities.Tally{}, nil
	})
	env.ExecuteWorkflow(workflows.ExpireSubscriptions, expiry().Scan())
	require.Zero(t, tallyOf(t, env))
	require.Equal(t, 3, attempts)

	env = environment(t)
	attempts = 0
	env.OnActivity("Expire", mock.Anything, mock.Anything).Return(func(context.Context, activities.Run) (activities.Tally, error) {
		attempts++
		return activities.Tally{}, temporal.NewNonRetryableApplicationError("job is empty", activities.FailureInvalidInput, nil)
	})
	env.ExecuteWorkflow(workflows.ExpireSubscriptions, workflows.Scan{Budget: activities.Duration(time.Minute)})
	var application *temporal.ApplicationError
	require.ErrorAs(t, env.GetWorkflowError(), &application)
	require.Equal(t, activities.FailureInvalidInput, application.Type())
	require.Equal(t, 1, attempts)
}

func TestActivityThatNeverAnswersEnds(t *testing.T) {
	t.Parallel()
	env := environment(t)
	attempts := 0
	env.OnActivity("Expire", mock.Anything, mock.Anything).Return(func(context.Context, activities.Run) (activities.Tally, error) {
		attempts++
		return activities.Tally{}, temporal.NewHeartbeatTimeoutError()
	})
	env.ExecuteWorkflow(workflows.ExpireSubscriptions, expiry().Scan())
	require.Error(t, env.GetWorkflowError(), "a hung activity fails its run; the next tick begins anew")
	require.Equal(t, 5, attempts)
}

func TestCanceledRunEnds(t *testing.T) {
	t.Parallel()
	env := environment(t)
	env.OnActivity("Expire", mock.Anything, mock.Anything).After(time.Minute).Return(activities.Tally{More: true}, nil)
	env.RegisterDelayedCallback(env.CancelWorkflow, time.Second)
	env.ExecuteWorkflow(workflows.ExpireSubscriptions, expiry().Scan())
	require.True(t, env.IsWorkflowCompleted())
	require.True(t, temporal.IsCanceledError(env.GetWorkflowError()))
}
