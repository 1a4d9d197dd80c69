package payment

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// CheckoutSession is a checkout of an order: a page on which its amount is paid once.
type CheckoutSession struct {
	ID              string
	URL             string // "" when nothing can be paid there any more
	OrderID         string // metadata.order_id; "" when it is none of ours
	UserID          string // client_reference_id, else metadata.user_id
	PaymentIntentID string // "" while nobody has tried to pay
	Status          string // open, complete or expired
	PaymentStatus   string // paid, unpaid or no_payment_required
	Amount          int64  // that is asked for, in minor units of Currency
	Currency        string // upper case, ISO 4217
	ExpiresAt       time.Time
	Created         time.Time
	// Payments are the captured payments of it that came with the answer: one at most, and none when its payment came as an id.
	Payments []Payment
	// Processing says that it is neither paid nor closable: its payment is on its way, as a bank transfer may be for days.
	Processing bool
}

// orderPlaces is where an object names its order.
var orderPlaces = []place{{"metadata", "order_id"}}

// ReadCheckoutSession reads a checkout session of an order, of any API version we know. The error is ErrMalformed: not a
// checkout session, or one whose state or amount cannot be read. What is half known must not be taken for unpaid.
func ReadCheckoutSession(raw json.RawMessage) (CheckoutSession, error) {
	object, id, err := identified(raw, "checkout.session")
	if err != nil {
		return CheckoutSession{}, err
	}
	amount, counted := object.at("amount_total").amount()
	s := CheckoutSession{
		ID: id, URL: object.at("url").long(), OrderID: object.firstText(orderPlaces), UserID: object.firstText(checkoutUserPlaces),
		PaymentIntentID: object.at("payment_intent").firstText(idPlaces),
		Status:          object.at("status").text(), PaymentStatus: object.at("payment_status").text(),
		Amount: amount, Currency: object.currency(), ExpiresAt: object.at("expires_at").instant(), Created: object.at("created").instant(),
	}
	switch {
	case !slices.Contains([]string{"open", "complete", "expired"}, s.Status), !slices.Contains([]string{"paid", "unpaid", "no_payment_required"}, s.PaymentStatus):
		return CheckoutSession{}, fmt.Errorf("reading a checkout.session: %w: its state is unknown", ErrMalformed)
	case !counted || s.Currency == "":
		return CheckoutSession{}, fmt.Errorf("reading a checkout.session: %w: its amount is unknown", ErrMalformed)
	}
	intent := object.at("payment_intent")
	if intent.isObject() {
		paid, err := readPayment(intent, s.PaymentIntentID)
		if err != nil {
			return CheckoutSession{}, err
		}
		if paid.Captured() {
			s.Payments = []Payment{paid}
		}
	}
	s.Processing = s.PaymentStatus == "unpaid" && (intent.at("status").text() == "processing" || s.Status == "complete" && !failed(intent))
	return s, nil
}

// failed reports whether a payment is known to have come to nothing: it would take another attempt to pay, and a session that
// is complete takes none.
func failed(intent node) bool {
	return slices.Contains([]string{"canceled", "requires_payment_method"}, intent.at("status").text())
}

// currency is the currency of an object in upper case; "" when there is no usable one.
func (n node) currency() string {
	code := strings.ToUpper(n.at("currency").text())
	if len(code) != 3 || strings.ContainsFunc(code, func(r rune) bool { return r < 'A' || r > 'Z' }) {
		return ""
	}
	return code
}

// amount is a count of minor units; ok is false when it is missing, negative or no whole number.
func (n node) amount() (minor int64, ok bool) {
	number, _ := n.value.(json.Number)
	minor, ok = whole(string(number))
	return minor, ok && minor >= 0
}

// maxURL is the longest address that is kept, in bytes. That of a checkout has some hundreds.
const maxURL = 4096

// long is an address, which may be longer than other texts; "" when it is not one.
func (n node) long() string {
	s, _ := n.value.(string)
	if len(s) > maxURL || strings.ContainsFunc(s, notOneLine) {
		return ""
	}
	return s
}
