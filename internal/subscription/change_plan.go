package subscription

// ChangePlan moves our subscription to another plan: at once, or with its next renewal. The end stays as it is.
// Asking for the plan it has takes back what was to come at the renewal.
func (s Subscription) ChangePlan(plan string, atRenewal bool) (Subscription, []Change, error) {
	if err := s.planChangeable(plan, atRenewal); err != nil {
		return s, nil, err
	}
	if !s.Ours() {
		return s, nil, ErrProviderOwned
	}
	if atRenewal && plan != s.PlanKey {
		s.NextPlanKey = plan
		return s, nil, nil
	}
	moved := plan != s.PlanKey
	s.PlanKey, s.NextPlanKey = plan, ""
	if !moved {
		return s, nil, nil
	}
	return s, []Change{{EventPlanChanged, s.AccessUntil()}}, nil
}

// PlanAtProvider says how a provider's subscription moves to another plan. coming is the plan to note for the renewal, ""
// for none; prorated says whether the rest of the period is to be charged at the new price. A change that is to come can
// only be taken back, by asking for the present plan: it was never charged, so no difference could be worked out from it.
func (s Subscription) PlanAtProvider(plan string, atRenewal bool) (coming string, prorated bool, err error) {
	if err := s.changeable(); err != nil {
		return "", false, err
	}
	switch {
	case s.NextPlanKey != "" && plan == s.PlanKey:
		return "", false, nil
	case s.NextPlanKey != "" && (plan != s.NextPlanKey || !atRenewal):
		return "", false, conflict("another plan is to come with the renewal; take that back first by asking for the present plan")
	case plan == s.PlanKey:
		return "", false, conflict("the subscription has this plan already")
	case atRenewal && s.CancelAtPeriodEnd:
		return "", false, conflict("the subscription is set to end and will not be renewed")
	case atRenewal:
		return plan, false, nil
	}
	return "", true, nil
}

func (s Subscription) planChangeable(plan string, atRenewal bool) error {
	if err := s.changeable(); err != nil {
		return err
	}
	switch {
	case plan == s.PlanKey && s.NextPlanKey == "":
		return conflict("the subscription has this plan already")
	case plan == s.PlanKey:
		return nil // takes the coming change back
	case atRenewal && IsForever(s.ExpiresAt):
		return conflict("a lifetime subscription is never renewed")
	case atRenewal && s.CancelAtPeriodEnd:
		return conflict("the subscription is set to end and will not be renewed")
	case atRenewal && plan == s.NextPlanKey && s.Ours():
		return conflict("the subscription gets this plan at its renewal already")
	}
	return nil
}

// renewed moves our subscription to the plan that was to come with its renewal.
func (s Subscription) renewed(changes []Change) (Subscription, []Change) {
	if s.NextPlanKey == "" {
		return s, changes
	}
	s.PlanKey, s.NextPlanKey = s.NextPlanKey, ""
	return s, append(changes, Change{EventPlanChanged, s.AccessUntil()})
}

// awaited keeps the plan of a provider's subscription as it was while the one that is to come has not begun: the price
// is changed there at once, and is charged from the next period on. prev is the row before the news.
func (s Subscription) awaited(prev *Subscription) Subscription {
	if prev == nil || prev.NextPlanKey == "" {
		return s
	}
	began := s.PeriodStart.After(prev.PeriodStart) && s.PeriodEnd.After(prev.PeriodEnd)
	switch {
	case s.PlanKey == prev.NextPlanKey && s.Status.Live() && !began:
		s.PlanKey, s.NextPlanKey = prev.PlanKey, prev.NextPlanKey
	case s.PlanKey == prev.PlanKey: // news from before the change
		s.NextPlanKey = prev.NextPlanKey
	default: // it has begun, or somebody chose a third plan there
		s.NextPlanKey = ""
	}
	return s
}
