package payment

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/stripe/stripe-go/v76"
)

// The changes below return the subscription as it is after them. The error is a *RefusalError, ErrNoAnswer (the change may
// have happened), or that of ctx. key is Stripe's Idempotency-Key: the same key within a day changes nothing twice, and
// repeats even the answer of a fault. After a 500, look before you try with another key.

// CancelNow ends a subscription at once.
func (c *Client) CancelNow(ctx context.Context, id, key string) (Answer, error) {
	params := &stripe.SubscriptionCancelParams{}
	params.SetIdempotencyKey(key)
	answer, _, err := c.call(ctx, http.MethodDelete, id, actionTimeout, params)
	var refused *RefusalError
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		// Stripe keeps no key for a deletion: one that is canceled already, perhaps by a call whose answer was lost, is a 404.
		if now, _, unknown := c.fetch(ctx, id); unknown == nil && now.Provider.Status == "canceled" {
			return now, nil
		}
	}
	return answer, err
}

// CancelAtPeriodEnd lets a subscription run out.
func (c *Client) CancelAtPeriodEnd(ctx context.Context, id, key string) (Answer, error) {
	params := &stripe.SubscriptionParams{CancelAtPeriodEnd: stripe.Bool(true)}
	return c.update(ctx, id, key, params)
}

// Uncancel lets a subscription renew again. There are two ways to set an end, the flag and an instant, and Stripe refuses
// to have both cleared in one call: it is asked first which one is set.
func (c *Client) Uncancel(ctx context.Context, id, key string) (Answer, error) {
	now, _, err := c.fetch(ctx, id)
	if err != nil {
		return Answer{}, err
	}
	params := &stripe.SubscriptionParams{}
	switch {
	case now.Provider.CancelAtPeriodEnd:
		params.CancelAtPeriodEnd = stripe.Bool(false)
	case !now.Provider.CancelAt.IsZero():
		params.AddExtra("cancel_at", "") // empty clears it
	default:
		return now, nil // a call whose answer was lost has cleared it; with its key nothing else may be asked
	}
	return c.update(ctx, id, key, params)
}

// ChangePrice sells a subscription at another price from now on. The difference for the rest of the period is put on the
// next invoice, as Stripe does by itself. A subscription of several items is refused: which of them is meant is not known.
func (c *Client) ChangePrice(ctx context.Context, id, price, key string) (Answer, error) {
	return c.changePrice(ctx, id, price, key, "create_prorations")
}

// ChangePriceAtRenewal sells a subscription at another price from its next period on. Stripe takes the new price at once
// and charges it then; nothing is charged or given back for the period that runs. Between prices of different
// intervals it would begin a new period at once, so that is refused.
func (c *Client) ChangePriceAtRenewal(ctx context.Context, id, price, key string) (Answer, error) {
	return c.changePrice(ctx, id, price, key, "none")
}

// interval is how often a price is charged.
type interval struct {
	Interval      string `json:"interval"`
	IntervalCount int    `json:"interval_count"`
}

func (c *Client) changePrice(ctx context.Context, id, price, key, proration string) (Answer, error) {
	_, raw, err := c.fetch(ctx, id)
	if err != nil {
		return Answer{}, err
	}
	var sold struct {
		Items struct {
			Data []struct {
				ID    string `json:"id"`
				Price struct {
					Recurring interval `json:"recurring"`
				} `json:"price"`
			} `json:"data"`
		} `json:"items"`
	}
	if err := json.Unmarshal(raw, &sold); err != nil || len(sold.Items.Data) != 1 || sold.Items.Data[0].ID == "" {
		return Answer{}, &RefusalError{Status: http.StatusConflict, Code: "several_items", Message: "the subscription does not have exactly one item"}
	}
	item := sold.Items.Data[0]
	if proration == "none" {
		every, err := c.priceInterval(ctx, price)
		if err != nil {
			return Answer{}, err
		}
		if every != item.Price.Recurring {
			return Answer{}, &RefusalError{
				Status: http.StatusConflict, Code: "other_interval", Message: "the two prices are not charged at the same interval, so the change can only be made at once",
			}
		}
	}
	return c.update(ctx, id, key, &stripe.SubscriptionParams{
		Items:             []*stripe.SubscriptionItemsParams{{ID: stripe.String(item.ID), Price: stripe.String(price)}},
		ProrationBehavior: stripe.String(proration),
	})
}

func (c *Client) priceInterval(ctx context.Context, id string) (interval, error) {
	answer, err := c.ask(ctx, http.MethodGet, "/v1/prices/"+url.PathEscape(id), fetchTimeout, &stripe.PriceParams{})
	if err != nil {
		return interval{}, err
	}
	var price struct {
		ID        string   `json:"id"`
		Recurring interval `json:"recurring"`
	}
	if err := json.Unmarshal(answer.raw, &price); err != nil || price.ID != id {
		return interval{}, &NoAnswerError{Why: "what came was not the price that was asked about"}
	}
	return price.Recurring, nil
}

func (c *Client) update(ctx context.Context, id, key string, params *stripe.SubscriptionParams) (Answer, error) {
	params.SetIdempotencyKey(key)
	answer, _, err := c.call(ctx, http.MethodPost, id, actionTimeout, params)
	return answer, err
}
