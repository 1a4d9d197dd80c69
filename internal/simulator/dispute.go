package simulator

import (
	"fmt"
	"strings"
	"time"
)

// DisputeFixture is a dispute as Stripe would tell of it. Zero fields take the value of one that waits for an answer.
type DisputeFixture struct {
	ID, ChargeID, PaymentIntentID string
	Amount                        int64  // in the smallest unit of the currency
	Currency                      string // in lower case; "" is usd
	Status                        string // "" is needs_response
	Reason                        string // "" is fraudulent
	Created                       time.Time
	Livemode                      bool
}

// DisputeEventBody writes an event such as charge.dispute.closed, as the body of a webhook in that shape.
func DisputeEventBody(shape Shape, id, eventType string, created time.Time, about DisputeFixture) []byte {
	return encode(event{id: id, kind: eventType, created: created, livemode: about.Livemode, object: about.write}.body(shape))
}

func (d DisputeFixture) write(Shape) any {
	status := orText(d.Status, "needs_response")
	return map[string]any{
		"id": d.ID, "object": "dispute", "amount": d.Amount, "balance_transactions": []any{}, "charge": d.ChargeID, "created": seconds(d.Created),
		"currency": orText(d.Currency, "usd"), "evidence": map[string]any{}, "evidence_details": map[string]any{"has_evidence": false, "past_due": false},
		"is_charge_refundable": strings.HasPrefix(status, "warning"), "livemode": d.Livemode, "metadata": map[string]string{},
		"payment_intent": text(d.PaymentIntentID), "reason": orText(d.Reason, "fraudulent"), "status": status,
	}
}

// DisputeOptions say how a payment is disputed. The zero value disputes all of it as fraudulent.
type DisputeOptions struct {
	Amount int64  `json:"amount"` // in the smallest unit; 0 is all
	Reason string `json:"reason"`
	// Inquiry: the bank only asks. No money moves, and it is closed without a loser.
	Inquiry bool `json:"inquiry"`
	// DropWebhook: none of the events is ever sent. They are in the list of events, as not delivered.
	DropWebhook bool `json:"drop_webhook"`
}

func (s *stripe) openDispute(id string, in DisputeOptions) (DisputeFixture, error) {
	defer s.steer()()
	c, ok := s.capturedCharge(id)
	if !ok || c.DisputeID != "" {
		return DisputeFixture{}, fmt.Errorf("there is no captured payment %q that nobody disputes yet", id)
	}
	defer s.drop(in.DropWebhook)()
	d := &DisputeFixture{
		ID: NewID("dp"), ChargeID: c.ID, PaymentIntentID: c.PaymentIntentID, Amount: in.Amount, Currency: c.Currency, Status: "needs_response", Reason: in.Reason,
		Created: s.now(),
	}
	if d.Amount == 0 {
		d.Amount = c.Amount
	}
	if in.Inquiry {
		d.Status = "warning_needs_response"
	}
	s.disputes.put(d.ID, d)
	c.DisputeID = d.ID
	s.tell("charge.dispute.created", d.Created, *d)
	if !in.Inquiry {
		s.tell("charge.dispute.funds_withdrawn", d.Created, *d)
	}
	return *d, nil
}

// closeDispute decides a dispute. An inquiry has neither winner nor loser.
func (s *stripe) closeDispute(id string, won, dropWebhook bool) (DisputeFixture, error) {
	defer s.steer()()
	d, ok := s.disputes.get(id)
	if !ok || !strings.HasSuffix(d.Status, "needs_response") {
		return DisputeFixture{}, fmt.Errorf("there is no open dispute %q", id)
	}
	defer s.drop(dropWebhook)()
	now := s.now()
	switch {
	case d.Status == "warning_needs_response":
		d.Status = "warning_closed"
	case won:
		d.Status = "won"
	default:
		d.Status = "lost"
	}
	s.tell("charge.dispute.closed", now, *d)
	if d.Status == "won" {
		s.tell("charge.dispute.funds_reinstated", now, *d)
	}
	return *d, nil
}

func (s *stripe) dispute(_ form, id string) answer {
	d, ok := s.disputes.get(id)
	if !ok {
		return missing("dispute", id)
	}
	return found(d.write(Shape2023))
}

func (s *stripe) listDisputes(f form, _ string) answer {
	return list(f, "/v1/disputes", &s.disputes, func(d *DisputeFixture) bool {
		return (!f.has("payment_intent") || d.PaymentIntentID == f.text("payment_intent")) && (!f.has("charge") || d.ChargeID == f.text("charge")) &&
			f.created(d.Created)
	}, func(d *DisputeFixture) any { return d.write(Shape2023) })
}
