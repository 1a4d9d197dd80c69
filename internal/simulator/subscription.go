package simulator

import (
	"maps"
	"net/http"
	"strconv"
	"time"
)

// subscription is one subscription of the simulated provider.
type subscription struct {
	SubscriptionFixture
	price    priceFixture
	metadata map[string]string
	fails    bool      // its charges fail
	chargeAt time.Time // when the open invoice is charged, or sent; zero when none waits
	lateAt   time.Time // when an invoice that was sent is overdue; zero when none is out
	anchor   time.Time // where its periods count from since its price has another interval; zero before

	prorations []InvoiceLine // that wait for the next invoice
	trialTold  bool          // the end of its trial
	afterTrial string        // cancel or pause: what becomes of it then; else it is billed
}

// snapshot returns a writer of the subscription as it is now.
func (sub *subscription) snapshot() func(Shape) any {
	fixture, price, metadata := sub.SubscriptionFixture, sub.price, maps.Clone(sub.metadata)
	fixture.ExpandInvoice = false
	return func(shape Shape) any { return fixture.object(shape, price, metadata) }
}

// view writes the subscription for a fetch.
func (sub *subscription) view() any { return sub.snapshot()(Shape2023) }

// changed publishes an update with the attributes that it replaced.
func (s *stripe) changed(sub *subscription, at time.Time, previous map[string]any) {
	s.publish("customer.subscription.updated", at, sub.snapshot(), previous)
}

func (s *stripe) createSubscription(f form, _ string) answer {
	if _, ok := s.living(f.text("customer")); !ok {
		return noSuch("customer", f.text("customer"), "customer")
	}
	price, refused, bad := s.recurring(f)
	if bad {
		return refused
	}
	start := s.now()
	sub := &subscription{
		SubscriptionFixture: SubscriptionFixture{
			ID: NewID("sub"), CustomerID: f.text("customer"), PriceID: price.ID, Status: "active", StartDate: start, PeriodStart: start,
			PeriodEnd: price.after(start, start), SendInvoice: f.text("collection_method") == "send_invoice",
		},
		price: price, metadata: f.metadata(nil),
	}
	trialEnd, ok := f.instant("trial_end")
	if !ok {
		return refusal(http.StatusBadRequest, "parameter_invalid_integer", "trial_end", "Invalid integer: trial_end")
	}
	if days, err := strconv.Atoi(f.text("trial_period_days")); err == nil && days > 0 {
		trialEnd = start.AddDate(0, 0, days)
	}
	switch {
	case !trialEnd.IsZero():
		sub.Status, sub.TrialEnd, sub.PeriodEnd = "trialing", trialEnd, trialEnd
	case f.text("payment_behavior") == "default_incomplete":
		sub.Status = "incomplete"
	}
	if refused, bad := s.apply(sub, f); bad {
		return refused
	}
	s.bill(sub, "subscription_create", "open", start, sub.term())
	if sub.SendInvoice && sub.Status == "active" {
		sub.Invoice.Status, sub.chargeAt = "draft", start.Add(chargeDelay)
		sub.Invoice.DueDate = sub.chargeAt.AddDate(0, 0, sub.DaysUntilDue)
	}
	paid := sub.Status != "incomplete" && sub.chargeAt.IsZero()
	if paid {
		s.charged(sub, true, start)
		sub.Invoice.Status = "paid"
	}
	s.subscriptions.put(sub.ID, sub)
	s.publish("customer.subscription.created", start, sub.snapshot(), nil)
	s.invoiced(sub, "invoice.created", start)
	if paid {
		s.invoiced(sub, "invoice.paid", start)
		s.invoiced(sub, "invoice.payment_succeeded", start)
	}
	if at := sub.noticeAt(); !at.IsZero() && !at.After(start) {
		s.notice(sub, start)
	}
	return found(sub.view())
}

