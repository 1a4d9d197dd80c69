package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/payment"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

type change = func(subscription.Subscription, time.Time) (subscription.Subscription, []subscription.Change, error)

// act does something to the subscription of the path and answers with what it is then.
func (s subscriptionRoutes) act(c echo.Context, note string, do change) error {
	id, err := pathID(c, "subscription")
	if err != nil {
		return err
	}
	ctx := answers(c, func(after subscription.Subscription) (int, any) { return http.StatusOK, showSubscription(after) })
	after, err := s.store.ChangeSubscription(ctx, id, who(c).actor(), note, do)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showSubscription(after))
}

func (s subscriptionRoutes) cancel(c echo.Context) error {
	var in struct {
		AtPeriodEnd bool `json:"at_period_end"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	row, owned, err := s.providerOwns(c)
	if err != nil {
		return err
	}
	if owned {
		action := providerAction{
			name: "cancel", allowed: func(row subscription.Subscription) error { return row.Cancelable(in.AtPeriodEnd) },
			do: s.provider.Client.CancelNow, made: func(row subscription.Subscription) bool { return row.Status == subscription.Canceled },
		}
		if in.AtPeriodEnd {
			action.name, action.do = "cancel_at_period_end", s.provider.Client.CancelAtPeriodEnd
			action.made = func(row subscription.Subscription) bool { return row.CancelAtPeriodEnd }
		}
		return s.askProvider(c, row, action)
	}
	return s.act(c, "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Cancel(at, in.AtPeriodEnd)
	})
}

func (s subscriptionRoutes) uncancel(c echo.Context) error {
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	row, owned, err := s.providerOwns(c)
	if err != nil {
		return err
	}
	if owned {
		return s.askProvider(c, row, providerAction{
			name: "uncancel", allowed: subscription.Subscription.Uncancelable, do: s.provider.Client.Uncancel,
			made: func(row subscription.Subscription) bool {
				return row.Status != subscription.Canceled && !row.CancelAtPeriodEnd
			},
		})
	}
	return s.act(c, "", func(s subscription.Subscription, _ time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Uncancel()
	})
}

// changePlan moves a subscription to another plan, at once or from its next renewal on.
func (s subscriptionRoutes) changePlan(c echo.Context) error {
	var in struct {
		Plan string `json:"plan"`
		When string `json:"when"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	var errs fieldErrors
	errs.line("/plan", in.Plan, maxID, true)
	errs.oneOf("/when", in.When, "now", "renewal")
	if err := errs.err(); err != nil {
		return err
	}
	row, owned, err := s.providerOwns(c)
	if err != nil {
		return err
	}
	plan, err := s.store.Plan(c.Request().Context(), in.Plan)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.ErrNoPlan
	case err != nil:
		return err
	}
	if owned {
		return s.changePlanAtProvider(c, row, plan, in.When == "renewal")
	}
	return s.act(c, "", func(s subscription.Subscription, _ time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.ChangePlan(plan.Key, in.When == "renewal")
	})
}

// changePlanAtProvider sells the subscription at the first price of the plan. The row notes a plan that is to come before the
// provider is asked: the news of the new price may be here before its answer.
func (s subscriptionRoutes) changePlanAtProvider(c echo.Context, row subscription.Subscription, plan store.Plan, atRenewal bool) error {
	switch {
	case s.provider.Client == nil:
		return subscription.ErrProviderOwned
	case len(plan.StripePriceIDs) == 0:
		return problem(http.StatusConflict, "plan_not_sold", "The plan has no price at the payment provider.")
	}
	coming, prorated, err := row.PlanAtProvider(plan.Key, atRenewal)
	if err != nil {
		return s.askProvider(c, row, providerAction{
			name: "plan", allowed: func(subscription.Subscription) error { return err },
			made: func(row subscription.Subscription) bool {
				return row.Status != subscription.Canceled && row.PlanKey == plan.Key && row.NextPlanKey == ""
			},
		})
	}
	before, price := row.NextPlanKey, plan.StripePriceIDs[0]
	if coming != before {
		if row, err = s.awaitPlan(c, row, coming); err != nil {
			return err
		}
	}
	change := s.provider.Client.ChangePriceAtRenewal
	if prorated {
		change = s.provider.Client.ChangePrice
	}
	err = s.askProvider(c, row, providerAction{
		name: "plan:" + price, allowed: func(subscription.Subscription) error { return nil },
		do: func(ctx context.Context, id, key string) (payment.Answer, error) { return change(ctx, id, price, key) },
	})
	var refused *payment.RefusalError
	if errors.As(err, &refused) && coming != before {
		_, undone := s.awaitPlan(c, row, before)
		return errors.Join(err, undone)
	}
	return err
}

func (s subscriptionRoutes) awaitPlan(c echo.Context, row subscription.Subscription, coming string) (subscription.Subscription, error) {
	// The context without the claim of an Idempotency-Key: this is not the answer yet.
	ctx := store.WithKeyClaim(c.Request().Context(), nil)
	return s.store.ChangeSubscription(ctx, row.ID, who(c).actor(), "",
		func(row subscription.Subscription, _ time.Time) (subscription.Subscription, []subscription.Change, error) {
			row.NextPlanKey = coming
			return row, nil, nil
		})
}

func (s subscriptionRoutes) pause(c echo.Context) error {
	reason, err := bindReason(c)
	if err != nil {
		return err
	}
	return s.act(c, reason, func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Pause(at)
	})
}

func (s subscriptionRoutes) resume(c echo.Context) error {
	var in struct {
		AddPausedTime bool `json:"add_paused_time"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	return s.act(c, "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Resume(at, in.AddPausedTime)
	})
}

func (s subscriptionRoutes) extend(c echo.Context) error {
	var in struct {
		Duration *time.Duration `json:"duration"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	var errs fieldErrors
	if in.Duration == nil {
		errs.add("/duration", "is required")
	} else {
		errs.term("/duration", *in.Duration)
	}
	if err := errs.err(); err != nil {
		return err
	}
	return s.act(c, "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Extend(at, *in.Duration)
	})
}

// maxReason is the longest reason that a person may give, in characters.
const maxReason = 500

func bindReason(c echo.Context) (string, error) {
	var in struct {
		Reason string `json:"reason"`
	}
	if _, err := bind(c, &in); err != nil {
		return "", err
	}
	var errs fieldErrors
	errs.line("/reason", in.Reason, maxReason, false)
	return in.Reason, errs.err()
}
