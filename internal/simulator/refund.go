package simulator

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// RefundFixture is a refund as Stripe would tell of it. Zero fields take the value of one that succeeded.
type RefundFixture struct {
	ID, ChargeID, PaymentIntentID string
	Amount                        int64  // in the smallest unit of the currency
	Currency                      string // in lower case; "" is usd
	Status                        string // "" is succeeded
	Reason                        string // "" is null
	Metadata                      map[string]string
	Created                       time.Time
	Livemode                      bool
}

// RefundEventBody writes an event such as refund.updated, as the body of a webhook in that shape.
func RefundEventBody(shape Shape, id, eventType string, created time.Time, about RefundFixture) []byte {
	return encode(event{id: id, kind: eventType, created: created, livemode: about.Livemode, object: about.write}.body(shape))
}

func (r RefundFixture) write(Shape) any {
	object := map[string]any{
		"id": r.ID, "object": "refund", "amount": r.Amount, "balance_transaction": nil, "charge": text(r.ChargeID), "created": seconds(r.Created),
		"currency": orText(r.Currency, "usd"), "metadata": noNil(r.Metadata), "payment_intent": text(r.PaymentIntentID), "reason": text(r.Reason),
		"receipt_number": nil, "source_transfer_reversal": nil, "status": orText(r.Status, "succeeded"), "transfer_reversal": nil,
	}
	if r.Status == "failed" {
		object["failure_reason"] = "expired_or_canceled_card"
	}
	return object
}

// createRefund gives back what is left of a charge, or a part of it.
func (s *stripe) createRefund(f form, _ string) answer {
	id, param := f.text("payment_intent"), "payment_intent"
	if id == "" {
		id, param = f.text("charge"), "charge"
	}
	if id == "" {
		return refusal(http.StatusBadRequest, "parameter_missing", "charge", "One of the following params should be provided for this request: payment_intent or charge.")
	}
	c, ok := s.capturedCharge(id)
	if !ok {
		if p, known := s.intents.get(id); known {
			return refusal(http.StatusBadRequest, "payment_intent_unexpected_state", "payment_intent", "This PaymentIntent ("+p.ID+") does not have a successful charge to refund.")
		}
		return noSuch(param, id, param)
	}
	amount := c.Amount - c.Refunded
	if f.has("amount") {
		n, err := strconv.ParseInt(f.text("amount"), 10, 64)
		if err != nil || n < 1 {
			return refusal(http.StatusBadRequest, "parameter_invalid_integer", "amount", "Invalid positive integer")
		}
		amount = n
	}
	made, refused, bad := s.refundCharge(c, amount, s.holdRefunds)
	if bad {
		return refused
	}
	made.Reason, made.Metadata = f.text("reason"), f.metadata(nil)
	s.refundTold(c, made)
	return found(made.write(Shape2023))
}

// refundCharge takes an amount off a charge, unless Stripe would refuse. Nothing is told of it yet.
func (s *stripe) refundCharge(c *ChargeFixture, amount int64, pending bool) (made *RefundFixture, refused answer, bad bool) {
	no := func(code, param, message string) (*RefundFixture, answer, bool) {
		return nil, refusal(http.StatusBadRequest, code, param, message), true
	}
	rest := c.Amount - c.Refunded
	if d, ok := s.disputes.get(c.DisputeID); ok && d.Status != "won" && d.Status != "warning_closed" {
		return no("charge_disputed", "", "Charge "+c.ID+" has been charged back; cannot issue a refund.")
	}
	switch {
	case rest == 0:
		return no("charge_already_refunded", "", "Charge "+c.ID+" has already been refunded.")
	case amount > rest:
		return no("", "amount", fmt.Sprintf("Refund amount (%d) is greater than unrefunded amount on charge (%d)", amount, rest))
	}
	c.Refunded += amount
	made = &RefundFixture{
		ID: NewID("re"), ChargeID: c.ID, PaymentIntentID: c.PaymentIntentID, Amount: amount, Currency: c.Currency, Status: "succeeded", Created: s.now(),
	}
	if pending {
		made.Status = "pending"
	}
	s.refunds.put(made.ID, made)
	return made, answer{}, false
}

func (s *stripe) refundTold(c *ChargeFixture, r *RefundFixture) {
	s.tell("refund.created", r.Created, *r)
	s.tell("charge.refunded", r.Created, *c)
}

// capturedCharge is the charge that took the money of a payment, an invoice or itself.
func (s *stripe) capturedCharge(id string) (*ChargeFixture, bool) {
	if i, ok := s.invoices.get(id); ok {
		id = i.PaymentIntentID
	}
	if p, ok := s.intents.get(id); ok {
		id = p.ChargeID
	}
	c, ok := s.charges.get(id)
	return c, ok && c.Status == "succeeded"
}

// RefundOptions say how money is given back. The zero value gives back all that is left, at once.
type RefundOptions struct {
	Amount  int64 `json:"amount"`  // in the smallest unit; 0 is what is left
	Pending bool  `json:"pending"` // until FinishRefund
	// DropWebhook: none of the events is ever sent. They are in the list of events, as not delivered.
	DropWebhook bool `json:"drop_webhook"`
}

func (s *stripe) refundByHand(id string, in RefundOptions) (RefundFixture, error) {
	defer s.steer()()
	c, ok := s.capturedCharge(id)
	if !ok {
		return RefundFixture{}, fmt.Errorf("there is no captured payment %q", id)
	}
	defer s.drop(in.DropWebhook)()
	amount := in.Amount
	if amount == 0 {
		amount = c.Amount - c.Refunded
	}
	made, refused, bad := s.refundCharge(c, amount, in.Pending)
	if bad {
		return RefundFixture{}, fmt.Errorf("giving back %d of %q is refused: %s", amount, id, encode(refused.body))
	}
	s.refundTold(c, made)
	return *made, nil
}

// finishRefund ends a refund that is pending. One that fails gives the money back to the merchant.
func (s *stripe) finishRefund(id string, succeeds bool) (RefundFixture, error) {
	defer s.steer()()
	r, ok := s.refunds.get(id)
	if !ok || r.Status != "pending" {
		return RefundFixture{}, fmt.Errorf("there is no refund %q that is pending", id)
	}
	now, kinds := s.now(), []string{"refund.updated", "charge.refund.updated"}
	r.Status = "succeeded"
	if !succeeds {
		r.Status, kinds = "failed", append(kinds, "refund.failed")
		if c, ok := s.charges.get(r.ChargeID); ok {
			c.Refunded -= r.Amount
		}
	}
	for _, kind := range kinds {
		s.tell(kind, now, *r)
	}
	return *r, nil
}

func (s *stripe) refund(_ form, id string) answer {
	r, ok := s.refunds.get(id)
	if !ok {
		return missing("refund", id)
	}
	return found(r.write(Shape2023))
}

func (s *stripe) listRefunds(f form, _ string) answer {
	return list(f, "/v1/refunds", &s.refunds, func(r *RefundFixture) bool {
		return (!f.has("payment_intent") || r.PaymentIntentID == f.text("payment_intent")) && (!f.has("charge") || r.ChargeID == f.text("charge")) &&
			f.created(r.Created)
	}, func(r *RefundFixture) any { return r.write(Shape2023) })
}
