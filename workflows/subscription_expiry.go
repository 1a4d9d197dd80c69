package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// ExpireSubscriptions marks subscriptions whose access has ended. Access itself never waits for it.
func ExpireSubscriptions(ctx workflow.Context, in Scan) (Tally, error) {
	var subscriptions *activities.Subscriptions
	return drain(quickSQL(ctx, in), in, subscriptions.Expire)
}
