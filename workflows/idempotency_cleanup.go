package workflows

import (
	"go.temporal.io/sdk/workflow"

	"termkeeper/activities"
)

// CleanUpIdempotencyKeys removes what a repeated request or event can no longer ask for.
func CleanUpIdempotencyKeys(ctx workflow.Context, in Scan) (Tally, error) {
	var idempotency *activities.Idempotency
	return drain(quickSQL(ctx, in), in, idempotency.CleanUpKeys)
}
