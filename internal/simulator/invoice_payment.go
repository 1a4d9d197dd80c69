package simulator

import "time"

// InvoicePaymentFixture is what the newer shape says of the money for an invoice, as Stripe would tell of it.
type InvoicePaymentFixture struct {
	ID, InvoiceID, PaymentIntentID string
	Amount                         int64  // in the smallest unit of the currency
	Currency                       string // in lower case; "" is usd
	Created                        time.Time
	Livemode                       bool
}

// InvoicePaymentEventBody writes an event such as invoice_payment.paid, as the body of a webhook in that shape.
func InvoicePaymentEventBody(shape Shape, id, eventType string, created time.Time, about InvoicePaymentFixture) []byte {
	return encode(event{id: id, kind: eventType, created: created, livemode: about.Livemode, object: about.write}.body(shape))
}

func (p InvoicePaymentFixture) write(Shape) any {
	return map[string]any{
		"id": p.ID, "object": "invoice_payment", "amount_paid": p.Amount, "amount_requested": p.Amount, "created": seconds(p.Created),
		"currency": orText(p.Currency, "usd"), "invoice": p.InvoiceID, "is_default": true, "livemode": p.Livemode,
		"payment": map[string]any{"type": "payment_intent", "payment_intent": p.PaymentIntentID}, "status": "paid",
		"status_transitions": map[string]any{"canceled_at": nil, "paid_at": seconds(p.Created)},
	}
}

// charged tries to take the money for the latest invoice of a subscription. An invoice of nothing has no payment. Its
// events are told only when PaymentEvents asks for them.
func (s *stripe) charged(sub *subscription, succeeds bool, at time.Time) {
	due := max(invoice{sub.Invoice, sub.SubscriptionFixture, sub.price}.total(), 0)
	p, known := s.intents.get(sub.Invoice.PaymentIntentID)
	if due == 0 || known && p.Status == "succeeded" {
		return
	}
	defer s.mute(!s.paymentEvents)()
	if !known {
		p = s.begin(PaymentIntentFixture{CustomerID: sub.CustomerID, InvoiceID: sub.Invoice.ID, Amount: due, Currency: sub.price.Currency}, at)
		sub.Invoice.PaymentIntentID = p.ID
	}
	if !succeeds {
		s.decline(p, at)
		return
	}
	s.capture(p, at)
	sub.Invoice.ChargeID = p.ChargeID
	s.tell("invoice_payment.paid", at, InvoicePaymentFixture{
		ID: NewID("inpay"), InvoiceID: sub.Invoice.ID, PaymentIntentID: p.ID, Amount: due, Currency: sub.price.Currency, Created: at,
	})
}
