// Package workflows holds what is deterministic about the jobs: the table of jobs, and one small workflow each.
package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// Scan is what a schedule hands to the workflow of its job.
type Scan = activities.Scan

// Tally is what a run answers.
type Tally = activities.Tally

// scheduledStart is what the server writes on a run that a schedule started: the instant it was due, to the second.
func scheduledStart(ctx workflow.Context) time.Time {
	at, _ := workflow.GetTypedSearchAttributes(ctx).GetTime(temporal.NewSearchAttributeKeyTime("TemporalScheduledStartTime"))
	return at
}

// deadlineBudgets is how many budgets a run may last in all, with its retries and its waiting for a worker. The schedule
// gives it to the server as the time-out of the execution; one that was started by hand may have none, and its row is
// closed after the same time.
const deadlineBudgets = 3

// drain is the shape of a job whose activity loops over batches by itself. In the ordinary case that is one activity. It
// is repeated when a worker was stopped in the middle, within the budget; what is left then is the next tick's.
func drain(ctx workflow.Context, in Scan, do any) (Tally, error) {
	info := workflow.GetInfo(ctx)
	run := activities.Run{
		Scan: in, ScheduledAt: scheduledStart(ctx), PublishedAt: info.WorkflowStartTime,
		DeadlineAt: info.WorkflowStartTime.Add(deadlineBudgets * in.Budget.Std()),
	}
	var total Tally
	for {
		var part Tally
		if err := workflow.ExecuteActivity(ctx, do, run).Get(ctx, &part); err != nil {
			return total, err
		}
		total = total.Plus(part)
		run.Part++
		if !part.More || workflow.Now(ctx).Sub(info.WorkflowStartTime) >= in.Budget.Std() {
			return total, nil
		}
	}
}
