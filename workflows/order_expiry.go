package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// ExpireOrders ends overdue orders once the provider has confirmed that nobody can pay them any more, and completes those that
// were left behind half done.
func ExpireOrders(ctx workflow.Context, in Scan) (Tally, error) {
	var orders *activities.Orders
	return drain(quickSQL(ctx, in), in, orders.ExpireOverdue)
}
