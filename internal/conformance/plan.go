package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Plan is a plan of the instance and a price that sells it.
type Plan struct{ Key, Price string }

// ErrNoPlans says that the instance lets nobody make plans with this key.
var ErrNoPlans = errors.New("the plans cannot be made there")

// made are the plans that a run makes where it may. They stay: a plan that was sold is never removed.
var made = struct{ end, keep Plan }{
	end:  Plan{Key: "conformance-end", Price: "price_conformance_end"},
	keep: Plan{Key: "conformance-keep", Price: "price_conformance_keep"},
}

// makePlans makes the two plans, or sets them right when they are there.
func (i *instance) makePlans(ctx context.Context, grace time.Duration) ([]Plan, error) {
	for policy, plan := range map[string]Plan{"end": made.end, "keep": made.keep} {
		body := object{
			"name": "Conformance, refund policy " + policy, "stripe_price_ids": []string{plan.Price}, "grace_period": grace.String(), "refund_policy": policy,
		}
		status, answer, _, err := i.call(ctx, http.MethodPatch, "/v1/plans/"+plan.Key, body)
		if err == nil && status == http.StatusNotFound {
			body["key"] = plan.Key
			status, answer, _, err = i.call(ctx, http.MethodPost, "/v1/plans", body)
		}
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusOK || status == http.StatusCreated:
		default:
			return nil, fmt.Errorf("%w (%d: %s): give a key of role admin, or name plans that exist with --plan and --price", ErrNoPlans, status, short(answer))
		}
	}
	return []Plan{made.end, made.keep}, nil
}
