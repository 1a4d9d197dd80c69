package payment

import (
	"encoding/json"
	"fmt"
	"time"
)

// Charge is what a charge tells about its payment and about what was given back of it.
type Charge struct {
	ID         string
	PaymentID  string // of the payment intent; "" for an old one that has none
	InvoiceID  string // "" for none of an invoice, and from basil on, where it is not told
	CustomerID string
	OrderID    string // metadata.order_id; "" for none of an order
	Amount     int64  // that was captured, in minor units of Currency
	Refunded   int64  // of it, refunds that are on their way included
	Currency   string // upper case, ISO 4217
	Created    time.Time
}

// ReadCharge reads a charge of any API version we know. The error is ErrMalformed: not a charge, or one whose amounts
// cannot be read.
func ReadCharge(raw json.RawMessage) (Charge, error) {
	object, id, err := identified(raw, "charge")
	if err != nil {
		return Charge{}, err
	}
	amount, counted := object.at("amount_captured").amount()
	if !counted {
		amount, counted = object.at("amount").amount()
	}
	refunded, told := object.at("amount_refunded").amount()
	c := Charge{
		ID: id, PaymentID: object.at("payment_intent").firstText(idPlaces), InvoiceID: object.at("invoice").firstText(idPlaces),
		CustomerID: object.at("customer").firstText(idPlaces), OrderID: object.firstText(orderPlaces),
		Amount: amount, Refunded: refunded, Currency: object.currency(), Created: object.at("created").instant(),
	}
	if !counted || !told || c.Currency == "" {
		return Charge{}, fmt.Errorf("reading a charge: %w: its amounts are unknown", ErrMalformed)
	}
	return c, nil
}
