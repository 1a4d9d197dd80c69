package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// heartbeat is how long a worker may be silent before its activity is given to another one. A lingering run of a 10-s
// cadence lasts nearly 10 s and sends its first heartbeat after three quarters of this, so it is never paid for one.
const heartbeat = 14 * time.Second

// quickSQL is for activities that loop short statements within the run's budget. A failed attempt is tried again soon:
// most often the database was restarted. Five attempts take about 15 s; after them the run fails and the next tick
// begins anew.
func quickSQL(ctx workflow.Context, in Scan) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		// A minute on top of the budget: the batch or the messages under way when it ends.
		StartToCloseTimeout: in.Budget.Std() + time.Minute,
		HeartbeatTimeout:    heartbeat,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second, MaximumAttempts: 5,
		},
	})
}
