package simulator

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// InvoiceFixture is an invoice of a subscription as Stripe would tell of it. Without an ID there is none.
type InvoiceFixture struct {
	ID, Status, BillingReason string
	Created, DueDate          time.Time
	// Lines are what it charges for. Without any it charges the subscription's price for the subscription's period.
	Lines []InvoiceLine
	Free  bool // its total is 0, whatever the lines say
	// PaymentIntentID and ChargeID are the money for it; only the older shape tells. "" is null.
	PaymentIntentID, ChargeID string
}

// InvoiceLine is one line of an invoice.
type InvoiceLine struct {
	Amount                 int64 // in the smallest unit of the currency; negative for a credit
	PeriodStart, PeriodEnd time.Time
	Proration              bool
	PriceID                string // "" is the subscription's
}

// InvoiceEventBody writes an event such as invoice.paid about the Invoice of the fixture, as the body of a webhook in that
// shape. A fixture without an ID of its own gives a one-off invoice, which belongs to no subscription.
func InvoiceEventBody(shape Shape, id, eventType string, created time.Time, of SubscriptionFixture) []byte {
	about := invoice{of.Invoice, of, plainPrice(of.PriceID)}
	return encode(event{id: id, kind: eventType, created: created, livemode: of.Livemode, object: about.write}.body(shape))
}

// invoice is an invoice with what it needs to be written: its subscription as it was when it was billed, and the price.
type invoice struct {
	InvoiceFixture
	of    SubscriptionFixture
	price priceFixture
}

func (i invoice) lines() []InvoiceLine {
	if i.Lines != nil {
		return i.Lines
	}
	return []InvoiceLine{{Amount: i.price.UnitAmount, PeriodStart: i.of.PeriodStart, PeriodEnd: i.of.PeriodEnd}}
}

// total is what the lines sum up to, in the smallest unit; negative for a credit.
func (i invoice) total() (total int64) {
	if i.Free {
		return 0
	}
	for _, line := range i.lines() {
		total += line.Amount
	}
	return total
}

func (i invoice) write(shape Shape) any {
	lines, total := []any{}, i.total()
	for n, line := range i.lines() {
		lines = append(lines, i.line(shape, n, line))
	}
	due, paid := max(total, 0), int64(0) // a credit is kept for the next invoice
	if i.Status == "paid" {
		paid = due
	}
	object := map[string]any{
		"id": i.ID, "object": "invoice", "amount_due": due, "amount_paid": paid, "amount_remaining": due - paid, "attempted": i.Status != "draft",
		"auto_advance": i.Status == "draft", "billing_reason": text(i.BillingReason), "collection_method": "charge_automatically",
		"created": seconds(i.Created), "currency": i.price.Currency, "customer": i.of.CustomerID, "due_date": seconds(i.DueDate),
		"lines":    map[string]any{"object": "list", "data": lines, "has_more": false, "url": "/v1/invoices/" + i.ID + "/lines"},
		"livemode": i.of.Livemode, "metadata": map[string]string{}, "period_end": seconds(i.Created), "period_start": seconds(i.Created),
		"status": i.Status, "subtotal": total, "total": total,
	}
	if i.of.SendInvoice {
		object["collection_method"] = "send_invoice"
	}
	if shape == Shape2025 {
		object["parent"] = nil
		if i.of.ID != "" {
			object["parent"] = map[string]any{
				"type": "subscription_details", "quote_details": nil,
				"subscription_details": map[string]any{"subscription": i.of.ID, "metadata": metadataOf(i.of.UserID)},
			}
		}
		return object
	}
	object["paid"], object["payment_intent"], object["charge"] = i.Status == "paid", text(i.PaymentIntentID), text(i.ChargeID)
	object["subscription"], object["subscription_details"] = text(i.of.ID), nil
	if i.of.ID != "" {
		object["subscription_details"] = map[string]any{"metadata": metadataOf(i.of.UserID)}
	}
	return object
}

func (i invoice) line(shape Shape, n int, line InvoiceLine) map[string]any {
	price := i.price
	if line.PriceID != "" {
		price.ID = line.PriceID
	}
	object := map[string]any{
		"id": fmt.Sprintf("il_%s_%d", i.ID, n), "object": "line_item", "amount": line.Amount, "currency": price.Currency, "description": nil, "livemode": i.of.Livemode,
		"metadata": map[string]string{}, "period": map[string]any{"start": seconds(line.PeriodStart), "end": seconds(line.PeriodEnd)}, "quantity": 1,
	}
	if shape == Shape2025 {
		object["parent"] = map[string]any{"type": "invoice_item_details", "invoice_item_details": map[string]any{"proration": line.Proration, "subscription": nil}}
		if i.of.ID != "" {
			object["parent"] = map[string]any{"type": "subscription_item_details", "subscription_item_details": map[string]any{
				"proration": line.Proration, "subscription": i.of.ID, "subscription_item": itemID(i.of.ID),
			}}
		}
		object["pricing"] = map[string]any{"type": "price_details", "price_details": map[string]any{"price": price.ID, "product": price.Product}}
		return object
	}
	object["type"], object["proration"], object["price"], object["plan"] = "subscription", line.Proration, price.object(), price.plan()
	object["subscription"], object["subscription_item"] = text(i.of.ID), text(itemID(i.of.ID))
	if i.of.ID == "" {
		object["type"], object["subscription_item"] = "invoiceitem", nil
	}
	return object
}

// bill makes the next invoice of a subscription, with the prorations that wait for it. What became of it is told by invoiced.
func (s *stripe) bill(sub *subscription, reason, status string, at time.Time, lines ...InvoiceLine) {
	sub.Invoice = InvoiceFixture{ID: NewID("in"), Status: status, BillingReason: reason, Created: at, Lines: append(sub.prorations, lines...)}
	sub.prorations = nil
}

// term is the line for the running period at the running price.
func (sub *subscription) term() InvoiceLine {
	amount := sub.price.UnitAmount
	if sub.Status == "trialing" {
		amount = 0
	}
	return InvoiceLine{Amount: amount, PeriodStart: sub.PeriodStart, PeriodEnd: sub.PeriodEnd}
}

// invoiced keeps the latest invoice of a subscription as it is now and tells of it.
func (s *stripe) invoiced(sub *subscription, kind string, at time.Time) {
	about := invoice{sub.Invoice, sub.SubscriptionFixture, sub.price}
	s.invoices.put(about.ID, about)
	s.publish(kind, at, about.write, nil)
}

func (s *stripe) invoice(_ form, id string) answer {
	i, ok := s.invoices.get(id)
	if !ok {
		return missing("invoice", id)
	}
	return found(i.write(Shape2023))
}

func (s *stripe) listInvoices(f form, _ string) answer {
	if status := f.text("status"); status != "" && !slices.Contains([]string{"draft", "open", "paid", "uncollectible", "void"}, status) {
		return refusal(http.StatusBadRequest, "", "status", "Invalid status: must be one of draft, open, paid, uncollectible, or void")
	}
	return list(f, "/v1/invoices", &s.invoices, func(i invoice) bool {
		return (!f.has("subscription") || i.of.ID == f.text("subscription")) && (!f.has("customer") || i.of.CustomerID == f.text("customer")) &&
			(!f.has("status") || i.Status == f.text("status")) && f.created(i.Created)
	}, func(i invoice) any { return i.write(Shape2023) })
}