// apply takes the parameters that creating and updating share. Stripe refuses both ways to set an end in one call.
func (s *stripe) apply(sub *subscription, f form) (refused answer, bad bool) {
	if f.has("cancel_at") && f.has("cancel_at_period_end") {
		return refusal(http.StatusBadRequest, "", "cancel_at", "You may only specify one of these parameters: cancel_at, cancel_at_period_end."), true
	}
	cancelAt, ok := f.instant("cancel_at")
	if !ok {
		return refusal(http.StatusBadRequest, "parameter_invalid_integer", "cancel_at", "Invalid integer: cancel_at"), true
	}
	if refused, bad := sub.pauses(f); bad {
		return refused, true
	}
	days := 0
	if f.has("days_until_due") {
		n, err := strconv.Atoi(f.text("days_until_due"))
		if err != nil || n < 0 {
			return refusal(http.StatusBadRequest, "parameter_invalid_integer", "days_until_due", "Invalid integer: days_until_due"), true
		}
		days = n
	}
	if f.has("days_until_due") {
		sub.DaysUntilDue = days
	}
	switch {
	case f.has("cancel_at"):
		sub.CancelAt, sub.CanceledAt, sub.CancelAtPeriodEnd = cancelAt, s.now(), false
	case f.has("cancel_at_period_end"):
		sub.CancelAtPeriodEnd = f.text("cancel_at_period_end") == "true"
		sub.CancelAt, sub.CanceledAt = time.Time{}, time.Time{}
		if sub.CancelAtPeriodEnd {
			sub.CancelAt, sub.CanceledAt = sub.PeriodEnd, s.now()
		}
	}
	if sub.CancelAt.IsZero() {
		sub.CanceledAt = time.Time{}
	}
	sub.metadata = f.metadata(sub.metadata)
	sub.UserID = sub.metadata["user_id"]
	return answer{}, false
}

func (s *stripe) subscription(_ form, id string) answer {
	sub, ok := s.subscriptions.get(id)
	if !ok {
		return missing("subscription", id)
	}
	return found(sub.view())
}

func (s *stripe) listSubscriptions(f form, _ string) answer {
	status := f.text("status")
	return list(f, "/v1/subscriptions", &s.subscriptions, func(sub *subscription) bool {
		return (!f.has("customer") || sub.CustomerID == f.text("customer")) && (!f.has("price") || sub.PriceID == f.text("price")) &&
			f.created(sub.StartDate) &&
			(status == "all" || status == sub.Status || status == "" && sub.Status != "canceled") // Stripe leaves the canceled ones out unless asked
	}, func(sub *subscription) any { return sub.view() })
}

func (s *stripe) updateSubscription(f form, id string) answer {
	sub, ok := s.subscriptions.get(id)
	if !ok {
		return missing("subscription", id)
	}
	if sub.Status == "canceled" {
		return refusal(http.StatusBadRequest, "", "", "A canceled subscription can only update its cancellation_details and metadata.")
	}
	now, after := s.now(), *sub
	if refused, bad := s.apply(&after, f); bad {
		return refused
	}
	due, refused, bad := s.reprice(&after, f, now)
	if bad {
		return refused
	}
	if due.lines != nil && !sub.chargeAt.IsZero() {
		return refusal(http.StatusBadRequest, "", "", "The simulator cannot bill this while the invoice of the renewal waits to be charged.")
	}
	previous := map[string]any{
		"cancel_at_period_end": sub.CancelAtPeriodEnd, "cancel_at": seconds(sub.CancelAt), "metadata": sub.metadata,
	}
	if after.PriceID != sub.PriceID {
		previous["items"] = map[string]any{"data": []any{map[string]any{"id": itemID(id), "price": sub.price.object()}}}
	}
	*sub = after
	if due.lines != nil {
		s.bill(sub, "subscription_update", "open", now, due.lines...)
	}
	s.changed(sub, now, previous)
	if due.lines != nil {
		s.invoiced(sub, "invoice.created", now)
		s.collect(sub, now)
	}
	return found(sub.view())
}

func (s *stripe) cancelSubscription(f form, id string) answer {
	sub, ok := s.subscriptions.get(id)
	if !ok || sub.Status == "canceled" {
		return missing("subscription", id)
	}
	s.end(sub, s.now())
	return found(sub.view())
}

// end cancels a subscription and tells of its deletion.
func (s *stripe) end(sub *subscription, at time.Time) {
	sub.Status, sub.EndedAt, sub.chargeAt, sub.lateAt = "canceled", at, time.Time{}, time.Time{}
	if sub.CanceledAt.IsZero() {
		sub.CanceledAt = at
	}
	s.publish("customer.subscription.deleted", at, sub.snapshot(), nil)
}
