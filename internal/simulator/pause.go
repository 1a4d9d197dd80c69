package simulator

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// trialNotice is how long before the end of a trial Stripe tells of it; of a shorter trial it tells at once.
const trialNotice = 72 * time.Hour

// pauses reads pause_collection, which stops the charging and leaves the status, and what a trial without a means of payment
// becomes.
func (sub *subscription) pauses(f form) (refused answer, bad bool) {
	switch behavior := f.text("pause_collection[behavior]"); {
	case behavior != "":
		if !slices.Contains([]string{"keep_as_draft", "mark_uncollectible", "void"}, behavior) {
			return refusal(http.StatusBadRequest, "", "pause_collection[behavior]",
				"Invalid pause_collection[behavior]: must be one of keep_as_draft, mark_uncollectible, or void"), true
		}
		sub.PauseCollection = behavior
	case f.has("pause_collection"):
		sub.PauseCollection = ""
	}
	if f.has("trial_settings[end_behavior][missing_payment_method]") {
		sub.afterTrial = f.text("trial_settings[end_behavior][missing_payment_method]")
		if !slices.Contains([]string{"cancel", "create_invoice", "pause"}, sub.afterTrial) {
			return refusal(http.StatusBadRequest, "", "trial_settings[end_behavior][missing_payment_method]",
				"Invalid trial_settings[end_behavior][missing_payment_method]: must be one of cancel, create_invoice, or pause"), true
		}
	}
	return answer{}, false
}

// pause sets the status, as at the end of a trial without a means of payment: access stops, and nothing is billed.
func (s *stripe) pause(sub *subscription, at time.Time) {
	s.become(sub, "paused", at)
	s.publish("customer.subscription.paused", at, sub.snapshot(), nil)
}

// unpause makes a paused subscription active: from now on with a new period that is billed, or in the one that it had.
func (s *stripe) unpause(sub *subscription, anew bool, at time.Time) {
	if anew || !at.Before(sub.PeriodEnd) {
		sub.anchor, sub.PeriodStart, sub.PeriodEnd = at, at, sub.price.after(at, at)
		sub.Status = "active" // a trial costs nothing, what follows it does
		s.bill(sub, "subscription_update", "open", at, sub.term())
		sub.Status = "paused"
		s.invoiced(sub, "invoice.created", at)
		s.publish("customer.subscription.resumed", at, sub.snapshot(), nil)
		s.collect(sub, at)
		return
	}
	s.become(sub, "active", at)
	s.publish("customer.subscription.resumed", at, sub.snapshot(), nil)
}

// resumeSubscription answers the call by which Stripe resumes what is paused.
func (s *stripe) resumeSubscription(f form, id string) answer {
	sub, ok := s.subscriptions.get(id)
	if !ok {
		return missing("subscription", id)
	}
	anchor := orText(f.text("billing_cycle_anchor"), "now")
	switch {
	case sub.Status != "paused":
		return refusal(http.StatusBadRequest, "", "", "Only subscriptions with status `paused` can be resumed. This one has status `"+sub.Status+"`.")
	case anchor != "now" && anchor != "unchanged":
		return refusal(http.StatusBadRequest, "", "billing_cycle_anchor", "Invalid billing_cycle_anchor: must be one of now or unchanged")
	}
	s.unpause(sub, anchor == "now", s.now())
	return found(sub.view())
}

func (s *stripe) setPaused(id string, paused bool) error {
	defer s.steer()()
	sub, ok := s.subscriptions.get(id)
	if !ok || (sub.Status == "paused") == paused || sub.Status == "canceled" || sub.Status == "incomplete_expired" {
		return fmt.Errorf("there is no subscription %q that this could be done to", id)
	}
	if paused {
		s.pause(sub, s.now())
	} else {
		s.unpause(sub, false, s.now())
	}
	return nil
}

// noticeAt is when the end of a trial is told of; the zero time when it is not, or was.
func (sub *subscription) noticeAt() time.Time {
	if sub.Status != "trialing" || sub.trialTold || sub.TrialEnd.IsZero() {
		return time.Time{}
	}
	return sub.TrialEnd.Add(-trialNotice)
}

// notice tells that a trial ends soon.
func (s *stripe) notice(sub *subscription, at time.Time) {
	sub.trialTold = true
	s.publish("customer.subscription.trial_will_end", at, sub.snapshot(), nil)
}
