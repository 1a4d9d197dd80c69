package simulator

import "time"

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
