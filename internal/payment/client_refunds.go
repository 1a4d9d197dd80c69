package payment

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/stripe/stripe-go/v76"
)

// Refund is money that is given back of one payment.
type Refund struct {
	ID        string
	PaymentID string // of the payment intent; "" where the payment has none
	ChargeID  string
	Status    string // pending, requires_action, succeeded, failed or canceled
	Amount    int64  // minor units of Currency
	Currency  string // upper case, ISO 4217
	Created   time.Time
}

// ReadRefund reads a refund of any API version we know. The error is ErrMalformed: not a refund, or one whose state or
// amount cannot be read.
func ReadRefund(raw json.RawMessage) (Refund, error) {
	object, id, err := identified(raw, "refund")
	if err != nil {
		return Refund{}, err
	}
	amount, counted := object.at("amount").amount()
	r := Refund{
		ID: id, PaymentID: object.at("payment_intent").firstText(idPlaces), ChargeID: object.at("charge").firstText(idPlaces),
		Status: object.at("status").text(), Amount: amount, Currency: object.currency(), Created: object.at("created").instant(),
	}
	if r.Status == "" || !counted || r.Currency == "" {
		return Refund{}, fmt.Errorf("reading a refund: %w: its state or amount is unknown", ErrMalformed)
	}
	return r, nil
}

// Refund gives amount of a payment back, in minor units of its currency; 0 is all that is left of it. The error is a
// *RefusalError (for instance charge_already_refunded), ErrNoAnswer (it may have been made: Refunds tells), or that of ctx.
// key is Stripe's Idempotency-Key: the same key within a day gives back once.
func (c *Client) Refund(ctx context.Context, paymentIntentID string, amount int64, key string) (Refund, error) {
	params := &stripe.RefundParams{PaymentIntent: stripe.String(paymentIntentID)}
	if amount > 0 {
		params.Amount = stripe.Int64(amount)
	}
	params.SetIdempotencyKey(key)
	answer, err := c.ask(ctx, http.MethodPost, "/v1/refunds", actionTimeout, params)
	if err != nil {
		return Refund{}, err
	}
	made, err := ReadRefund(answer.raw)
	if err != nil || made.PaymentID != paymentIntentID {
		return Refund{}, &NoAnswerError{Why: "what came was not the refund that was asked for"}
	}
	if !answer.repeated {
		return made, nil
	}
	all, err := c.Refunds(ctx, paymentIntentID) // it may have failed since
	if err != nil {
		return Refund{}, err
	}
	for _, now := range all {
		if now.ID == made.ID {
			return now, nil
		}
	}
	return Refund{}, &NoAnswerError{Why: "the refund that it made is not on its list"}
}

// Refunds reads all refunds of a payment, whatever became of them, the newest first. The error is ErrNoAnswer, or that of
// ctx; then none are returned.
func (c *Client) Refunds(ctx context.Context, paymentIntentID string) ([]Refund, error) {
	var refunds []Refund
	err := c.everyPage(ctx, "/v1/refunds", map[string]string{"payment_intent": paymentIntentID}, func(raw json.RawMessage) error {
		found, err := ReadRefund(raw)
		if err != nil || found.PaymentID != paymentIntentID {
			return &NoAnswerError{Why: "a refund of the payment cannot be read"}
		}
		refunds = append(refunds, found)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return refunds, nil
}
