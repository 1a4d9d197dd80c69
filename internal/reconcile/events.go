package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/payment"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

const (
	// firstLook is how far back the first run reads the provider's events. What is older is in the objects that the sweep compares.
	firstLook = 24 * time.Hour
	// overlap is read again by each pass: an event can come into the list some time after its created.
	overlap = 10 * time.Minute
	// underWay is how old an event is before it counts as missing: until then its delivery may be under way.
	underWay = 10 * time.Second
	// applied is how long a run waits for events that it stored to have their effect. What takes longer is said by the next run.
	applied = 5 * time.Second
	// look is the pause between two looks while it waits.
	look = 50 * time.Millisecond
	// receivers store events at the same time, so that intake takes them in groups.
	receivers = 32
)

// recentEvents goes through the provider's events since the last pass.
func (r *run) recentEvents(ctx context.Context) error {
	for {
		if r.leave(ctx) {
			return errLeft
		}
		from := r.state.EventsFrom.Add(-overlap)
		if r.state.EventsFrom.IsZero() {
			from = r.begun.Add(-firstLook)
		}
		list, err := r.Provider.Events(ctx, payment.EventQuery{From: from, Until: r.state.EventsUntil, After: r.state.EventsAfter})
		if gone(err) {
			r.state.EventsAfter = ""
			err = errors.Join(&payment.NoAnswerError{Why: "its list of events does not go on"}, r.lock.Save(ctx, r.state))
		}
		if err != nil {
			return err
		}
		if err := r.pull(ctx, list); err != nil {
			return err
		}
		if r.state.EventsUntil.IsZero() { // the first page says until when this pass goes
			r.state.EventsUntil = list.Asked
		}
		if list.More {
			r.state.EventsAfter = list.Events[len(list.Events)-1].ID
		} else {
			r.state.EventsFrom, r.state.EventsUntil, r.state.EventsAfter = r.state.EventsUntil, time.Time{}, ""
		}
		if err := r.lock.Save(ctx, r.state); err != nil {
			return err
		}
		if !list.More {
			return nil
		}
	}
}

// undeliveredEvents goes through the events of the last 30 days that the provider could not deliver.
func (r *run) undeliveredEvents(ctx context.Context) error {
	for {
		if r.leave(ctx) {
			return errLeft
		}
		list, err := r.Provider.Events(ctx, payment.EventQuery{
			From: r.begun.Add(-subscription.RecoveryHorizon), Undelivered: true, After: r.state.UndeliveredAfter,
		})
		if gone(err) {
			r.state.UndeliveredAfter = ""
			err = errors.Join(&payment.NoAnswerError{Why: "its list of events does not go on"}, r.lock.Save(ctx, r.state))
		}
		if err != nil {
			return err
		}
		if err := r.pull(ctx, list); err != nil {
			return err
		}
		r.state.UndeliveredAfter = ""
		if list.More {
			r.state.UndeliveredAfter = list.Events[len(list.Events)-1].ID
		}
		if err := r.lock.Save(ctx, r.state); err != nil || !list.More {
			return err
		}
	}
}

// gone: the event to go on from is not in the list any more, so the pass begins again.
func gone(err error) bool {
	var refused *payment.RefusalError
	return errors.As(err, &refused)
}

// pull stores those events of a page that never came, through the intake that takes webhooks, and says of each what became of it.
func (r *run) pull(ctx context.Context, list payment.EventPage) error {
	r.tally.Scanned += int64(len(list.Events))
	wanted := map[string]payment.ListedEvent{}
	for _, e := range list.Events {
		if r.Intake.Wanted(e.Event) {
			wanted[e.ID] = e
		}
	}
	missing, err := r.missing(ctx, list.Asked, wanted)
	if err != nil || len(missing) == 0 {
		return err
	}
	ids, findings := make([]string, len(missing)), make([]store.Finding, len(missing))
	for i, e := range missing {
		ids[i] = e.ID
		about := e.ObjectID
		if about == "" {
			about = e.ID
		}
		findings[i] = store.Finding{
			Kind: string(subscription.DriftEventMissing), Action: store.DriftNone, ExternalID: about, EventID: e.ID,
			Theirs: map[string]string{"type": e.Type, "created": e.Created.Format(time.RFC3339)},
			Cause:  "event " + e.ID + " was not delivered", Reason: "it is being applied",
		}
	}
	// Written first: a run that is killed between the two leaves it to the next one to say what became of them.
	if err := r.Store.RecordFindings(ctx, findings); err != nil {
		return err
	}
	if err := r.receive(ctx, missing); err != nil {
		return err
	}
	if err := r.until(ctx, applied, func(ctx context.Context) (bool, error) {
		pending, err := r.Store.EventsPending(ctx, ids)
		return !pending, err
	}); err != nil {
		return err
	}
	return r.settleEvents(ctx)
}

// missing are the events that are not stored, the oldest first. Those that are very young get the time to come by themselves.
func (r *run) missing(ctx context.Context, asked time.Time, wanted map[string]payment.ListedEvent) ([]payment.ListedEvent, error) {
	var missing []payment.ListedEvent
	find := func(ctx context.Context) (youngest time.Time, err error) {
		ids := make([]string, 0, len(wanted))
		for id := range wanted {
			ids = append(ids, id)
		}
		if ids, err = r.Store.MissingEvents(ctx, ids); err != nil {
			return youngest, err
		}
		missing = missing[:0]
		for _, id := range ids {
			e := wanted[id]
			missing = append(missing, e)
			if e.Created.After(youngest) {
				youngest = e.Created
			}
		}
		return youngest, nil
	}
	began := time.Now()
	err := r.until(ctx, underWay, func(ctx context.Context) (bool, error) {
		youngest, err := find(ctx)
		return asked.Add(time.Since(began)).Sub(youngest) >= underWay, err
	})
	slices.SortFunc(missing, func(a, b payment.ListedEvent) int { return a.Created.Compare(b.Created) })
	return missing, err
}

// until waits for something to be done, no longer than most. Whoever is told to leave waits no more.
func (r *run) until(ctx context.Context, most time.Duration, done func(context.Context) (bool, error)) error {
	giveUp := time.Now().Add(most)
	for {
		ok, err := done(ctx)
		if err != nil || ok || time.Now().After(giveUp) {
			return err
		}
		if r.leave(ctx) {
			return errLeft
		}
		timer := time.NewTimer(look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (r *run) receive(ctx context.Context, events []payment.ListedEvent) error {
	errs := make([]error, len(events))
	next := make(chan int)
	var working sync.WaitGroup
	for range min(receivers, len(events)) {
		working.Go(func() {
			for i := range next {
				_, errs[i] = r.Intake.Receive(ctx, events[i].Event, events[i].Body)
			}
		})
	}
	for i := range events {
		next <- i
	}
	close(next)
	working.Wait()
	return errors.Join(errs...)
}

// settleEvents says what became of missing events that were stored.
func (r *run) settleEvents(ctx context.Context) error {
	settled, err := r.Store.SettleEventFindings(ctx)
	for _, f := range settled {
		r.found(f.Kind, f.Action)
	}
	if err == nil && len(settled) > 0 {
		r.Log.Warn("events of the provider had not come", zap.Int("events", len(settled)))
	}
	return err
}
