package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// ReconcileOrders asks the payment provider about pending orders, so that a lost webhook costs one period.
func ReconcileOrders(ctx workflow.Context, in Scan) (Tally, error) {
	var orders *activities.Orders
	return drain(quickSQL(ctx, in), in, orders.ReconcilePending)
}
