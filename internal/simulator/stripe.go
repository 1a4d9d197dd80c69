package simulator

import (
	"net/http"
	"sync"
	"time"
)

// stripe is the state of the simulated provider: one lock around maps, because every change may roll over anything.
type stripe struct {
	courier *courier

	mu            sync.Mutex
	offset        time.Duration // of its clock from the real one
	quietUntil    time.Time     // nothing is due before; the zero time when that is not known
	customers     shelf[*customer]
	products      shelf[map[string]any]
	prices        shelf[priceFixture]
	subscriptions shelf[*subscription]
	invoices      shelf[invoice]
	checkouts     shelf[*checkout]
	intents       shelf[*PaymentIntentFixture]
	charges       shelf[*ChargeFixture]
	events        shelf[event]
	refunds       shelf[*RefundFixture]
	disputes      shelf[*DisputeFixture]
	paymentEvents bool // the payments of invoices are told of
	holdRefunds   bool // refunds are pending until they are finished
	dropping      bool // the webhooks of what is told of now are lost
	muted         bool // nothing is told

	kept       map[string]kept // by Idempotency-Key
	restFaults []RESTFault
	calls      []Call        // oldest first
	closing    chan struct{} // closed: nothing hangs any more
}

func newStripe(courier *courier, start time.Time) *stripe {
	s := &stripe{
		courier: courier, kept: map[string]kept{}, closing: make(chan struct{}),
	}
	if !start.IsZero() {
		s.offset = time.Until(start)
	}
	return s
}

// now is the simulated clock, to the second, as all of Stripe's instants are.
func (s *stripe) now() time.Time { return time.Now().Add(s.offset).UTC().Truncate(time.Second) }

// publish records an event and hands it to the courier. The caller holds the lock.
func (s *stripe) publish(kind string, created time.Time, object func(Shape) any, previous map[string]any) {
	if s.muted {
		return
	}
	s.record(event{id: NewID("evt"), kind: kind, created: created, object: object, previous: previous})
}

func (s *stripe) record(e event) {
	s.events.put(e.id, e)
	s.forget(s.now())
	s.courier.take(e, s.dropping)
}

// drop lets the webhooks of what is told of from now on be lost, or not, until what it returns is called.
func (s *stripe) drop(lost bool) (stop func()) {
	s.dropping = lost
	return func() { s.dropping = false }
}

// mute lets nothing be told, or changes nothing, until what it returns is called.
func (s *stripe) mute(on bool) (stop func()) {
	before := s.muted
	s.muted = before || on
	return func() { s.muted = before }
}

// steer takes the lock and lets happen what is due, for a change from outside the REST API, until what it returns is called.
func (s *stripe) steer() (done func()) {
	s.mu.Lock()
	s.settle(s.now())
	s.quietUntil = time.Time{}
	return s.mu.Unlock
}

// answer is what a handler of the REST API says.
type answer struct {
	status int
	body   any
}

func found(object any) answer { return answer{http.StatusOK, object} }

// refusal is Stripe's error shape.
func refusal(status int, code, param, message string) answer {
	return answer{status, map[string]any{"error": map[string]any{
		"type": "invalid_request_error", "code": text(code), "param": text(param), "message": message,
	}}}
}

func missing(kind, id string) answer {
	return refusal(http.StatusNotFound, "resource_missing", "id", "No such "+kind+": '"+id+"'")
}

// noSuch is what Stripe says when a parameter, and not the path, names what there is not.
func noSuch(kind, id, param string) answer {
	return refusal(http.StatusBadRequest, "resource_missing", param, "No such "+kind+": '"+id+"'")
}

// routes is the part of Stripe's REST API that is simulated, in the shape of 2023-10-16.
func (s *stripe) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(form, string) answer{
		"POST /v1/customers":                     s.createCustomer,
		"GET /v1/customers/{id}":                 s.customer,
		"GET /v1/customers":                      s.listCustomers,
		"POST /v1/customers/{id}":                s.updateCustomer,
		"DELETE /v1/customers/{id}":              s.deleteCustomer,
		"POST /v1/products":                      s.createProduct,
		"GET /v1/products/{id}":                  s.product,
		"POST /v1/prices":                        s.createPrice,
		"GET /v1/prices/{id}":                    s.price,
		"POST /v1/subscriptions":                 s.createSubscription,
		"GET /v1/subscriptions":                  s.listSubscriptions,
		"GET /v1/subscriptions/{id}":             s.subscription,
		"POST /v1/subscriptions/{id}":            s.updateSubscription,
		"DELETE /v1/subscriptions/{id}":          s.cancelSubscription,
		"POST /v1/subscriptions/{id}/resume":     s.resumeSubscription,
		"GET /v1/products":                       s.listProducts,
		"GET /v1/prices":                         s.listPrices,
		"GET /v1/invoices":                       s.listInvoices,
		"GET /v1/invoices/{id}":                  s.invoice,
		"POST /v1/checkout/sessions":             s.createCheckout,
		"GET /v1/checkout/sessions":              s.listCheckouts,
		"GET /v1/checkout/sessions/{id}":         s.checkout,
		"POST /v1/checkout/sessions/{id}/expire": s.expireCheckout,
		"GET /v1/payment_intents":                s.listPaymentIntents,
		"GET /v1/payment_intents/{id}":           s.paymentIntent,
		"POST /v1/payment_intents/{id}":          s.updatePaymentIntent,
		"GET /v1/charges":                        s.listCharges,
		"GET /v1/charges/{id}":                   s.charge,
		"POST /v1/refunds":                       s.createRefund,
		"GET /v1/refunds":                        s.listRefunds,
		"GET /v1/refunds/{id}":                   s.refund,
		"GET /v1/disputes":                       s.listDisputes,
		"GET /v1/disputes/{id}":                  s.dispute,
		"GET /v1/events":                         s.listEvents,
		"GET /v1/events/{id}":                    s.event,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			s.serve(w, r, func(f form, id string) answer { return s.expanded(handle(f, id), f.list("expand")) })
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, refusal(http.StatusNotFound, "", "", "Unrecognized request URL ("+r.Method+": "+r.URL.Path+")."))
	})
	return mux
}

func writeJSON(w http.ResponseWriter, said answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(said.status)
	_, _ = w.Write(encode(said.body))
}
