package payment

import (
	"context"
	"encoding/json"
	"net/url"

	"github.com/stripe/stripe-go/v76"
)

// The questions below are asked for one object by its id. What comes has the shape of 2023-10-16, in which a payment still
// names its invoice. The error is ErrNoAnswer, which may be ErrNotFound, or that of ctx.

// Payment fetches a payment intent. What was given back of it is not told: see Refunds.
func (c *Client) Payment(ctx context.Context, id string) (Payment, error) {
	return fetchOne(ctx, c, "/v1/payment_intents/", id, func(raw json.RawMessage) (Payment, string, error) {
		p, err := ReadPayment(raw)
		return p, p.ID, err
	})
}

// Charge fetches a charge.
func (c *Client) Charge(ctx context.Context, id string) (Charge, error) {
	return fetchOne(ctx, c, "/v1/charges/", id, func(raw json.RawMessage) (Charge, string, error) {
		charge, err := ReadCharge(raw)
		return charge, charge.ID, err
	})
}

// Invoice fetches an invoice.
func (c *Client) Invoice(ctx context.Context, id string) (Invoice, error) {
	return fetchOne(ctx, c, "/v1/invoices/", id, func(raw json.RawMessage) (Invoice, string, error) {
		invoice, err := ReadInvoice(raw)
		return invoice, invoice.ID, err
	})
}

// Dispute fetches a dispute.
func (c *Client) Dispute(ctx context.Context, id string) (Dispute, error) {
	return fetchOne(ctx, c, "/v1/disputes/", id, func(raw json.RawMessage) (Dispute, string, error) {
		dispute, err := ReadDispute(raw)
		return dispute, dispute.ID, err
	})
}

// fetchOne asks for one object. What comes must be the object that was asked about.
func fetchOne[T any](ctx context.Context, c *Client, path, id string, read func(json.RawMessage) (T, string, error)) (T, error) {
	var none T
	answer, err := c.look(ctx, path+url.PathEscape(id), &stripe.Params{})
	if err != nil {
		return none, err
	}
	found, got, err := read(answer.raw)
	if err != nil || got != id {
		return none, &NoAnswerError{Why: "what came was not the object that was asked about"}
	}
	return found, nil
}
