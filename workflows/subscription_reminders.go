package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// RemindSubscriptions tells of ends that are near. After an outage a run tells only what is still of use.
func RemindSubscriptions(ctx workflow.Context, in Scan) (Tally, error) {
	var subscriptions *activities.Subscriptions
	return drain(quickSQL(ctx, in), in, subscriptions.Remind)
}
