package intake

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

// Money that was taken back. What is heard is kept by the id of the refund or the dispute, so that two events that tell the same
// count once; then the payment as a whole is judged by the rules of internal/subscription. The provider's answer counts
// before the event's words.

// errUnmapped says that it is not known yet what a payment was for.
var errUnmapped = errors.New("the payment is not known here yet")

// errOther says that a payment was for something that Termkeeper has nothing to do with.
var errOther = errors.New("the payment was for something else")

// refund: money was given back, or a refund came to nothing.
func (s *settling) refund(ctx context.Context, r read) error {
	id, chargeID := r.money.of()
	if c := r.money.charge; c.ID != "" && c.OrderID == "" && !s.lists(id, chargeID) {
		err := s.in.store.LearnPayment(ctx, store.SeenPayment{
			ID: id, InvoiceID: c.InvoiceID, CustomerID: c.CustomerID, ChargeID: c.ID, Amount: c.Amount, Currency: c.Currency, CapturedAt: c.Created, ChargeRefunded: c.Refunded,
		})
		if err != nil {
			return err
		}
	}
	p, err := s.paymentOf(ctx, r)
	if err != nil && !errors.Is(err, errUnmapped) {
		return s.notOurs(ctx, r, err)
	}
	if p.OrderID != "" {
		return s.orderRefund(ctx, r)
	}
	refunds, answered, askErr := s.refunds(ctx, r)
	if askErr != nil {
		return askErr
	}
	seen := make([]store.SeenRefund, len(refunds))
	for i, f := range refunds {
		seen[i] = store.SeenRefund{ID: f.ID, PaymentID: id, ChargeID: f.ChargeID, Status: f.Status, Amount: f.Amount, Currency: f.Currency, Created: f.Created}
	}
	if keepErr := s.in.store.KeepRefunds(ctx, id, seen, answered); keepErr != nil {
		return keepErr
	}
	if err != nil {
		return s.park(ctx, r, id)
	}
	return s.judge(ctx, r, id, chargeID)
}

// lists reports whether the provider is asked for all refunds of a payment, so that nothing is to be worked out from what its
// charge says.
func (s *settling) lists(id, chargeID string) bool {
	return s.in.settings.Money != nil && id != chargeID
}

// refunds are all of the payment, as the provider lists them, else the one of the event.
func (s *settling) refunds(ctx context.Context, r read) (list []payment.Refund, answered bool, err error) {
	id, chargeID := r.money.of()
	if s.lists(id, chargeID) {
		list, err = askMoney(ctx, s, id, s.in.settings.Money.Refunds)
		return list, true, err
	}
	if r.money.refund.ID != "" {
		list = []payment.Refund{r.money.refund}
	}
	return list, false, nil
}

// orderRefund hands a refund of an order to those who settle orders. One whose payment they have not heard of is settled first.
func (s *settling) orderRefund(ctx context.Context, r read) error {
	refund := r.money.refund
	refund.PaymentID, _ = r.money.of()
	return s.orderMoney(ctx, r, func(orders *settlement.Settler) error {
		_, err := orders.Refunded(ctx, refund)
		return err
	})
}

// orderMoney lets an order follow what became of its payment. One that the order has not heard of is told to it first.
func (s *settling) orderMoney(ctx context.Context, r read, follow func(*settlement.Settler) error) error {
	orders, money := s.in.settings.Orders, s.in.settings.Money
	if orders == nil || money == nil { // nothing was sold without a key
		return s.done(ctx, r, "of_an_order")
	}
	err := follow(orders)
	if !errors.Is(err, store.ErrNotFound) {
		return s.orDone(ctx, r, err)
	}
	id, _ := r.money.of()
	paid, err := askMoney(ctx, s, id, money.Payment)
	if err != nil {
		return err
	}
	if _, err := orders.Take(ctx, settlement.Evidence{Payment: &paid}); errors.Is(err, store.ErrNotFound) {
		return s.done(ctx, r, "no_order") // another system of the same account sold it
	} else if err != nil {
		return err
	}
	return s.orDone(ctx, r, follow(orders))
}

func (s *settling) orDone(ctx context.Context, r read, err error) error {
	if err != nil {
		return err
	}
	return s.done(ctx, r, "")
}

