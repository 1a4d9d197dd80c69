package conformance

import (
	"encoding/json"
	"time"
)

// Shape is the API version in which an event is written.
type Shape string

// The shapes: up to acacia a subscription has one period and an invoice names its subscription; from basil on each item
// has a period of its own, and the invoice's parent names the subscription.
const (
	Shape2023 Shape = "2023-10-16"
	Shape2025 Shape = "2025-03-31.basil"
)

// Shapes lists both.
var shapes = []Shape{Shape2023, Shape2025}

// The objects are written here once more, apart from the rest of the program: what the instance misreads must not be
// written to fit.

// object is one object of Stripe's.
type object map[string]any

// thing is something that the provider has, at one moment.
type thing interface{ write(Shape) object }

const (
	currency  = "usd"
	fullPrice = 2000 // minor units; every invoice of a period is over this
)

// period is one billing period, from its start to its end.
type period struct{ start, end time.Time }

// subscribed is a subscription at one moment.
type subscribed struct {
	id, customer, user string // user goes into the metadata; "" leaves it out
	price, status      string
	began              time.Time
	period             period
	endsWithPeriod     bool
	canceled, ended    time.Time
	invoice            string // the latest one
}

func (s subscribed) write(shape Shape) object {
	price := object{
		"id": s.price, "object": "price", "active": true, "currency": currency, "product": "prod_conformance", "type": "recurring",
		"unit_amount": fullPrice, "recurring": object{"interval": "month", "interval_count": 1, "usage_type": "licensed"},
	}
	item := object{
		"id": "si_" + s.id, "object": "subscription_item", "created": s.began.Unix(), "metadata": object{}, "quantity": 1, "subscription": s.id, "price": price,
	}
	metadata := object{}
	if s.user != "" {
		metadata["user_id"] = s.user
	}
	o := object{
		"id": s.id, "object": "subscription", "customer": s.customer, "metadata": metadata, "status": s.status, "livemode": false,
		"created": s.began.Unix(), "start_date": s.began.Unix(), "billing_cycle_anchor": s.began.Unix(), "currency": currency,
		"cancel_at_period_end": s.endsWithPeriod, "cancel_at": nil, "canceled_at": seconds(s.canceled), "ended_at": seconds(s.ended),
		"collection_method": "charge_automatically", "days_until_due": nil, "latest_invoice": text(s.invoice), "pause_collection": nil,
		"trial_start": nil, "trial_end": nil, "schedule": nil, "default_payment_method": nil, "pending_update": nil,
	}
	if s.endsWithPeriod {
		o["cancel_at"] = s.period.end.Unix()
	}
	holder := o
	if shape == Shape2025 {
		holder = item
		o["billing_mode"] = object{"type": "classic"}
	} else {
		o["plan"] = object{"id": s.price, "object": "plan", "active": true, "amount": fullPrice, "currency": currency, "interval": "month"}
		item["plan"] = o["plan"]
	}
	holder["current_period_start"], holder["current_period_end"] = s.period.start.Unix(), s.period.end.Unix()
	o["items"] = object{"object": "list", "data": []any{item}, "has_more": false, "total_count": 1, "url": "/v1/subscription_items?subscription=" + s.id}
	return o
}

// billed is an invoice of a subscription at one moment.
type billed struct {
	id, customer, user, subscription, price string
	payment                                 payment // zero while nothing was paid
	reason                                  string  // billing_reason
	status                                  string
	made                                    time.Time
	period                                  period // that its line is about
	total                                   int
	proration                               bool
}

func (b billed) write(shape Shape) object {
	line := object{
		"id": "il_" + b.id, "object": "line_item", "amount": b.total, "currency": currency, "livemode": false, "metadata": object{}, "quantity": 1,
		"period": object{"start": b.period.start.Unix(), "end": b.period.end.Unix()},
	}
	paid := 0
	if b.status == "paid" {
		paid = b.total
	}
	o := object{
		"id": b.id, "object": "invoice", "customer": b.customer, "billing_reason": b.reason, "status": b.status, "livemode": false, "currency": currency,
		"created": b.made.Unix(), "period_start": b.period.start.Unix(), "period_end": b.period.end.Unix(), "due_date": nil, "metadata": object{},
		"total": b.total, "subtotal": b.total, "amount_due": b.total, "amount_paid": paid, "amount_remaining": b.total - paid,
		"attempt_count": 1, "attempted": true, "collection_method": "charge_automatically",
		"lines": object{"object": "list", "data": []any{line}, "has_more": false, "total_count": 1, "url": "/v1/invoices/" + b.id + "/lines"},
	}
	metadata := object{}
	if b.user != "" {
		metadata["user_id"] = b.user
	}
	details := object{"metadata": metadata}
	if shape == Shape2025 {
		details["subscription"] = b.subscription
		o["parent"] = object{"type": "subscription_details", "quote_details": nil, "subscription_details": details}
		line["pricing"] = object{"type": "price_details", "price_details": object{"price": b.price, "product": "prod_conformance"}}
		line["parent"] = object{
			"type": "subscription_item_details", "invoice_item_details": nil,
			"subscription_item_details": object{"subscription": b.subscription, "subscription_item": "si_" + b.subscription, "proration": b.proration},
		}
		return o
	}
	o["subscription"], o["subscription_details"], o["paid"] = b.subscription, details, b.status == "paid"
	o["payment_intent"], o["charge"] = text(b.payment.intent), text(b.payment.charge)
	line["subscription"], line["type"], line["proration"] = b.subscription, "subscription", b.proration
	line["price"] = object{"id": b.price, "object": "price", "currency": currency, "unit_amount": fullPrice, "type": "recurring"}
	return o
}

