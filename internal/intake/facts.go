package intake

import (
	"context"

	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

// The events that are about something else than a subscription. None of them moves a term by itself: they make us ask
// for the subscriptions they are about.

// invoice: a paid one whose subscription we have not seen renewed, and a payment that failed, make us ask.
func (s *settling) invoice(ctx context.Context, r read) (func(context.Context) error, error) {
	if r.kind != eventInvoiceFailed {
		if err := s.learnInvoice(ctx, r.invoice); err != nil {
			return nil, err
		}
	}
	return s.renewal(ctx, r)
}

// renewal asks for the subscription of an invoice where its row may not know what the invoice tells.
func (s *settling) renewal(ctx context.Context, r read) (func(context.Context) error, error) {
	id := r.invoice.SubscriptionID
	rows, err := s.in.store.ProviderSubscriptions(ctx, []string{id})
	if err != nil {
		return nil, err
	}
	row, exists := rows[id]
	if r.tellsNothing(row, exists) {
		return func(ctx context.Context) error { return s.done(ctx, r, "nothing_new") }, nil
	}
	s.rows[id] = row.Version
	return func(ctx context.Context) error {
		applied, skip, err := s.answered(ctx, id)
		switch {
		case err != nil:
			return err
		case applied:
			return s.done(ctx, r, string(skip))
		case r.kind == eventInvoiceFailed:
			return s.done(ctx, r, "no_answer") // customer.subscription.updated tells what follows from it
		}
		if err := s.in.store.MarkForReconcile(ctx, id); err != nil {
			return err
		}
		if s.in.settings.Fetch == nil {
			return s.done(ctx, r, "no_answer")
		}
		return errNoAnswer
	}, nil
}

// tellsNothing reports whether the row holds already what follows from the invoice.
func (r read) tellsNothing(row subscription.Subscription, exists bool) bool {
	if r.kind == eventInvoiceFailed {
		return exists && row.TruthAt.After(r.created)
	}
	if r.invoice.Nothing {
		return true
	}
	if !exists {
		return false
	}
	paid := row.UnpaidSince.IsZero() && (row.ProviderStatus == "active" || row.ProviderStatus == "trialing")
	if r.invoice.PaidUntil.IsZero() { // it does not say for when
		return (paid || row.Status == subscription.Canceled) && row.TruthAt.After(r.created)
	}
	renewed := !row.PeriodEnd.Before(r.invoice.PaidUntil)
	return renewed && (paid || row.TruthAt.After(r.created))
}

// answered applies the provider's answer about a subscription; false when there is none.
func (s *settling) answered(ctx context.Context, id string) (bool, subscription.Skip, error) {
	a := s.answers[id]
	if a.truth == nil {
		return false, subscription.SkipNone, nil
	}
	if s.questions[id] != nil {
		return true, subscription.SkipNone, nil // it was applied with its events
	}
	rows, err := s.in.store.ProviderSubscriptions(ctx, []string{id})
	if err != nil {
		return false, subscription.SkipNone, err
	}
	if version := rows[id].Version; version != s.rows[id] {
		// Another step has changed the row since, perhaps at the provider too, within the second of the answer.
		a = s.in.ask(ctx, []string{id})[id]
		s.rows[id], s.answers[id] = version, a
		if a.truth == nil {
			return false, subscription.SkipNone, nil
		}
	}
	truth := *a.truth
	truth.Version = s.rows[id]
	after, skip, err := s.in.store.ApplyTruth(ctx, truth, s.in.settings.Leeway)
	s.rows[id] = after.Version
	return err == nil, skip, err
}

// customer: its subscriptions end, and the provider says when. Without an answer they end with it, as at Stripe.
func (s *settling) customer(ctx context.Context, r read) (func(context.Context) error, error) {
	list, err := s.in.store.CustomersSubscriptions(ctx, r.customer)
	if err != nil {
		return nil, err
	}
	for _, row := range list {
		s.rows[row.ExternalID] = row.Version
	}
	return func(ctx context.Context) error {
		for _, row := range list {
			applied, _, err := s.answered(ctx, row.ExternalID)
			if err != nil {
				return err
			}
			if applied {
				continue
			}
			_, _, err = s.in.store.ApplyTruth(ctx, store.Truth{
				Provider: subscription.Provider{ExternalID: row.ExternalID, CustomerID: r.customer}, Asked: r.told(),
				CustomerDeleted: true, Actor: store.ActorStripe, Note: "its customer was deleted",
			}, s.in.settings.Leeway)
			if err != nil {
				return err
			}
		}
		reason := ""
		if len(list) == 0 {
			reason = string(subscription.SkipNoRow)
		}
		return s.done(ctx, r, reason)
	}, nil
}

// checkout: a session tells whose subscription it made. A row that went to somebody else by the link of the customer is worked out anew.
func (s *settling) checkout(ctx context.Context, r read) (func(context.Context) error, error) {
	c := r.checkout
	err := s.in.store.LearnCheckout(ctx, store.Checkout{
		SessionID: c.ID, SubscriptionID: c.SubscriptionID, CustomerID: c.CustomerID, UserID: c.UserID, Email: c.Email, Name: c.Name,
	})
	if err != nil {
		return nil, err
	}
	rows, err := s.in.store.ProviderSubscriptions(ctx, []string{c.SubscriptionID})
	if err != nil {
		return nil, err
	}
	s.in.Heal()
	row, exists := rows[c.SubscriptionID]
	if exists && row.UserID != c.UserID && s.questions[c.SubscriptionID] == nil {
		s.questions[c.SubscriptionID] = &question{version: row.Version}
		s.order = append(s.order, c.SubscriptionID)
	}
	return func(ctx context.Context) error { return s.done(ctx, r, "") }, nil
}