// told is when the event was told: by its provider, else when it came in here.
func (r read) told() time.Time {
	switch {
	case !r.created.IsZero():
		return r.created
	case !r.event.ReceivedAt.IsZero():
		return r.event.ReceivedAt.UTC().Truncate(time.Second)
	}
	return time.Now().UTC().Truncate(time.Second)
}

// notOurs ends an event about somebody else's payment.
func (s *settling) notOurs(ctx context.Context, r read, err error) error {
	if errors.Is(err, errOther) {
		return s.done(ctx, r, "not_a_subscription")
	}
	return err
}

// park keeps an event until its payment and its subscription are known.
func (s *settling) park(ctx context.Context, r read, paymentID string) error {
	if err := s.in.store.QuarantineWebhookEvent(ctx, r.event.ID, s.in.settings.Owner, "payment_unmapped", []string{paymentID}); err != nil {
		return err
	}
	s.in.parked.Store(time.Now().UnixNano())
	s.tally.Skipped++
	s.in.log.Warn("webhook event quarantined", zap.String("row_id", r.event.ID), zap.String("reason", "payment_unmapped"))
	s.in.tell(r.kind, "quarantined")
	return nil
}

// paymentOf is the payment that an event is about, with what it was for. Where that is not known the provider is asked;
// errUnmapped without a key, errOther when it is neither an order's nor a subscription's.
func (s *settling) paymentOf(ctx context.Context, r read) (store.ProviderPayment, error) {
	id, chargeID := r.money.of()
	if order := r.money.charge.OrderID; order != "" {
		return store.ProviderPayment{ID: id, OrderID: order}, nil
	}
	known, err := s.in.store.ProviderPayment(ctx, id, chargeID, r.told())
	switch {
	case err == nil && (known.OrderID != "" || known.SubscriptionID != ""):
		return known, nil
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return known, err
	case s.in.settings.Money == nil:
		return known, errUnmapped
	}
	seen, order, err := s.askPayment(ctx, id, chargeID)
	switch {
	case err != nil:
		return known, err
	case order != "":
		return store.ProviderPayment{ID: id, OrderID: order}, nil
	case seen.InvoiceID == "":
		return known, errOther
	}
	invoice, err := askMoney(ctx, s, seen.InvoiceID, s.in.settings.Money.Invoice)
	switch {
	case err != nil:
		return known, err
	case invoice.SubscriptionID == "":
		return known, errOther
	}
	if err := s.in.store.LearnPayment(ctx, seen); err != nil {
		return known, err
	}
	if err := s.learnInvoice(ctx, invoice); err != nil {
		return known, err
	}
	return s.in.store.ProviderPayment(ctx, id, chargeID, r.told())
}

// askPayment asks the provider for a payment, by its charge where it has no payment intent.
func (s *settling) askPayment(ctx context.Context, id, chargeID string) (seen store.SeenPayment, orderID string, err error) {
	if id != chargeID {
		p, err := askMoney(ctx, s, id, s.in.settings.Money.Payment)
		return seenPayment(p), p.OrderID, err
	}
	c, err := askMoney(ctx, s, chargeID, s.in.settings.Money.Charge)
	return store.SeenPayment{
		ID: id, InvoiceID: c.InvoiceID, CustomerID: c.CustomerID, ChargeID: c.ID, Amount: c.Amount, Currency: c.Currency, CapturedAt: c.Created, ChargeRefunded: c.Refunded,
	}, c.OrderID, err
}

// judge works out what follows from all that was taken back of a payment, and does it.
func (s *settling) judge(ctx context.Context, r read, id, chargeID string) error {
	said := r.told()
	if s.lists(id, chargeID) {
		said = time.Time{}
	}
	p, err := s.in.store.ProviderPayment(ctx, id, chargeID, said)
	if err != nil {
		return err
	}
	const tries = 4
	for try := 1; ; try++ {
		row, exists, err := s.rowOf(ctx, p.SubscriptionID)
		switch {
		case err != nil:
			return err
		case !exists:
			return s.park(ctx, r, id)
		}
		plan, err := s.in.store.Plan(ctx, row.PlanKey)
		if err != nil {
			return err
		}
		if verdict := p.TakenBack.Judge(row, plan.RefundPolicy); verdict != subscription.VerdictEnd {
			return s.kept(ctx, r, p, row, verdict)
		}
		ended, err := s.end(ctx, p, row)
		switch {
		case err != nil:
			return err
		case ended:
			return s.done(ctx, r, "")
		case try == tries:
			return errors.New("the subscription was changed each time that its provider was asked")
		}
	}
}

