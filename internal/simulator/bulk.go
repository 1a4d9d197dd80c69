package simulator

import "fmt"

// addSubscriptions puts subscriptions there as if they had always been there: nothing is told of it.
func (s *stripe) addSubscriptions(fixtures []SubscriptionFixture) ([]SubscriptionFixture, error) {
	defer s.steer()()
	defer s.mute(true)()
	added := make([]SubscriptionFixture, 0, len(fixtures))
	for _, f := range fixtures {
		if _, known := s.subscriptions.get(f.ID); known {
			return added, fmt.Errorf("there is a subscription %q already", f.ID)
		}
		added = append(added, s.addSubscription(f))
	}
	return added, nil
}

func (s *stripe) addSubscription(f SubscriptionFixture) SubscriptionFixture {
	f.ID, f.PriceID, f.Status = orText(f.ID, NewID("sub")), orText(f.PriceID, "price_sim"), orText(f.Status, "active")
	price := s.priceOf(f.PriceID)
	s.addCustomer(&f)
	f.PeriodStart = or(f.PeriodStart, or(f.StartDate, s.now()))
	f.StartDate = or(f.StartDate, f.PeriodStart)
	f.PeriodEnd = or(f.PeriodEnd, price.after(f.PeriodStart, f.PeriodStart))
	if f.CancelAtPeriodEnd {
		f.CancelAt = f.PeriodEnd
	}
	if f.Status == "trialing" {
		f.TrialEnd = or(f.TrialEnd, f.PeriodEnd)
	}
	if f.Status == "canceled" {
		f.EndedAt, f.CanceledAt = or(f.EndedAt, s.now()), or(f.CanceledAt, s.now())
	}
	sub := &subscription{SubscriptionFixture: f, price: price, metadata: metadataOf(f.UserID), anchor: f.PeriodEnd}
	sub.trialTold = !sub.noticeAt().After(s.now())
	if sub.Invoice.ID == "" {
		reason := "subscription_cycle"
		if f.StartDate.Equal(f.PeriodStart) {
			reason = "subscription_create"
		}
		s.bill(sub, reason, "open", f.PeriodStart, sub.term())
	}
	switch f.Status {
	case "past_due", "unpaid", "incomplete", "incomplete_expired":
		s.charged(sub, false, sub.PeriodStart)
	default:
		s.charged(sub, true, sub.PeriodStart)
		sub.Invoice.Status = "paid"
	}
	s.subscriptions.put(sub.ID, sub)
	s.invoiced(sub, "invoice.created", f.PeriodStart)
	return sub.SubscriptionFixture
}

// priceOf is the price of an id, made at 20.00 a month when there is none.
func (s *stripe) priceOf(id string) priceFixture {
	price, ok := s.prices.get(id)
	if !ok {
		price = plainPrice(id)
		s.prices.put(id, price)
	}
	return price
}

// addCustomer makes the customer of a subscription that is added, unless there is one of that id.
func (s *stripe) addCustomer(f *SubscriptionFixture) {
	c := &customer{CustomerFixture: CustomerFixture{ID: f.CustomerID, Created: or(f.StartDate, s.now())}}
	if f.Customer != nil {
		c.CustomerFixture = *f.Customer
	}
	c.ID = orText(c.ID, NewID("cus"))
	c.metadata = metadataOf(c.UserID)
	f.CustomerID, f.Customer = c.ID, nil
	if _, known := s.customers.get(c.ID); !known {
		s.customers.put(c.ID, c)
	}
}

// removeSubscription makes the provider know nothing of a subscription; false when it does not.
func (s *stripe) removeSubscription(id string) bool {
	defer s.steer()()
	_, ok := s.subscriptions.get(id)
	s.subscriptions.remove(id)
	return ok
}
