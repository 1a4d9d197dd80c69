package simulator

import (
	"time"
)

// PaymentIntentFixture is a payment as Stripe would tell of it. Zero fields take the value of one that succeeded.
type PaymentIntentFixture struct {
	ID, CustomerID string
	ChargeID       string // latest_charge
	InvoiceID      string // that it pays; the newer shape does not tell
	Amount         int64  // in the smallest unit of the currency
	Currency       string // in lower case; "" is usd
	Status         string // "" is succeeded
	Metadata       map[string]string
	Created        time.Time
	Livemode       bool
}

// PaymentIntentEventBody writes an event such as payment_intent.succeeded, as the body of a webhook in that shape.
func PaymentIntentEventBody(shape Shape, id, eventType string, created time.Time, about PaymentIntentFixture) []byte {
	return encode(event{id: id, kind: eventType, created: created, livemode: about.Livemode, object: about.write}.body(shape))
}

func (p PaymentIntentFixture) write(shape Shape) any {
	p.Status, p.Currency = orText(p.Status, "succeeded"), orText(p.Currency, "usd")
	received := int64(0)
	if p.Status == "succeeded" {
		received = p.Amount
	}
	object := map[string]any{
		"id": p.ID, "object": "payment_intent", "amount": p.Amount, "amount_capturable": 0, "amount_received": received, "canceled_at": nil,
		"cancellation_reason": nil, "capture_method": "automatic", "confirmation_method": "automatic", "created": seconds(p.Created), "currency": p.Currency,
		"customer": text(p.CustomerID), "description": nil, "last_payment_error": nil, "latest_charge": text(p.ChargeID), "livemode": p.Livemode,
		"metadata": noNil(p.Metadata), "next_action": nil, "payment_method": nil, "payment_method_types": []any{"card"}, "processing": nil,
		"receipt_email": nil, "status": p.Status,
	}
	if p.Status == "requires_payment_method" {
		object["last_payment_error"] = map[string]any{"type": "card_error", "code": "card_declined", "message": "Your card was declined."}
	}
	if shape == Shape2023 {
		object["invoice"] = text(p.InvoiceID)
	}
	return object
}

// ChargeFixture is a charge as Stripe would tell of it. Zero fields take the value of one that succeeded.
type ChargeFixture struct {
	ID, PaymentIntentID, CustomerID string
	InvoiceID                       string // that it pays; the newer shape does not tell
	Amount, Refunded                int64  // in the smallest unit of the currency
	Currency                        string // in lower case; "" is usd
	Status                          string // "" is succeeded
	DisputeID                       string // "" when nobody disputes it
	Metadata                        map[string]string
	Created                         time.Time
	Livemode                        bool
}

// ChargeEventBody writes an event such as charge.refunded, as the body of a webhook in that shape.
func ChargeEventBody(shape Shape, id, eventType string, created time.Time, about ChargeFixture) []byte {
	return encode(event{id: id, kind: eventType, created: created, livemode: about.Livemode, object: about.write}.body(shape))
}

func (c ChargeFixture) write(shape Shape) any {
	c.Status, c.Currency = orText(c.Status, "succeeded"), orText(c.Currency, "usd")
	paid, captured := c.Status == "succeeded", int64(0)
	if paid {
		captured = c.Amount
	}
	object := map[string]any{
		"id": c.ID, "object": "charge", "amount": c.Amount, "amount_captured": captured, "amount_refunded": c.Refunded, "captured": paid,
		"created": seconds(c.Created), "currency": c.Currency, "customer": text(c.CustomerID), "description": nil, "disputed": c.DisputeID != "",
		"failure_code": nil, "failure_message": nil, "livemode": c.Livemode, "metadata": noNil(c.Metadata), "paid": paid,
		"payment_intent": text(c.PaymentIntentID), "receipt_url": nil, "refunded": paid && c.Refunded >= c.Amount, "status": c.Status,
	}
	if c.Status == "failed" {
		object["failure_code"], object["failure_message"] = "card_declined", "Your card was declined."
	}
	if shape == Shape2023 {
		object["invoice"], object["dispute"] = text(c.InvoiceID), text(c.DisputeID)
	}
	return object
}

// begin makes a payment that nobody has confirmed yet, and tells of it.
func (s *stripe) begin(p PaymentIntentFixture, at time.Time) *PaymentIntentFixture {
	p.ID, p.Status, p.Created = NewID("pi"), "requires_payment_method", at
	made := p
	s.intents.put(p.ID, &made)
	s.tell("payment_intent.created", p.Created, made)
	return &made
}

// capture takes the money of a payment and tells of it.
func (s *stripe) capture(p *PaymentIntentFixture, at time.Time) {
	s.attempt(p, "succeeded", at)
	p.Status = "succeeded"
	s.tell("payment_intent.succeeded", at, *p)
}

// decline ends the attempt to take the money of a payment; another one may be made.
func (s *stripe) decline(p *PaymentIntentFixture, at time.Time) {
	s.attempt(p, "failed", at)
	p.Status = "requires_payment_method"
	s.tell("payment_intent.payment_failed", at, *p)
}

// attempt makes the charge of a payment.
func (s *stripe) attempt(p *PaymentIntentFixture, status string, at time.Time) {
	c := &ChargeFixture{
		ID: NewID("ch"), PaymentIntentID: p.ID, CustomerID: p.CustomerID, InvoiceID: p.InvoiceID, Amount: p.Amount, Currency: p.Currency, Status: status,
		Metadata: p.Metadata, Created: at,
	}
	s.charges.put(c.ID, c)
	p.ChargeID = c.ID
	s.tell("charge."+status, at, *c)
}

// written is an object that is a value: what was told of it stays as it was.
type written interface{ write(shape Shape) any }

// tell publishes an event about an object as it is now.
func (s *stripe) tell(kind string, at time.Time, about written) {
	s.publish(kind, at, about.write, nil)
}

func (s *stripe) paymentIntent(_ form, id string) answer {
	p, ok := s.intents.get(id)
	if !ok {
		return missing("payment_intent", id)
	}
	return found(p.write(Shape2023))
}

func (s *stripe) updatePaymentIntent(f form, id string) answer {
	p, ok := s.intents.get(id)
	if !ok {
		return missing("payment_intent", id)
	}
	p.Metadata = f.metadata(p.Metadata)
	return found(p.write(Shape2023))
}

func (s *stripe) listPaymentIntents(f form, _ string) answer {
	return list(f, "/v1/payment_intents", &s.intents, func(p *PaymentIntentFixture) bool {
		return (!f.has("customer") || p.CustomerID == f.text("customer")) && f.created(p.Created)
	}, func(p *PaymentIntentFixture) any { return p.write(Shape2023) })
}

func (s *stripe) charge(_ form, id string) answer {
	c, ok := s.charges.get(id)
	if !ok {
		return missing("charge", id)
	}
	return found(c.write(Shape2023))
}

func (s *stripe) listCharges(f form, _ string) answer {
	return list(f, "/v1/charges", &s.charges, func(c *ChargeFixture) bool {
		return (!f.has("customer") || c.CustomerID == f.text("customer")) && (!f.has("payment_intent") || c.PaymentIntentID == f.text("payment_intent")) &&
			f.created(c.Created)
	}, func(c *ChargeFixture) any { return c.write(Shape2023) })
}

func orText(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

func noNil(metadata map[string]string) map[string]string {
	if metadata == nil {
		return map[string]string{}
	}
	return metadata
}
