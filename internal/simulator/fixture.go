package simulator

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Shape is the API version in which a payload is written. They differ in where a subscription's period stands.
type Shape string

// The shapes: the one that stripe-go v76 speaks, and the first one with periods on the items.
const (
	Shape2023 Shape = "2023-10-16"
	Shape2025 Shape = "2025-03-31"
)

func (s Shape) valid() bool { return s == Shape2023 || s == Shape2025 }

// apiVersion is what an event of that shape says about itself.
func (s Shape) apiVersion() string {
	if s == Shape2025 {
		return "2025-03-31.basil"
	}
	return string(s)
}

// SubscriptionFixture is a subscription as Stripe would tell of it. Zero fields take the value of a plain, active one;
// zero instants are null, except StartDate, which is then the period's start. A period left zero is written nowhere.
type SubscriptionFixture struct {
	ID, CustomerID, PriceID string
	UserID                  string // metadata.user_id; "" leaves it out
	Status                  string // "" is "active"
	PeriodStart, PeriodEnd  time.Time
	StartDate               time.Time
	CancelAtPeriodEnd       bool
	CancelAt, CanceledAt    time.Time
	EndedAt, TrialEnd       time.Time
	SendInvoice             bool
	DaysUntilDue            int
	PauseCollection         string // behavior of pause_collection, such as void; "" is none
	Livemode                bool
	Customer                *CustomerFixture // written in place of CustomerID, as an expanded customer
	Invoice                 InvoiceFixture
	ExpandInvoice           bool
}

// JSON writes the subscription in that shape.
func (f SubscriptionFixture) JSON(shape Shape) json.RawMessage {
	return encode(f.object(shape, plainPrice(f.PriceID), metadataOf(f.UserID)))
}

// plainPrice is the price of a fixture, of which only the id is known: 20.00 a month.
func plainPrice(id string) priceFixture {
	return priceFixture{ID: id, Product: "prod_sim", Currency: "usd", UnitAmount: 2000, Interval: "month", IntervalCount: 1}
}

func (f SubscriptionFixture) object(shape Shape, price priceFixture, metadata map[string]string) map[string]any {
	item := map[string]any{
		"id": itemID(f.ID), "object": "subscription_item", "metadata": map[string]string{}, "quantity": 1, "subscription": f.ID,
		"price": price.object(), "plan": price.plan(), "tax_rates": []any{}, "billing_thresholds": nil,
		"created": seconds(or(f.StartDate, f.PeriodStart)),
	}
	object := map[string]any{
		"id": f.ID, "object": "subscription", "application": nil, "application_fee_percent": nil,
		"automatic_tax": map[string]any{"enabled": false}, "billing_cycle_anchor": seconds(or(f.StartDate, f.PeriodStart)),
		"billing_thresholds": nil, "cancel_at": seconds(f.CancelAt), "cancel_at_period_end": f.CancelAtPeriodEnd,
		"canceled_at": seconds(f.CanceledAt), "cancellation_details": map[string]any{"comment": nil, "feedback": nil, "reason": nil},
		"collection_method": "charge_automatically", "created": seconds(or(f.StartDate, f.PeriodStart)), "currency": price.Currency,
		"customer": f.CustomerID, "days_until_due": nil, "default_payment_method": nil, "default_source": nil,
		"default_tax_rates": []any{}, "description": nil, "ended_at": seconds(f.EndedAt), "latest_invoice": nil,
		"livemode": f.Livemode, "metadata": metadata, "on_behalf_of": nil, "pause_collection": nil,
		"payment_settings": map[string]any{"save_default_payment_method": "off"}, "pending_setup_intent": nil,
		"pending_update": nil, "quantity": 1, "schedule": nil, "start_date": seconds(or(f.StartDate, f.PeriodStart)),
		"status": f.Status, "test_clock": nil, "trial_end": seconds(f.TrialEnd), "trial_start": nil,
	}
	if f.Status == "" {
		object["status"] = "active"
	}
	if f.Customer != nil {
		object["customer"] = f.Customer.object()
	}
	if f.SendInvoice {
		object["collection_method"], object["days_until_due"] = "send_invoice", f.DaysUntilDue
	}
	if f.PauseCollection != "" {
		object["pause_collection"] = map[string]any{"behavior": f.PauseCollection, "resumes_at": nil}
	}
	if f.Invoice.ID != "" {
		object["latest_invoice"] = f.Invoice.ID
		if f.ExpandInvoice {
			object["latest_invoice"] = invoice{f.Invoice, f, price}.write(shape)
		}
	}
	period := object
	if shape == Shape2025 {
		object["billing_mode"], object["discounts"] = map[string]any{"type": "classic"}, []any{}
		period = item
	} else {
		object["plan"], object["discount"] = price.plan(), nil
	}
	if !f.PeriodEnd.IsZero() {
		period["current_period_start"], period["current_period_end"] = seconds(f.PeriodStart), seconds(f.PeriodEnd)
	}
	object["items"] = map[string]any{
		"object": "list", "data": []any{item}, "has_more": false, "total_count": 1, "url": "/v1/subscription_items?subscription=" + f.ID,
	}
	return object
}

// EventBody writes an event about the subscription, as the body of a webhook in that shape.
func EventBody(shape Shape, id, eventType string, created time.Time, subscription SubscriptionFixture) []byte {
	return encode(event{
		id: id, kind: eventType, created: created, livemode: subscription.Livemode,
		object: func(shape Shape) any { return subscription.JSON(shape) },
	}.body(shape))
}

// NewID returns an id of Stripe's form that was never used before: the prefix, "_" and random letters.
func NewID(prefix string) string { return prefix + "_" + rand.Text() }

// SignatureHeader signs the body at an instant with the secret, as the value of Stripe-Signature.
func SignatureHeader(body []byte, secret string, at time.Time) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// SignedRequest makes the request by which Stripe delivers a webhook.
func SignedRequest(ctx context.Context, url string, body []byte, secret string, at time.Time) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("making a webhook request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	request.Header.Set("Stripe-Signature", SignatureHeader(body, secret, at))
	return request, nil
}

// encode writes JSON. What it is given is made of maps, strings and numbers, which cannot fail.
func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("writing a payload: %v", err))
	}
	return raw
}

// seconds writes an instant as Stripe does; the zero time is null.
func seconds(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.Unix()
}

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func or(at, fallback time.Time) time.Time {
	if at.IsZero() {
		return fallback
	}
	return at
}

func metadataOf(userID string) map[string]string {
	if userID == "" {
		return map[string]string{}
	}
	return map[string]string{"user_id": userID}
}
