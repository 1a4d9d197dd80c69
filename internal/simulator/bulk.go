package simulator

import (
	"fmt"
	"time"
)

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

// SubscriptionChange steers one subscription. Nil fields stay as they are.
type SubscriptionChange struct {
	Fails       *bool      `json:"fails"`  // whether its charges fail from now on
	Pay         bool       `json:"pay"`    // pay its latest invoice now
	Status      *string    `json:"status"` // set it, and tell of an update
	PeriodStart *time.Time `json:"period_start"`
	PeriodEnd   *time.Time `json:"period_end"` // set it, and tell of an update; seconds from now makes a short demonstration
	// The following are set as they are, and told of as an update.
	CancelAtPeriodEnd *bool      `json:"cancel_at_period_end"`
	CancelAt          *time.Time `json:"cancel_at"`
	TrialEnd          *time.Time `json:"trial_end"`
	EndedAt           *time.Time `json:"ended_at"`
	PriceID           *string    `json:"price_id"` // made at 20.00 a month when there is none of that id
	UserID            *string    `json:"user_id"`  // metadata.user_id
	// Silent: nothing is told of the change, as when the webhook was lost before there was an endpoint.
	Silent bool `json:"silent"`
}

// change applies what a test asks of a subscription; false when there is none of that id.
func (s *stripe) change(id string, in SubscriptionChange) bool {
	defer s.steer()()
	now := s.now()
	sub, ok := s.subscriptions.get(id)
	if !ok {
		return false
	}
	defer s.mute(in.Silent)()
	if in.Fails != nil {
		sub.fails = *in.Fails
	}
	if previous := sub.set(in); previous != nil {
		if in.PriceID != nil {
			sub.price, sub.PriceID = s.priceOf(*in.PriceID), *in.PriceID
		}
		s.changed(sub, now, previous)
	}
	if in.Pay {
		s.pay(sub, now)
	}
	return true
}

// set writes the fields that are told of as an update, and returns what they were; nil when there are none.
func (sub *subscription) set(in SubscriptionChange) (previous map[string]any) {
	before := sub.SubscriptionFixture
	touched := in.PriceID != nil
	instant := func(field *time.Time, to *time.Time) {
		if to != nil {
			*field, touched = to.UTC(), true
		}
	}
	instant(&sub.PeriodStart, in.PeriodStart)
	instant(&sub.PeriodEnd, in.PeriodEnd)
	instant(&sub.CancelAt, in.CancelAt)
	instant(&sub.TrialEnd, in.TrialEnd)
	instant(&sub.EndedAt, in.EndedAt)
	if in.Status != nil {
		sub.Status, touched = *in.Status, true
	}
	if in.CancelAtPeriodEnd != nil {
		sub.CancelAtPeriodEnd, touched = *in.CancelAtPeriodEnd, true
		if !sub.CancelAtPeriodEnd && in.CancelAt == nil {
			sub.CancelAt = time.Time{}
		}
	}
	if in.UserID != nil {
		sub.UserID, touched = *in.UserID, true
		sub.metadata = metadataOf(*in.UserID)
	}
	if sub.CancelAtPeriodEnd {
		sub.CancelAt = sub.PeriodEnd
	}
	if !touched {
		return nil
	}
	return map[string]any{"status": before.Status, "current_period_end": seconds(before.PeriodEnd), "cancel_at": seconds(before.CancelAt)}
}
