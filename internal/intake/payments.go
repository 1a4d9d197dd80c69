package intake

import (
	"cmp"
	"context"
	"errors"
	"time"

	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

// Which payment is for which invoice, subscription and period. The older payload shape says it in the invoice and in the
// payment; the newer one only in an object of its own, invoice_payment.

// basil is the first version in which a payment and its charge do not name their invoice.
const basil = "2025-03-31"

// money is what an event tells about a payment.
type money struct {
	payment payment.Payment
	paid    payment.InvoicePayment
	charge  payment.Charge
	refund  payment.Refund
	dispute payment.Dispute
}

// of is the payment that the event is about, by the id of its payment intent, else of its charge, and its charge.
func (m money) of() (id, chargeID string) {
	chargeID = cmp.Or(m.charge.ID, m.refund.ChargeID, m.dispute.ChargeID)
	return cmp.Or(m.charge.PaymentID, m.refund.PaymentID, m.dispute.PaymentID, chargeID), chargeID
}

// aboutPayment reads an event that says that a payment succeeded.
func (r *read) aboutPayment(e payment.Event) (ignored string, err error) {
	if e.Type == eventInvoicePaymentPaid {
		r.money.paid, err = payment.ReadInvoicePayment(e.Data)
		return "", err
	}
	r.money.payment, err = payment.ReadPayment(e.Data)
	if err == nil && r.money.payment.InvoiceID == "" && e.APIVersion < basil {
		return "not_an_invoice", nil
	}
	return "", err
}

// invoicePayment: the payment of an invoice says what the invoice was paid by, and tells of a renewal as invoice.paid does.
func (s *settling) invoicePayment(ctx context.Context, r read) (func(context.Context) error, error) {
	seen := store.SeenPayment{
		ID: r.money.paid.PaymentID, InvoiceID: r.money.paid.InvoiceID, Amount: r.money.paid.Amount, Currency: r.money.paid.Currency, CapturedAt: r.money.paid.Paid,
	}
	if p := r.money.payment; p.ID != "" {
		seen = seenPayment(p)
		if p.InvoiceID == "" && s.in.settings.Money != nil { // the newer shape does not tell
			asked, err := askMoney(ctx, s, p.ID, s.in.settings.Money.Payment)
			if err != nil {
				return nil, err
			}
			seen = seenPayment(asked)
		}
	}
	if seen.InvoiceID == "" {
		return func(ctx context.Context) error { return s.done(ctx, r, "not_an_invoice") }, nil
	}
	if seen.ID != "" {
		if err := s.in.store.LearnPayment(ctx, seen); err != nil {
			return nil, err
		}
	}
	known, err := s.in.store.Invoice(ctx, seen.InvoiceID)
	switch {
	case err == nil:
		s.in.healMoney()
		r.invoice = payment.Invoice{ID: known.ID, SubscriptionID: known.SubscriptionID, PaidUntil: known.PeriodEnd, Nothing: known.PeriodEnd.IsZero()}
		return s.renewal(ctx, r)
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	case s.in.settings.Money == nil: // its own event tells
		return func(ctx context.Context) error { return s.done(ctx, r, "no_answer") }, nil
	}
	r.invoice, err = askMoney(ctx, s, seen.InvoiceID, s.in.settings.Money.Invoice)
	if err != nil {
		return nil, err
	}
	if r.invoice.SubscriptionID == "" {
		return func(ctx context.Context) error { return s.done(ctx, r, "not_a_subscription") }, nil
	}
	if err := s.learnInvoice(ctx, r.invoice); err != nil {
		return nil, err
	}
	return s.renewal(ctx, r)
}

func seenPayment(p payment.Payment) store.SeenPayment {
	return store.SeenPayment{
		ID: p.ID, InvoiceID: p.InvoiceID, CustomerID: p.CustomerID, ChargeID: p.ChargeID, Amount: p.Amount, Currency: p.Currency, CapturedAt: p.Created,
	}
}

// learnInvoice keeps what a paid invoice was for, and by what it was paid where it says so.
func (s *settling) learnInvoice(ctx context.Context, in payment.Invoice) error {
	if in.Nothing {
		in.PaidFrom, in.PaidUntil = time.Time{}, time.Time{}
	}
	err := s.in.store.LearnInvoice(ctx, store.PaidInvoice{
		ID: in.ID, SubscriptionID: in.SubscriptionID, CustomerID: in.CustomerID, PeriodStart: in.PaidFrom, PeriodEnd: in.PaidUntil,
	})
	if err != nil {
		return err
	}
	if in.PaymentID != "" && in.Currency != "" {
		err = s.in.store.LearnPayment(ctx, store.SeenPayment{
			ID: in.PaymentID, InvoiceID: in.ID, CustomerID: in.CustomerID, Amount: in.Paid, Currency: in.Currency, CapturedAt: in.Created,
		})
	}
	s.in.healMoney()
	return err
}

// parkedFor is how long after an event about money was put into quarantine this process looks out for what it waits for. Later the
// job webhook-apply does.
const parkedFor = time.Minute

// healMoney has quarantined events looked at, when this process put one about money there lately.
func (in *Intake) healMoney() {
	if at := in.parked.Load(); at != 0 && time.Since(time.Unix(0, at)) < parkedFor {
		in.Heal()
	}
}

// askMoney puts one question about money to the provider, or one change. All of a round share one time-out, and after one
// without an answer the rest has none either: a provider that is down costs one time-out and not one for each event.
func askMoney[T any](ctx context.Context, s *settling, id string, question func(context.Context, string) (T, error)) (T, error) {
	if s.silent {
		var none T
		return none, errNoAnswer
	}
	if s.moneyUntil.IsZero() {
		s.moneyUntil = time.Now().Add(askTimeout)
	}
	ctx, cancel := context.WithDeadline(ctx, s.moneyUntil)
	defer cancel()
	got, err := question(ctx, id)
	var silent *payment.NoAnswerError
	s.silent = errors.As(err, &silent) && !silent.NotFound
	return got, err
}
