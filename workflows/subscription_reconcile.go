package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// ReconcileSubscriptions compares our subscriptions with the payment provider's and repairs what differs.
func ReconcileSubscriptions(ctx workflow.Context, in Scan) (Tally, error) {
	var reconciliation *activities.Reconciliation
	return drain(quickSQL(ctx, in), in, reconciliation.Reconcile)
}