// payment is the money of one invoice, with what was given back of it.
type payment struct {
	intent, charge, customer, invoice string
	made                              time.Time
	refunded                          int
	disputed                          bool
}

// asIntent and asCharge are the two objects of a payment.
type (
	asIntent struct{ payment }
	asCharge struct{ payment }
)

func (p asIntent) write(shape Shape) object {
	o := object{
		"id": p.intent, "object": "payment_intent", "amount": fullPrice, "amount_received": fullPrice, "amount_capturable": 0, "currency": currency,
		"customer": p.customer, "created": p.made.Unix(), "livemode": false, "metadata": object{}, "status": "succeeded", "latest_charge": p.charge,
		"capture_method": "automatic", "canceled_at": nil,
	}
	if shape == Shape2023 {
		o["invoice"] = text(p.invoice)
	}
	return o
}

func (p asCharge) write(shape Shape) object {
	o := object{
		"id": p.charge, "object": "charge", "amount": fullPrice, "amount_captured": fullPrice, "amount_refunded": p.refunded, "currency": currency,
		"customer": p.customer, "created": p.made.Unix(), "livemode": false, "metadata": object{}, "payment_intent": p.intent, "status": "succeeded",
		"paid": true, "captured": true, "refunded": p.refunded == fullPrice, "disputed": p.disputed,
	}
	if shape == Shape2023 {
		o["invoice"] = text(p.invoice)
	}
	return o
}

// invoicePaid is basil's word for which payment paid which invoice.
type invoicePaid struct{ payment }

func (p invoicePaid) write(Shape) object {
	return object{
		"id": "inpay_" + p.intent, "object": "invoice_payment", "invoice": p.invoice, "amount_paid": fullPrice, "amount_requested": fullPrice, "currency": currency,
		"created": p.made.Unix(), "is_default": true, "livemode": false, "status": "paid",
		"payment":            object{"type": "payment_intent", "payment_intent": p.intent},
		"status_transitions": object{"canceled_at": nil, "paid_at": p.made.Unix()},
	}
}

// refund gives money back.
type refund struct {
	id      string
	payment payment
	amount  int
	status  string
	made    time.Time
}

func (r refund) write(Shape) object {
	return object{
		"id": r.id, "object": "refund", "amount": r.amount, "charge": r.payment.charge, "payment_intent": r.payment.intent, "created": r.made.Unix(),
		"currency": currency, "metadata": object{}, "reason": "requested_by_customer", "status": r.status,
	}
}

// dispute is a bank that wants a payment back.
type dispute struct {
	id      string
	payment payment
	status  string
	made    time.Time
}

func (d dispute) write(Shape) object {
	return object{
		"id": d.id, "object": "dispute", "amount": fullPrice, "charge": d.payment.charge, "payment_intent": d.payment.intent, "created": d.made.Unix(),
		"currency": currency, "livemode": false, "metadata": object{}, "reason": "fraudulent", "status": d.status, "is_charge_refundable": false,
		"balance_transactions": []any{}, "evidence_details": object{"due_by": d.made.Add(7 * 24 * time.Hour).Unix(), "has_evidence": false, "past_due": false},
	}
}

// checkout is a completed checkout session that sold a subscription.
type checkout struct {
	id, customer, user, subscription string
	made                             time.Time
}

func (c checkout) write(Shape) object {
	return object{
		"id": c.id, "object": "checkout.session", "mode": "subscription", "status": "complete", "payment_status": "paid", "livemode": false,
		"customer": c.customer, "subscription": c.subscription, "client_reference_id": c.user, "created": c.made.Unix(), "currency": currency,
		"amount_total": fullPrice, "metadata": object{}, "customer_email": nil, "customer_details": nil, "expires_at": c.made.Add(24 * time.Hour).Unix(),
	}
}

// customer is who pays.
type customer struct {
	id   string
	made time.Time
}

func (c customer) write(Shape) object {
	return object{
		"id": c.id, "object": "customer", "created": c.made.Unix(), "email": nil, "name": nil, "livemode": false, "metadata": object{}, "currency": currency,
	}
}

// body is an event as it is sent.
func (e event) body(shape Shape) []byte {
	return encode(e.write(shape))
}

func (e event) write(shape Shape) object {
	return object{
		"id": e.id, "object": "event", "api_version": string(shape), "created": e.created.Unix(), "type": e.kind, "livemode": false,
		"data": object{"object": e.about.write(shape)}, "pending_webhooks": 1, "request": object{"id": nil, "idempotency_key": nil},
	}
}

// encode writes JSON. What it is given is made of maps, lists, strings and numbers, which cannot fail.
func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("writing an object: " + err.Error())
	}
	return raw
}

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
