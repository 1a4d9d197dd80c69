package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Provider is a small Stripe API with the objects of the lives as they are in the end, in the shape of 2023-10-16. An
// instance that is started with STRIPE_API_BASE at its address asks it in place of Stripe.
type Provider struct {
	server   *http.Server
	listener net.Listener
	calls    atomic.Int64
	served   chan error // gets the error of a server that has ended

	mu   sync.Mutex
	held map[string]object // by id
	ids  map[string][]string
	lost map[string]bool      // events that were not delivered
	ends map[string]time.Time // what a subscription's end is when it is told to end, where that is not now
}

// Serve starts a provider on an address; port 0 takes a free one.
func Serve(ctx context.Context, address string) (*Provider, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving the provider: %w", err)
	}
	p := &Provider{listener: listener, served: make(chan error, 1), held: map[string]object{}, ids: map[string][]string{}, lost: map[string]bool{}, ends: map[string]time.Time{}}
	p.server = &http.Server{Handler: p.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute}
	go func() { p.served <- p.server.Serve(listener) }()
	return p, nil
}

// URL is what STRIPE_API_BASE of the instance must be.
func (p *Provider) URL() string { return "http://" + p.listener.Addr().String() }

// Close stops it and returns when nobody is being answered any more.
func (p *Provider) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := p.server.Shutdown(ctx); err != nil {
		return fmt.Errorf("stopping the provider: %w", err)
	}
	if err := <-p.served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the provider: %w", err)
	}
	return nil
}

// hold puts what is left of a life there, and its events. Those that are in no order were not delivered.
func (p *Provider) hold(t *try) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range t.holds {
		p.put(h.write(Shape2023))
		if s, ok := h.(subscribed); ok && !t.endedAt.IsZero() {
			p.ends[s.id] = t.endedAt
		}
	}
	delivered := map[int]bool{}
	for _, place := range t.order.sequence {
		delivered[place] = true
	}
	for place, e := range t.events {
		p.put(e.write(Shape2023))
		p.lost[e.id] = !delivered[place]
	}
}

func (p *Provider) put(o object) {
	id, kind := o["id"].(string), o["object"].(string)
	if _, there := p.held[id]; !there {
		p.ids[kind] = append(p.ids[kind], id)
	}
	p.held[id] = o
}

// collections are the paths under /v1 with the objects that are there.
var collections = map[string]string{
	"subscriptions": "subscription", "customers": "customer", "invoices": "invoice", "payment_intents": "payment_intent", "charges": "charge",
	"refunds": "refund", "disputes": "dispute", "events": "event", "checkout/sessions": "checkout.session",
}

func (p *Provider) routes() http.Handler {
	mux := http.NewServeMux()
	for path, kind := range collections {
		mux.HandleFunc("GET /v1/"+path, func(w http.ResponseWriter, r *http.Request) { p.list(w, r, path, kind) })
		mux.HandleFunc("GET /v1/"+path+"/{id}", func(w http.ResponseWriter, r *http.Request) { p.one(w, r, kind, nil) })
	}
	mux.HandleFunc("POST /v1/subscriptions/{id}", func(w http.ResponseWriter, r *http.Request) { p.one(w, r, "subscription", change) })
	mux.HandleFunc("DELETE /v1/subscriptions/{id}", func(w http.ResponseWriter, r *http.Request) { p.one(w, r, "subscription", p.end) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "", "Unrecognized request URL ("+r.Method+": "+r.URL.Path+").")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.calls.Add(1)
		if r.Header.Get("Authorization") == "" {
			refuse(w, http.StatusUnauthorized, "", "You did not provide an API key.")
			return
		}
		if err := r.ParseForm(); err != nil {
			refuse(w, http.StatusBadRequest, "", "The request cannot be read.")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// one answers with one object, after the change that was asked for.
func (p *Provider) one(w http.ResponseWriter, r *http.Request, kind string, change func(object, url.Values)) {
	id := r.PathValue("id")
	p.mu.Lock()
	o, ok := p.held[id]
	// Stripe answers about what was canceled, but changes nothing of it.
	if ok = ok && o["object"] == kind && (change == nil || o["status"] != "canceled"); ok {
		o = maps.Clone(o)
		if change != nil {
			change(o, r.Form)
			p.held[id] = o
		}
		for _, path := range values(r.Form, "expand") {
			o = p.expand(o, strings.Split(path, "."))
		}
	}
	p.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "resource_missing", "No such "+kind+": '"+id+"'")
		return
	}
	answer(w, http.StatusOK, o)
}

// expand puts objects in place of their ids. It changes o, which is the caller's own, and nothing in it.
func (p *Provider) expand(o object, path []string) object {
	field := path[0]
	var inner object
	switch value := o[field].(type) {
	case string:
		held, ok := p.held[value]
		if !ok {
			return o
		}
		inner = maps.Clone(held)
	case object:
		inner = maps.Clone(value)
	default:
		if field != "refunds" || o["object"] != "charge" {
			return o
		}
		inner = page(p.filtered("refund", url.Values{"charge": {o["id"].(string)}}), "/v1/charges/"+o["id"].(string)+"/refunds", false)
	}
	if len(path) > 1 {
		inner = p.expand(inner, path[1:])
	}
	o[field] = inner
	return o
}

// change is an update of a subscription.
func change(o object, form url.Values) {
	if form.Has("cancel_at_period_end") {
		ends := form.Get("cancel_at_period_end") == "true"
		o["cancel_at_period_end"], o["cancel_at"] = ends, nil
		if ends {
			o["cancel_at"], o["canceled_at"] = o["current_period_end"], time.Now().Unix()
		}
	}
	if form.Has("cancel_at") {
		o["cancel_at"] = nil
		if at, ok := number(form.Get("cancel_at")); ok {
			o["cancel_at"] = at
		}
	}
	if price := form.Get("items[0][price]"); price != "" {
		list := maps.Clone(o["items"].(object))
		item := maps.Clone(list["data"].([]any)[0].(object))
		item["price"] = object{"id": price, "object": "price", "currency": currency, "unit_amount": fullPrice, "type": "recurring"}
		list["data"] = []any{item}
		o["items"] = list
	}
}

// end is the cancellation of a subscription.
func (p *Provider) end(o object, _ url.Values) {
	at, fixed := p.ends[o["id"].(string)]
	if !fixed {
		at = time.Now()
	}
	o["status"], o["canceled_at"], o["ended_at"] = "canceled", at.Unix(), at.Unix()
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encode(body)) // who asked may have gone
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, object{"error": object{"type": "invalid_request_error", "code": text(code), "message": message}})
}
