package payment

import (
	"encoding/json"
	"fmt"
	"time"
)

// Payment is a payment intent: one attempt to take money, which may have several charges of which at most one succeeds.
type Payment struct {
	ID         string // of the payment intent
	OrderID    string // metadata.order_id; "" for none of an order
	InvoiceID  string // "" for none of an invoice, and from basil on, where it is not told
	CustomerID string
	Status     string // the provider's own word; succeeded when the money was taken
	Amount     int64  // that was captured, in minor units of Currency
	Refunded   int64  // of it, as far as its charge came with the answer
	Currency   string // upper case, ISO 4217
	Created    time.Time
	ChargeID   string // of its latest charge
}

// Captured reports whether money was taken.
func (p Payment) Captured() bool { return p.Status == "succeeded" && p.Amount > 0 }

// Where a payment intent names its charge: until 2022-11-15 it had a list of them.
var chargePlaces = []place{{"latest_charge", "id"}, {"latest_charge"}, {"charges", "data", "*", "id"}}

// refundedPlaces are where a payment tells what was given back of it.
var refundedPlaces = []place{{"latest_charge", "amount_refunded"}, {"charges", "data", "*", "amount_refunded"}}

// ReadPayment reads a payment intent of any API version we know. The error is ErrMalformed: not a payment intent, or one
// whose state or amount cannot be read.
func ReadPayment(raw json.RawMessage) (Payment, error) {
	object, id, err := identified(raw, "payment_intent")
	if err != nil {
		return Payment{}, err
	}
	return readPayment(object, id)
}

func readPayment(intent node, id string) (Payment, error) {
	captured, counted := intent.at("amount_received").amount()
	p := Payment{
		ID: id, OrderID: intent.firstText(orderPlaces), InvoiceID: intent.at("invoice").firstText(idPlaces),
		CustomerID: intent.at("customer").firstText(idPlaces), Status: intent.at("status").text(), Amount: captured, Currency: intent.currency(),
		Created: intent.at("created").instant(), ChargeID: intent.firstText(chargePlaces),
	}
	for _, at := range refundedPlaces {
		for _, found := range intent.all(at) {
			if back, ok := found.amount(); ok && p.Refunded == 0 { // one charge at most has succeeded, so one at most is given back
				p.Refunded = back
			}
		}
	}
	if id == "" || p.Status == "" || !counted || p.Currency == "" {
		return Payment{}, fmt.Errorf("reading a payment_intent: %w: its state or amount is unknown", ErrMalformed)
	}
	return p, nil
}
