package activities

import (
	"context"

	"termkeeper/internal/intake"
)

// Webhooks are the jobs on events of payment providers.
type Webhooks struct {
	Intake *intake.Intake
	Runs   *Runs
}

// Apply applies what intake could not apply at once. Each event is leased, and only the holder of its lease writes its
// effect, in one transaction with the mark that it is done.
func (a *Webhooks) Apply(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		var total Tally
		for {
			t, err := a.Intake.ApplyDue(ctx, in.Batch)
			total = total.Plus(Tally{
				Scanned: int64(t.Scanned), Changed: int64(t.Changed), Skipped: int64(t.Skipped), Failed: int64(t.Failed), More: t.More,
			})
			switch {
			case err != nil:
				return total, err
			case !t.More:
				return total, nil
			case t.Scanned == 0: // what is due is being taken by another run
				total.More = false
				return total, nil
			case p.mustLeave(ctx):
				return total, nil
			}
		}
	})
}
