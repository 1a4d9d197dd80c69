package api

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// route is one line of the table below. A key of the role or of a stronger one may use it.
type route struct {
	method, path string
	role         role
	deadline     time.Duration
	handler      echo.HandlerFunc
}

// takesKey reports whether an Idempotency-Key counts for the route: for every write. An access check changes nothing, and
// events of a provider have ids of their own.
func (r route) takesKey() bool {
	return r.method != http.MethodGet && r.role != public && r.path != "/v1/access/batch"
}

// usual is the time that an ordinary request may take. The pools end statements before.
const usual = 10 * time.Second

// routes is every route of the API.
func routes(p Parts) []route {
	access := accessRoutes{p.Access, p.Store, p.Telemetry.Metrics}
	users, plans, subscriptions := userRoutes{p.Store, p.Webhooks.Intake}, planRoutes{p.Store, p.Webhooks.Intake}, subscriptionRoutes{p.Store, p.Webhooks.Provider}
	orders := orderRoutes{p.Store, p.Webhooks.Provider.Orders}
	webhooks := webhookRoutes{p.Webhooks, p.Telemetry.Metrics}
	events := webhookEventRoutes{p.Store, p.Webhooks.Intake}
	deliveries := deliveryRoutes{p.Store}
	endpoints := endpointRoutes{p.Webhooks.Outgoing, p.Store}
	jobs := jobRoutes{p.Store, p.Schedules}
	const get, post, put, patch = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch
	return []route{
		{get, "/v1/access", roleAccess, accessDeadline, access.one},
		{post, "/v1/access/batch", roleAccess, accessDeadline, access.batch},

		{get, "/openapi.yaml", public, usual, readDocument},
		{get, "/v1/openapi.yaml", public, usual, readDocument},

		{post, "/v1/webhooks/stripe", public, webhookDeadline, webhooks.stripe},

		{put, "/v1/users/:id", roleOperator, usual, users.put},
		{get, "/v1/users/:id", roleOperator, usual, users.one},
		{put, "/v1/users/:id/stripe-customer", roleOperator, usual, users.linkCustomer},

		{post, "/v1/plans", roleAdmin, usual, plans.create},
		{get, "/v1/plans", roleOperator, usual, plans.list},
		{get, "/v1/plans/:key", roleOperator, usual, plans.one},
		{patch, "/v1/plans/:key", roleAdmin, usual, plans.change},

		{post, "/v1/subscriptions", roleOperator, usual, subscriptions.create},
		{get, "/v1/subscriptions", roleOperator, usual, subscriptions.list},
		{get, "/v1/subscriptions/:id", roleOperator, usual, subscriptions.one},
		{get, "/v1/subscriptions/:id/history", roleOperator, usual, subscriptions.history},
		{post, "/v1/subscriptions/:id/cancel", roleOperator, atProvider, subscriptions.cancel},
		{post, "/v1/subscriptions/:id/uncancel", roleOperator, atProvider, subscriptions.uncancel},
		{post, "/v1/subscriptions/:id/change-plan", roleOperator, atProvider, subscriptions.changePlan},
		{post, "/v1/subscriptions/:id/pause", roleOperator, usual, subscriptions.pause},
		{post, "/v1/subscriptions/:id/resume", roleOperator, usual, subscriptions.resume},
		{post, "/v1/subscriptions/:id/extend", roleOperator, usual, subscriptions.extend},

		{post, "/v1/orders", roleOperator, atProvider, orders.create},
		{get, "/v1/orders", roleOperator, usual, orders.list},
		{get, "/v1/orders/:id", roleOperator, usual, orders.one},
		{post, "/v1/orders/:id/verify", roleOperator, atProvider, orders.verify},
		{post, "/v1/orders/:id/cancel", roleOperator, atProvider, orders.cancel},
		{post, "/v1/orders/:id/refund", roleOperator, atProvider, orders.refund},
		{post, "/v1/orders/:id/resolve", roleOperator, atProvider, orders.resolve},
		{get, thanksPath, public, usual, thankCustomer},

		{get, "/v1/webhook-events", roleOperator, usual, events.list},
		{get, "/v1/webhook-events/:id", roleOperator, usual, events.one},
		{post, "/v1/webhook-events/:id/replay", roleOperator, usual, events.replay},

		{post, "/v1/webhook-endpoints", roleAdmin, usual, endpoints.create},
		{get, "/v1/webhook-endpoints", roleOperator, usual, endpoints.list},
		{get, "/v1/webhook-endpoints/:id", roleOperator, usual, endpoints.one},
		{patch, "/v1/webhook-endpoints/:id", roleAdmin, usual, endpoints.change},
		{http.MethodDelete, "/v1/webhook-endpoints/:id", roleAdmin, usual, endpoints.remove},
		{post, "/v1/webhook-endpoints/:id/rotate-secret", roleAdmin, usual, endpoints.rotate},

		{get, "/v1/deliveries", roleOperator, usual, deliveries.list},
		{get, "/v1/deliveries/:id", roleOperator, usual, deliveries.one},
		{post, "/v1/deliveries/:id/retry", roleOperator, usual, deliveries.retry},

		{get, "/v1/drift", roleOperator, usual, driftRoutes{p.Store}.list},

		{get, "/v1/jobs", roleOperator, usual, jobs.list},
		{get, "/v1/jobs/:job/runs", roleOperator, usual, jobs.runs},
		{post, "/v1/jobs/:job/trigger", roleOperator, usual, jobs.trigger},
		{post, "/v1/jobs/:job/pause", roleOperator, usual, jobs.pause},
		{post, "/v1/jobs/:job/unpause", roleOperator, usual, jobs.unpause},
	}
}
