package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"termkeeper/internal/payment"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

// asksPerPage is how many subscriptions are asked for one by one before it is saved how far that has come.
const asksPerPage = 50

// doubtful asks for the rows of which it is in doubt what holds, and for what had no mapping and has one now. Whatever was done
// needs no position: it is not in doubt any more.
func (r *run) doubtful(ctx context.Context) error {
	after := ""
	return r.askAll(ctx, func(ctx context.Context) ([]string, error) {
		return r.Store.SubscriptionsToAsk(ctx, after, asksPerPage)
	}, func(id string) { after = id })
}

// unseen asks for those of our rows that the provider did not list.
func (r *run) unseen(ctx context.Context) error {
	if r.state.Phase != store.PhaseUnseen {
		return nil
	}
	err := r.askAll(ctx, func(ctx context.Context) ([]string, error) {
		return r.Store.UnseenSubscriptions(ctx, r.state.PhaseAfter, asksPerPage)
	}, func(id string) { r.state.PhaseAfter = id })
	if err != nil {
		return err
	}
	r.state.Phase, r.state.PhaseAfter = "", ""
	return r.lock.Save(ctx, r.state)
}

// askAll asks for subscriptions one by one, until next gives none. done is told of each.
func (r *run) askAll(ctx context.Context, next func(context.Context) ([]string, error), done func(string)) error {
	for {
		ids, err := next(ctx)
		if err != nil || len(ids) == 0 {
			return err
		}
		p := &page{}
		var stopped error
		for _, id := range ids {
			if r.leave(ctx) {
				stopped = errLeft
				break
			}
			if stopped = r.ask(ctx, p, id); stopped != nil {
				break
			}
			r.tally.Scanned++
			done(id)
		}
		if err := r.save(ctx, p); err != nil || stopped != nil {
			return errors.Join(stopped, err)
		}
	}
}

// sweep compares all subscriptions of the provider with ours, once a calendar day.
func (r *run) sweep(ctx context.Context) error {
	if today := r.begun.In(r.Settings.Zone).Format(time.DateOnly); r.state.Phase == "" && r.state.SweptOn < today {
		r.state.Phase, r.state.PhaseAfter, r.state.SweptOn = store.PhaseSweep, "", today
		if err := r.lock.BeginSweep(ctx, r.state); err != nil {
			return err
		}
	}
	for r.state.Phase == store.PhaseSweep {
		if r.leave(ctx) {
			return errLeft
		}
		began := time.Now().UTC()
		list, err := r.Provider.Subscriptions(ctx, r.state.PhaseAfter)
		var refused *payment.RefusalError
		if errors.As(err, &refused) { // what it should go on from is not there any more
			r.state.PhaseAfter = ""
			return errors.Join(&payment.NoAnswerError{Why: "its list of subscriptions does not go on: " + refused.Message}, r.lock.Save(ctx, r.state))
		}
		if err != nil {
			return err
		}
		p, err := r.compareList(ctx, list, began)
		if err != nil {
			return err
		}
		if list.More {
			r.state.PhaseAfter = list.Subscriptions[len(list.Subscriptions)-1].ExternalID
		} else {
			r.state.Phase, r.state.PhaseAfter = store.PhaseUnseen, ""
		}
		if err := r.save(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// drifted is a subscription of a list that differs from our row.
type drifted struct {
	drift subscription.Drift
	said  subscription.Provider
	row   *subscription.Subscription
}

// compareList compares a page of the provider's list with our rows, in one read, and repairs what differs.
func (r *run) compareList(ctx context.Context, list payment.SubscriptionPage, began time.Time) (*page, error) {
	known, err := r.Store.KnownOf(ctx, list.Subscriptions)
	if err != nil {
		return nil, err
	}
	p := &page{}
	var differing []drifted
	for _, said := range list.Subscriptions {
		r.tally.Scanned++
		p.Seen = append(p.Seen, said.ExternalID)
		said, row, plan := known.Of(said)
		drift, differs := subscription.Compare(row, said, list.Asked, known.At(), plan, r.Settings.Leeway)
		if differs {
			differing = append(differing, drifted{drift, said, row})
			continue
		}
		p.Compared = append(p.Compared, said.ExternalID)
	}
	causes, err := r.causes(ctx, differing)
	if err != nil {
		return nil, err
	}
	for _, d := range differing {
		if d.drift.Quarantine {
			p.Compared = append(p.Compared, d.said.ExternalID)
			p.open(finding(d.drift, d.said, d.row, causes[d.said.ExternalID]), store.DriftQuarantined, string(d.drift.Kind))
			continue
		}
		if r.leave(ctx) {
			return nil, errLeft // what was repaired does not differ any more when the page is read again
		}
		if err := r.repairListed(ctx, p, d, store.Truth{Provider: d.said, Asked: list.Asked, Began: began}, causes[d.said.ExternalID]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// repairListed repairs one of a list. The list was read before our row, so it says nothing about a row that was heard of in the
// second in which the provider was asked, or later, or that has moved since: that one is asked for by itself.
func (r *run) repairListed(ctx context.Context, p *page, d drifted, t store.Truth, cause string) error {
	moved := d.row != nil && !d.row.TruthAt.Before(t.Asked)
	if d.row != nil {
		t.Version = d.row.Version
	}
	if !moved {
		var err error
		if moved, err = r.repair(ctx, p, t, finding(d.drift, d.said, d.row, cause)); err != nil {
			return err
		}
	}
	if moved {
		return r.ask(ctx, p, d.said.ExternalID)
	}
	if !slices.Contains(p.Compared, d.said.ExternalID) {
		p.Compared = append(p.Compared, d.said.ExternalID)
	}
	return nil
}

func (r *run) causes(ctx context.Context, differing []drifted) (map[string]string, error) {
	if len(differing) == 0 {
		return nil, nil //nolint:nilnil // nothing differs, so there are no causes
	}
	ids := make([]string, len(differing))
	for i, d := range differing {
		ids[i] = d.said.ExternalID
	}
	return r.Store.DriftCauses(ctx, ids)
}
