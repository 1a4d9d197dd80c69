package simulator

import (
	"net/http"
	"slices"
	"time"
)

// itemID is the id of the one item that a subscription has here.
func itemID(subscription string) string { return "si_" + subscription }

// billing is what a change of the price makes due at once: nothing when there are no lines.
type billing struct{ lines []InvoiceLine }

// reprice moves the item of a subscription to another price. The difference for the rest of the period waits for the next
// invoice or is billed at once, as proration_behavior says; a price of another interval begins a new period, which is billed
// at once. Without the item's id Stripe would add a second item, which is refused here.
func (s *stripe) reprice(sub *subscription, f form, at time.Time) (billing, answer, bool) {
	if !f.has("items[0][price]") && !f.has("items[0][id]") {
		return billing{}, answer{}, false
	}
	refused := func(said answer) (billing, answer, bool) { return billing{}, said, true }
	switch id := f.text("items[0][id]"); {
	case id == "" || f.has("items[1][price]") || f.has("items[1][id]"):
		return refused(refusal(http.StatusBadRequest, "", "items", "This would add an item; the simulator has one item in each subscription. Give items[0][id]."))
	case id != itemID(sub.ID):
		return refused(noSuch("subscription item", id, "items[0][id]"))
	}
	behavior := f.text("proration_behavior")
	if behavior == "" {
		behavior = "create_prorations"
	}
	if !slices.Contains([]string{"create_prorations", "always_invoice", "none"}, behavior) {
		return refused(refusal(http.StatusBadRequest, "", "proration_behavior", "Invalid proration_behavior: must be one of create_prorations, always_invoice, or none"))
	}
	price, said, bad := s.recurring(f)
	if bad {
		return refused(said)
	}
	before := sub.price
	sub.price, sub.PriceID = price, price.ID
	if before.ID == price.ID || sub.Status == "trialing" || sub.Status == "incomplete" {
		return billing{}, answer{}, false
	}
	restarts := before.Interval != price.Interval || before.IntervalCount != price.IntervalCount
	rest := func(p priceFixture, sign int64) InvoiceLine {
		whole, left := int64(sub.PeriodEnd.Sub(sub.PeriodStart)/time.Second), int64(sub.PeriodEnd.Sub(at)/time.Second)
		return InvoiceLine{Amount: sign * p.UnitAmount * left / max(whole, 1), PeriodStart: at, PeriodEnd: sub.PeriodEnd, Proration: true, PriceID: p.ID}
	}
	var prorations []InvoiceLine
	if behavior != "none" {
		prorations = append(prorations, rest(before, -1))
		if !restarts {
			prorations = append(prorations, rest(price, 1))
		}
	}
	if restarts {
		sub.anchor, sub.PeriodStart, sub.PeriodEnd = at, at, price.after(at, at)
		if sub.CancelAtPeriodEnd {
			sub.CancelAt = sub.PeriodEnd
		}
		return billing{append(prorations, sub.term())}, answer{}, false
	}
	if behavior == "always_invoice" {
		return billing{prorations}, answer{}, false
	}
	sub.prorations = append(slices.Clone(sub.prorations), prorations...)
	return billing{}, answer{}, false
}
