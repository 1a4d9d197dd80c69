package simulator

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const maxEvents = 10_000 // of the list of events; Stripe keeps 30 days

// stripe is the state of the simulated provider: one lock around maps, because every change may roll over anything.
type stripe struct {
	courier *courier

	mu            sync.Mutex
	offset        time.Duration // of its clock from the real one
	customers     map[string]*customer
	products      map[string]map[string]any
	prices        map[string]priceFixture
	subscriptions map[string]*subscription
	order         []string // ids of the subscriptions, oldest first
	invoices      map[string]invoice
	invoiceOrder  []string // oldest first
	checkouts     map[string]*checkout
	events        []event // oldest first

	kept       map[string]kept // by Idempotency-Key
	restFaults []RESTFault
	calls      []Call        // oldest first
	closing    chan struct{} // closed: nothing hangs any more
}

func newStripe(courier *courier, start time.Time) *stripe {
	s := &stripe{
		courier: courier, customers: map[string]*customer{}, products: map[string]map[string]any{},
		prices: map[string]priceFixture{}, subscriptions: map[string]*subscription{}, invoices: map[string]invoice{},
		checkouts: map[string]*checkout{}, kept: map[string]kept{}, closing: make(chan struct{}),
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
	s.record(event{id: NewID("evt"), kind: kind, created: created, object: object, previous: previous})
}

func (s *stripe) record(e event) {
	s.events = append(s.events, e)
	if len(s.events) > maxEvents {
		s.events = slices.Delete(s.events, 0, len(s.events)-maxEvents)
	}
	s.courier.take(e)
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
		"POST /v1/customers":             s.createCustomer,
		"GET /v1/customers/{id}":         s.customer,
		"POST /v1/customers/{id}":        s.updateCustomer,
		"DELETE /v1/customers/{id}":      s.deleteCustomer,
		"POST /v1/products":              s.createProduct,
		"GET /v1/products/{id}":          s.product,
		"POST /v1/prices":                s.createPrice,
		"GET /v1/prices/{id}":            s.price,
		"POST /v1/subscriptions":         s.createSubscription,
		"GET /v1/subscriptions":          s.listSubscriptions,
		"GET /v1/subscriptions/{id}":     s.subscription,
		"POST /v1/subscriptions/{id}":    s.updateSubscription,
		"DELETE /v1/subscriptions/{id}":  s.cancelSubscription,
		"GET /v1/invoices":               s.listInvoices,
		"GET /v1/invoices/{id}":          s.invoice,
		"POST /v1/checkout/sessions":     s.createCheckout,
		"GET /v1/checkout/sessions/{id}": s.checkout,
		"GET /v1/events":                 s.listEvents,
		"GET /v1/events/{id}":            s.event,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, handle) })
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

func (s *stripe) createProduct(f form, _ string) answer {
	if f.text("name") == "" {
		return refusal(http.StatusBadRequest, "parameter_missing", "name", "Missing required param: name.")
	}
	id := f.text("id")
	if id == "" {
		id = NewID("prod")
	}
	s.products[id] = map[string]any{
		"id": id, "object": "product", "active": true, "created": seconds(s.now()), "livemode": false, "name": f.text("name"),
		"metadata": f.metadata(nil), "type": "service",
	}
	return found(s.products[id])
}

func (s *stripe) product(_ form, id string) answer {
	p, ok := s.products[id]
	if !ok {
		return missing("product", id)
	}
	return found(p)
}

func (s *stripe) createPrice(f form, _ string) answer {
	p := priceFixture{
		ID: NewID("price"), Product: f.text("product"), Currency: f.text("currency"), Interval: f.text("recurring[interval]"),
		IntervalCount: 1, Created: s.now(),
	}
	if _, ok := s.products[p.Product]; !ok {
		return noSuch("product", p.Product, "product")
	}
	if !slices.Contains([]string{"day", "week", "month", "year"}, p.Interval) {
		return refusal(http.StatusBadRequest, "", "recurring[interval]", "Invalid recurring[interval]: must be one of day, month, week, or year")
	}
	if p.Currency == "" {
		return refusal(http.StatusBadRequest, "parameter_missing", "currency", "Missing required param: currency.")
	}
	var err error
	if p.UnitAmount, err = strconv.ParseInt(f.text("unit_amount"), 10, 64); err != nil {
		return refusal(http.StatusBadRequest, "parameter_invalid_integer", "unit_amount", "Invalid integer: unit_amount")
	}
	if f.has("recurring[interval_count]") {
		if p.IntervalCount, err = strconv.Atoi(f.text("recurring[interval_count]")); err != nil || p.IntervalCount < 1 {
			return refusal(http.StatusBadRequest, "parameter_invalid_integer", "recurring[interval_count]", "Invalid integer: recurring[interval_count]")
		}
	}
	s.prices[p.ID] = p
	return found(p.object())
}

func (s *stripe) price(_ form, id string) answer {
	p, ok := s.prices[id]
	if !ok {
		return missing("price", id)
	}
	return found(p.object())
}

// event writes an event as a fetch sees it: in the shape of the version that the caller sent.
func (s *stripe) event(_ form, id string) answer {
	for _, e := range s.events {
		if e.id == id {
			return found(e.body(Shape2023))
		}
	}
	return missing("event", id)
}

func (s *stripe) listEvents(f form, _ string) answer {
	types := f.list("types")
	if one := f.text("type"); one != "" {
		types = append(types, one)
	}
	var rows []row
	for _, e := range slices.Backward(s.events) {
		if e.thin || len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return matches(t, e.kind) }) || !f.within("created", e.created) {
			continue
		}
		rows = append(rows, row{e.id, func() any { return e.body(Shape2023) }})
	}
	return page(f, "/v1/events", rows)
}

// matches tells whether a type fits; "customer.subscription.*" takes a whole family.
func matches(pattern, kind string) bool {
	if family, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(kind, family)
	}
	return pattern == kind
}
