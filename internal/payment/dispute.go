package payment

import (
	"encoding/json"
	"fmt"
	"time"
)

// Dispute is a payment that a bank takes back, or asks about.
type Dispute struct {
	ID        string
	PaymentID string // of the payment intent; "" where the payment has none
	ChargeID  string
	Status    string // the provider's own word, such as needs_response, won or lost
	Reason    string // the provider's own word, such as fraudulent
	Amount    int64  // minor units of Currency
	Currency  string // upper case, ISO 4217
	Created   time.Time
}

// ReadDispute reads a dispute of any API version we know. The error is ErrMalformed: not a dispute, or one whose state or
// amount cannot be read.
func ReadDispute(raw json.RawMessage) (Dispute, error) {
	object, id, err := identified(raw, "dispute")
	if err != nil {
		return Dispute{}, err
	}
	amount, counted := object.at("amount").amount()
	d := Dispute{
		ID: id, PaymentID: object.at("payment_intent").firstText(idPlaces), ChargeID: object.at("charge").firstText(idPlaces),
		Status: object.at("status").text(), Reason: object.at("reason").text(),
		Amount: amount, Currency: object.currency(), Created: object.at("created").instant(),
	}
	if d.Status == "" || !counted || d.Currency == "" {
		return Dispute{}, fmt.Errorf("reading a dispute: %w: its state or amount is unknown", ErrMalformed)
	}
	return d, nil
}