// kept notes why money that was taken back changes nothing.
func (s *settling) kept(ctx context.Context, r read, p store.ProviderPayment, row subscription.Subscription, why subscription.Verdict) error {
	if why != subscription.VerdictNothing && why != subscription.VerdictEnded {
		err := s.in.store.NoteOnce(ctx, store.Audit{
			Actor: store.ActorStripe, Action: "access_kept", SubjectType: "subscription", SubjectID: row.ID, Detail: takenDetail(p, string(why)),
		})
		if err != nil {
			return err
		}
	}
	return s.done(ctx, r, string(why))
}

func takenDetail(p store.ProviderPayment, why string) map[string]any {
	return map[string]any{"why": why, "payment": p.ID, "cause": p.Cause, "taken_back": p.TakenBack.Amount, "paid": p.TakenBack.Paid}
}

// rowOf is our row of a provider's subscription. One that was not heard of yet is asked for.
func (s *settling) rowOf(ctx context.Context, externalID string) (row subscription.Subscription, exists bool, err error) {
	rows, err := s.in.store.ProviderSubscriptions(ctx, []string{externalID})
	if err != nil {
		return row, false, err
	}
	row, exists = rows[externalID]
	if exists || s.in.settings.Money == nil {
		return row, exists, nil
	}
	truth, err := s.askSubscription(ctx, externalID)
	if err != nil {
		return row, false, err
	}
	row, _, err = s.in.store.ApplyTruth(ctx, truth, s.in.settings.Leeway)
	return row, row.ID != "", err
}

func (s *settling) askSubscription(ctx context.Context, externalID string) (store.Truth, error) {
	return askMoney(ctx, s, externalID, func(ctx context.Context, id string) (store.Truth, error) {
		began := time.Now().UTC()
		provider, asked, err := s.in.settings.Money.Subscription(ctx, id)
		return store.Truth{Provider: provider, Asked: asked, Began: began, Actor: store.ActorStripe}, err
	})
}

// end ends a subscription whose current period was paid back. false: it was something else by the time, and is to be judged anew.
func (s *settling) end(ctx context.Context, p store.ProviderPayment, row subscription.Subscription) (ended bool, err error) {
	why := "the payment of its current period was taken back"
	if p.Cause != "" {
		why += " by " + p.Cause
	}
	audit := store.Audit{Actor: store.ActorStripe, Action: "subscription_ended", Detail: takenDetail(p, "the current period was paid back")}
	if s.in.settings.Money == nil {
		_, skip, err := s.in.store.ApplyTruth(ctx, store.Truth{
			Provider: subscription.Provider{ExternalID: row.ExternalID, CustomerID: row.CustomerID}, Asked: p.TakenBack.At.UTC().Truncate(time.Second),
			Began: time.Now().UTC(), RefundedUntil: p.TakenBack.PeriodEnd, Actor: store.ActorStripe, Note: why, Audit: &audit,
		}, s.in.settings.Leeway)
		return skip == subscription.SkipNone, err
	}
	truth, err := s.askSubscription(ctx, row.ExternalID)
	if err != nil {
		return false, err
	}
	truth.Version = row.Version
	if truth.Provider.PeriodEnd.After(p.TakenBack.PeriodEnd) || truth.Provider.Status == string(subscription.Canceled) {
		// What came before has not been heard of here: the row is brought up to it and judged anew.
		_, _, err := s.in.store.ApplyTruth(ctx, truth, s.in.settings.Leeway)
		return false, err
	}
	began := time.Now().UTC()
	answer, err := askMoney(ctx, s, row.ExternalID, func(ctx context.Context, sub string) (payment.Answer, error) {
		return s.in.settings.Money.CancelNow(ctx, sub, "termkeeper:taken-back:"+causeOf(p))
	})
	if err != nil {
		return false, err
	}
	_, skip, err := s.in.store.ApplyTruth(ctx, store.Truth{
		Provider: answer.Provider, Asked: answer.Asked, Began: began, Version: row.Version, Actor: store.ActorStripe, Note: why, Audit: &audit,
	}, s.in.settings.Leeway)
	return skip != subscription.SkipStale, err
}

// causeOf names what took the money: the refund or the dispute, else the payment.
func causeOf(p store.ProviderPayment) string {
	if p.Cause != "" {
		return p.Cause
	}
	return p.ID
}
