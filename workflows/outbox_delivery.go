package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// DeliverOutbox turns facts into deliveries and sends them.
func DeliverOutbox(ctx workflow.Context, in Scan) (Tally, error) {
	var outbox *activities.Outbox
	return drain(quickSQL(ctx, in), in, outbox.Deliver)
}
