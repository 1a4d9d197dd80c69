// Package reconcile finds where our subscriptions differ from the payment provider's, names each difference, and repairs it
// by the provider's answer. What it did not answer repairs nothing.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

// Settings are what a reconciliation depends on.
type Settings struct {
	Leeway time.Duration  // how long the news of a renewal may take
	Zone   *time.Location // whose days the sweeps are made by, and whose weeks are reported
	// OnFinding is told of each difference that is new, and what was done about it. May be nil.
	OnFinding func(kind, action string)
}

// Reconciler compares with the provider. A nil Provider means that no key is configured: then there is nothing to do.
type Reconciler struct {
	Store    *store.Store
	Intake   *intake.Intake
	Provider *payment.Client
	Settings Settings
	Log      *zap.Logger
}

// Tally counts what a run looked at, repaired, could not repair, and left for want of an answer. More says that it left early.
type Tally struct {
	Scanned, Changed, Skipped, Failed int64
	More                              bool
}

// run is one run, which holds the lock.
type run struct {
	*Reconciler
	lock  *store.ReconcileLock
	state store.ReconcileState
	begun time.Time // by the database's clock
	leave func(context.Context) bool
	tally Tally
}

// errLeft ends a run that was told to leave.
var errLeft = errors.New("told to leave")

// Run reconciles until all is done, leave says so, or the provider gives no answer. Of any number of runs at the same time one works; the
// others return at once. It goes on where the one before ended, however that was.
// The error is payment.ErrNoAnswer, or the database's. A provider that says when to come again is no error: no run asks it before.
func (r *Reconciler) Run(ctx context.Context, leave func(context.Context) bool) (Tally, error) {
	if r.Provider == nil {
		return Tally{}, nil
	}
	lock, err := r.Store.LockReconcile(ctx)
	if err != nil || lock == nil {
		return Tally{}, err
	}
	defer lock.Release(ctx)
	one := &run{Reconciler: r, lock: lock, leave: leave}
	if one.state, one.begun, err = lock.State(ctx); err != nil {
		return Tally{}, err
	}
	if err := r.Store.ReportDrift(ctx, weekBefore(one.begun, r.Settings.Zone)); err != nil {
		return Tally{}, err
	}
	if one.begun.Before(one.state.NotBefore) {
		return Tally{}, nil
	}
	err = one.ended(ctx, one.all(ctx))
	if !one.tally.More {
		err = errors.Join(err, one.tell(ctx))
	}
	return one.tally, err
}

func (r *run) all(ctx context.Context) error {
	if err := r.settleEvents(ctx); err != nil { // of a run that was killed before it could
		return err
	}
	for _, part := range []func(context.Context) error{r.doubtful, r.recentEvents, r.undeliveredEvents, r.sweep, r.unseen} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ended says what the end of the parts means for the run.
func (r *run) ended(ctx context.Context, err error) error {
	var silent *payment.NoAnswerError
	switch {
	case errors.Is(err, errLeft):
		r.tally.More = true
		return nil
	case errors.As(err, &silent):
		r.tally.Failed++
		r.Log.Warn("the reconciliation ends because the provider does not answer", zap.Error(err), zap.Duration("retry_after", silent.RetryAfter))
		if silent.RetryAfter == 0 {
			return err
		}
		now, err := r.Store.Now(ctx)
		if err != nil {
			return err
		}
		r.state.NotBefore = now.Add(silent.RetryAfter)
		return r.lock.Save(ctx, r.state)
	}
	return err
}

// tell writes the alert about what was repaired, also when ctx has ended.
func (r *run) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	repaired, err := r.Store.TellDrift(ctx)
	if err == nil && repaired > 0 {
		r.Log.Warn("differences from the provider were repaired", zap.Int("repaired", repaired))
	}
	return err
}

// weekBefore is the week of ISO 8601 before the one that holds the instant.
func weekBefore(at time.Time, zone *time.Location) store.DriftWeek {
	local := at.In(zone)
	sinceMonday := (int(local.Weekday()) + 6) % 7
	monday := time.Date(local.Year(), local.Month(), local.Day()-sinceMonday, 0, 0, 0, 0, zone)
	before := time.Date(monday.Year(), monday.Month(), monday.Day()-7, 0, 0, 0, 0, zone)
	year, week := before.ISOWeek()
	return store.DriftWeek{Name: fmt.Sprintf("%d-W%02d", year, week), From: before, To: monday}
}

// found counts a difference.
func (r *run) found(kind, action string) {
	switch action {
	case store.DriftRepaired:
		r.tally.Changed++
	default:
		r.tally.Skipped++
	}
	if r.Settings.OnFinding != nil {
		r.Settings.OnFinding(kind, action)
	}
}

