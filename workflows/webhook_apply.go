package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// ApplyWebhookEvents applies stored events that intake could not apply at once.
func ApplyWebhookEvents(ctx workflow.Context, in Scan) (Tally, error) {
	var webhooks *activities.Webhooks
	return drain(quickSQL(ctx, in), in, webhooks.Apply)
}
