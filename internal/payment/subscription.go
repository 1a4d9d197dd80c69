package payment

import (
	"encoding/json"
	"time"

	"termkeeper/internal/subscription"
)

// Subscription reads a subscription object of any API version we know. What the payload does not say, or says in a type
// it should not, is left at its zero value, which means unknown; above all, a period of 0 is no time.
// The error is ErrMalformed: not a JSON object, an object of another kind, or no id.
func Subscription(raw json.RawMessage) (subscription.Provider, error) {
	object, id, err := identified(raw, "subscription")
	if err != nil {
		return subscription.Provider{}, err
	}
	customer := object.at("customer")
	start, end := period(object)
	return subscription.Provider{
		ExternalID: id,
		CustomerID: customer.firstText(idPlaces),
		UserID:     object.at("metadata", "user_id").text(),
		Email:      address(customer.at("email").text()),
		Name:       customer.at("name").text(),

		CustomerUserID: customer.at("metadata", "user_id").text(),

		Status:   object.at("status").text(),
		PriceIDs: prices(object),

		PeriodStart: start,
		PeriodEnd:   end,
		StartDate:   object.at("start_date").instant(),
		EndedAt:     object.at("ended_at").instant(),
		CancelAt:    object.at("cancel_at").instant(),

		CancelAtPeriodEnd: object.at("cancel_at_period_end").flag(),
		SendInvoice:       object.at("collection_method").text() == "send_invoice",
		DaysUntilDue:      object.at("days_until_due").count(),
		Invoice:           invoice(object.at("latest_invoice")),
	}, nil
}

// period returns the period that ends first, of those in the newest place that has one: with several items the earliest
// end is the boundary of the access. Both are zero when no end is known.
func period(object node) (start, end time.Time) {
	for _, p := range periodPlaces {
		for _, holder := range object.all(p) {
			ends := holder.at("current_period_end").instant()
			if ends.IsZero() || !end.IsZero() && !ends.Before(end) {
				continue
			}
			start, end = holder.at("current_period_start").instant(), ends
		}
		if !end.IsZero() {
			return start, end
		}
	}
	return time.Time{}, time.Time{}
}

// prices returns the price ids of the items, in their order.
func prices(object node) []string {
	for _, p := range itemPlaces {
		var ids []string
		for _, item := range object.all(p) {
			if id := item.firstText(pricePlaces); id != "" {
				ids = append(ids, id)
			}
		}
		if ids != nil {
			return ids
		}
	}
	return nil
}

// invoice reads an expanded latest_invoice; a bare id tells nothing about why it was made.
func invoice(latest node) subscription.Invoice {
	if !latest.isObject() {
		return subscription.Invoice{}
	}
	return subscription.Invoice{
		ID:            latest.at("id").text(),
		BillingReason: latest.at("billing_reason").text(),
		DueDate:       latest.at("due_date").instant(),
		Status:        latest.at("status").text(),
	}
}
