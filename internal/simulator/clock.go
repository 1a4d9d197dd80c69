package simulator

import "time"

// chargeDelay is how long after the rollover Stripe charges: the period has moved by then.
const chargeDelay = time.Hour

// advance sets the simulated clock and lets happen what would have happened meanwhile. It never goes back.
func (s *stripe) advance(to time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to.After(s.now()) {
		s.offset = time.Until(to)
	}
	s.settle(s.now())
	return s.now()
}

// settle lets everything happen that is due at an instant, oldest first over all subscriptions. The caller holds the lock.
func (s *stripe) settle(now time.Time) {
	for {
		var next *subscription
		for _, id := range s.order {
			sub := s.subscriptions[id]
			if at := sub.due(); !at.IsZero() && !at.After(now) && (next == nil || at.Before(next.due())) {
				next = sub
			}
		}
		if next == nil {
			return
		}
		s.step(next, next.due())
	}
}

// due returns when something happens next to the subscription, the zero time for never.
func (s *subscription) due() time.Time {
	switch s.Status {
	case "canceled", "incomplete", "incomplete_expired", "paused":
		return time.Time{}
	}
	next := s.PeriodEnd
	for _, at := range []time.Time{s.CancelAt, s.chargeAt} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// step does the one thing that is due: the end that was set, the charge, or the rollover.
func (s *stripe) step(sub *subscription, at time.Time) {
	switch {
	case at.Equal(sub.CancelAt), at.Equal(sub.PeriodEnd) && sub.CancelAtPeriodEnd:
		s.end(sub, at)
	case at.Equal(sub.chargeAt):
		s.charge(sub, at)
	default:
		s.rollOver(sub, at)
	}
}

// rollOver moves the period before anything is paid, as Stripe does. An unpaid subscription goes on rolling.
func (s *stripe) rollOver(sub *subscription, at time.Time) {
	previous := map[string]any{
		"current_period_start": seconds(sub.PeriodStart), "current_period_end": seconds(sub.PeriodEnd), "latest_invoice": text(sub.Invoice.ID),
	}
	anchor := or(sub.anchor, or(sub.TrialEnd, sub.StartDate))
	sub.PeriodStart, sub.PeriodEnd = at, sub.price.after(at, anchor)
	if sub.Status == "trialing" {
		previous["status"] = sub.Status
		sub.Status = "active"
	}
	s.bill(sub, "subscription_cycle", "draft", at, sub.term())
	sub.chargeAt = at.Add(chargeDelay)
	if sub.SendInvoice {
		sub.Invoice.DueDate = sub.chargeAt.AddDate(0, 0, sub.DaysUntilDue)
	}
	s.changed(sub, at, previous)
	s.invoiced(sub, "invoice.created", at)
}

// charge settles the open invoice: paid, or past_due with the end of the new period.
func (s *stripe) charge(sub *subscription, at time.Time) {
	sub.chargeAt = time.Time{}
	if sub.fails {
		sub.Invoice.Status = "open"
		s.invoiced(sub, "invoice.payment_failed", at)
		s.become(sub, "past_due", at)
		return
	}
	s.pay(sub, at)
}

// pay settles the latest invoice with a payment.
func (s *stripe) pay(sub *subscription, at time.Time) {
	sub.chargeAt = time.Time{}
	sub.Invoice.Status = "paid"
	s.invoiced(sub, "invoice.paid", at)
	s.invoiced(sub, "invoice.payment_succeeded", at)
	s.become(sub, "active", at)
}

func (s *stripe) become(sub *subscription, status string, at time.Time) {
	if sub.Status == status {
		return
	}
	previous := map[string]any{"status": sub.Status}
	sub.Status = status
	s.changed(sub, at, previous)
}
