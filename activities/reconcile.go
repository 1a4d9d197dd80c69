package activities

import (
	"context"

	"termkeeper/internal/reconcile"
)

// Reconciliation is the job that compares with the payment provider.
type Reconciliation struct {
	Reconciler *reconcile.Reconciler
	Runs       *Runs
}

// Reconcile compares our subscriptions with the provider's and repairs what differs. A lock of the database lets one run
// work at a time; a repair names the version of the row that it compared; how far a run came is kept after each page. So
// one that is killed is gone on with, and what it had repaired does not differ any more.
func (a *Reconciliation) Reconcile(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		t, err := a.Reconciler.Run(ctx, p.mustLeave)
		return Tally{Scanned: t.Scanned, Changed: t.Changed, Skipped: t.Skipped, Failed: t.Failed, More: t.More}, err
	})
}
