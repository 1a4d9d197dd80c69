package payment

import (
	"encoding/json"
	"fmt"
	"time"
)

// Invoice is what an invoice tells about its subscription. It moves no term by itself.
type Invoice struct {
	ID             string
	SubscriptionID string // "" for a one-off invoice
	CustomerID     string
	// PaymentID is that of the payment intent that paid for it, else of the charge; "" where it is not told, as from basil on.
	PaymentID string
	Paid      int64  // what was paid for it, in minor units of Currency; 0 where that is not told
	Currency  string // upper case, ISO 4217; "" where it is not told
	Created   time.Time
	PaidFrom  time.Time // begin of the period that ends at PaidUntil; zero where that is not known
	// PaidUntil is the earliest end of the periods that it charges for in advance; zero when it charges for none, as an
	// invoice of only prorations or usage does.
	PaidUntil time.Time
	// Nothing says that its total is 0, or that it charges for prorations alone.
	Nothing bool
}

// Where an invoice names what paid for it: from basil on only when its payments are expanded.
var invoiceChargePlaces = []place{
	{"payment_intent", "id"},
	{"payment_intent"},
	{"payments", "data", "*", "payment", "payment_intent", "id"},
	{"payments", "data", "*", "payment", "payment_intent"},
	{"charge", "id"},
	{"charge"},
}

// ReadInvoice reads an invoice object of any API version we know. Whether it is paid, the event's type says.
// The error is ErrMalformed: not a JSON object, an object of another kind, or no id.
func ReadInvoice(raw json.RawMessage) (Invoice, error) {
	object, id, err := identified(raw, "invoice")
	if err != nil {
		return Invoice{}, err
	}
	created := object.at("created").instant()
	invoice := Invoice{
		ID: id, SubscriptionID: object.firstText(invoiceSubscriptionPlaces), CustomerID: object.at("customer").firstText(idPlaces),
		PaymentID: object.firstText(invoiceChargePlaces), Currency: object.currency(), Created: created,
	}
	invoice.Paid, _ = object.at("amount_paid").amount()
	lines := object.all(place{"lines", "data", "*"})
	prorations := 0
	for _, line := range lines {
		if line.firstFlag(prorationPlaces) {
			prorations++
			continue
		}
		end := line.at("period", "end").instant()
		// Usage is charged after its period, so its line ends before the invoice was made.
		if end.After(created) && (invoice.PaidUntil.IsZero() || end.Before(invoice.PaidUntil)) {
			invoice.PaidFrom, invoice.PaidUntil = line.at("period", "start").instant(), end
		}
	}
	invoice.Nothing = object.isZero("total") || (len(lines) > 0 && prorations == len(lines))
	return invoice, nil
}

// identified decodes an object and takes its id.
func identified(raw json.RawMessage, kind string) (node, string, error) {
	object, err := decode(raw)
	if err != nil {
		return node{}, "", fmt.Errorf("reading a %s: %w", kind, err)
	}
	if found := object.at("object").text(); found != "" && found != kind {
		return node{}, "", fmt.Errorf("reading a %s: %w: the object is of another kind", kind, ErrMalformed)
	}
	id := object.at("id").text()
	if id == "" {
		return node{}, "", fmt.Errorf("reading a %s: %w: no usable id", kind, ErrMalformed)
	}
	return object, id, nil
}