// page collects what comes of some subscriptions until it is saved.
type page struct{ store.ReconcilePage }

// open adds a difference that was not repaired.
func (p *page) open(f store.Finding, action, reason string) {
	f.Action, f.Reason = action, reason
	p.Findings = append(p.Findings, f)
}

// save keeps the page with the state after it.
func (r *run) save(ctx context.Context, p *page) error {
	fresh, err := r.lock.SavePage(ctx, r.state, p.ReconcilePage)
	for _, f := range fresh {
		r.found(f.Kind, f.Action)
	}
	return err
}

func finding(d subscription.Drift, p subscription.Provider, row *subscription.Subscription, cause string) store.Finding {
	f := store.Finding{Kind: string(d.Kind), ExternalID: p.ExternalID, Ours: d.Ours, Theirs: d.Theirs, Cause: cause}
	if row != nil {
		f.SubscriptionID, f.UserID = row.ID, row.UserID
		if cause == "" && row.NeedsReconcile {
			f.Cause = "the order of two of its events could not be told"
		}
	}
	switch d.Kind { //nolint:exhaustive // only these wait for something that is said elsewhere
	case subscription.DriftUserUnmapped:
		f.WaitsFor = []string{p.CustomerID}
	case subscription.DriftPlanUnmapped:
		f.WaitsFor = p.PriceIDs
	}
	return f
}

// repair applies the answer to the row that was compared with it. moved: the row is another one by now, and nothing was done.
func (r *run) repair(ctx context.Context, p *page, t store.Truth, f store.Finding) (moved bool, err error) {
	t.Actor, t.Note = store.ActorStripe, "found by the reconciliation"
	repaired, err := r.Store.RepairDrift(ctx, t, f, r.Settings.Leeway)
	switch {
	case store.IsRowFault(err): // its own fault: the others go on
		r.Log.Warn("a difference from the provider could not be repaired", zap.String("external_id", f.ExternalID), zap.Error(err))
		p.open(f, store.DriftNone, "the row cannot be written")
		return false, nil
	case err != nil:
		return false, err
	case !repaired:
		return true, nil
	}
	r.found(f.Kind, store.DriftRepaired)
	return false, nil
}

// ask compares one subscription with the provider's answer about it. The row is read before the question is put, so that the
// answer is newer than all that it knows.
func (r *run) ask(ctx context.Context, p *page, id string) error {
	const tries = 3
	for try := 1; ; try++ {
		rows, err := r.Store.ProviderSubscriptions(ctx, []string{id})
		if err != nil {
			return err
		}
		before := rows[id]
		began := time.Now().UTC()
		said, asked, err := r.Provider.Subscription(ctx, id)
		var silent *payment.NoAnswerError
		switch {
		case errors.As(err, &silent) && silent.NotFound:
			p.Compared = append(p.Compared, id)
			if before.ID != "" {
				p.open(store.Finding{Kind: string(subscription.DriftUnknownThere), ExternalID: id, SubscriptionID: before.ID, UserID: before.UserID},
					store.DriftNone, "the provider does not know it, which proves no deletion")
			}
			return nil
		case err != nil:
			return err
		}
		moved, err := r.compareAnswer(ctx, p, store.Truth{Provider: said, Asked: asked, Began: began, Version: before.Version})
		if err != nil || !moved {
			return err
		}
		if try == tries { // others write it all the time, so it is heard of
			return nil
		}
	}
}

func (r *run) compareAnswer(ctx context.Context, p *page, t store.Truth) (moved bool, err error) {
	known, err := r.Store.KnownOf(ctx, []subscription.Provider{t.Provider})
	if err != nil {
		return false, err
	}
	said, row, plan := known.Of(t.Provider)
	drift, differs := subscription.Compare(row, said, t.Asked, known.At(), plan, r.Settings.Leeway)
	if differs && !drift.Quarantine {
		causes, err := r.Store.DriftCauses(ctx, []string{said.ExternalID})
		if err != nil {
			return false, err
		}
		p.Compared = append(p.Compared, said.ExternalID)
		return r.repair(ctx, p, t, finding(drift, said, row, causes[said.ExternalID]))
	}
	p.Compared = append(p.Compared, said.ExternalID)
	if differs {
		p.open(finding(drift, said, row, ""), store.DriftQuarantined, string(drift.Kind))
		return false, nil
	}
	if row != nil && row.NeedsReconcile { // the answer takes the doubt away
		t.Actor = store.ActorStripe
		if _, _, err := r.Store.ApplyTruth(ctx, t, r.Settings.Leeway); err != nil {
			return false, err
		}
	}
	return false, nil
}
