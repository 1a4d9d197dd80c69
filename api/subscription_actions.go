package api

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

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
	return s.act(c, "", func(s subscription.Subscription, at time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Cancel(at, in.AtPeriodEnd)
	})
}

func (s subscriptionRoutes) uncancel(c echo.Context) error {
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	return s.act(c, "", func(s subscription.Subscription, _ time.Time) (subscription.Subscription, []subscription.Change, error) {
		return s.Uncancel()
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
