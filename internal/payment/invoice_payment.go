package payment

import (
	"encoding/json"
	"fmt"
	"time"
)

// InvoicePayment says which payment paid for which invoice. There is such an object from basil on.
type InvoicePayment struct {
	ID        string
	InvoiceID string
	PaymentID string // of the payment intent, else of the charge; "" for money that came by other ways
	Amount    int64  // that was paid, in minor units of Currency
	Currency  string // upper case, ISO 4217
	Paid      time.Time
}

var invoicePaymentPlaces = []place{{"payment", "payment_intent", "id"}, {"payment", "payment_intent"}, {"payment", "charge", "id"}, {"payment", "charge"}}

// ReadInvoicePayment reads the payment of an invoice. The error is ErrMalformed: not one, or one whose invoice or amount
// cannot be read.
func ReadInvoicePayment(raw json.RawMessage) (InvoicePayment, error) {
	object, id, err := identified(raw, "invoice_payment")
	if err != nil {
		return InvoicePayment{}, err
	}
	amount, counted := object.at("amount_paid").amount()
	p := InvoicePayment{
		ID: id, InvoiceID: object.at("invoice").firstText(idPlaces), PaymentID: object.firstText(invoicePaymentPlaces),
		Amount: amount, Currency: object.currency(), Paid: object.at("status_transitions", "paid_at").instant(),
	}
	if p.InvoiceID == "" || !counted || p.Currency == "" {
		return InvoicePayment{}, fmt.Errorf("reading an invoice_payment: %w: its invoice or amount is unknown", ErrMalformed)
	}
	return p, nil
}
