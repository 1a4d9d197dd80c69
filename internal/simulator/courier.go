package simulator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	maxAttempts    = 12
	maxRetryDelay  = 30 * time.Second
	attemptTimeout = 10 * time.Second
	maxDeliveries  = 10_000 // that are remembered
)

// Endpoint is where webhooks go, and how.
type Endpoint struct {
	URL    string `json:"url"` // "" sends none
	Secret string `json:"secret"`
	Shape  Shape  `json:"shape"`
	// APIVersion is what events say in api_version; "" is the version of the shape.
	APIVersion string `json:"api_version"`
}

// The ways in which the delivery of an event can go wrong.
const (
	Duplicate   = "duplicate"    // it is sent twice
	Delay       = "delay"        // it is sent later
	Drop        = "drop"         // it is never sent
	Reorder     = "reorder"      // as many events as are counted are held and then sent the last one first
	WrongSecret = "wrong_secret" // it is signed with another secret, once; the retry is right
	Past        = "past"         // the signature is dated in the past, once
	Future      = "future"       // the signature is dated in the future, once
	Livemode    = "livemode"     // the event says the other mode
)

// Fault is one way to go wrong, for the next Count events that fit (0 is one).
type Fault struct {
	Type   string        `json:"type"` // of the event, or a family such as invoice.*; "" is any
	Kind   string        `json:"kind"`
	Count  int           `json:"count"`
	By     time.Duration `json:"-"` // of Delay (1 s when 0), Past and Future (an hour when 0)
	Secret string        `json:"secret"`
}

// Delivery tells how the sending of one event went.
type Delivery struct {
	EventID  string `json:"event_id"`
	Type     string `json:"type"`
	Attempts int    `json:"attempts"`
	Status   int    `json:"status"` // of the last answer, 0 for none
	Error    string `json:"error"`
	State    string `json:"state"` // pending, delivered, dropped or given_up
}

// parcel is a delivery on its way.
type parcel struct {
	event     event
	delivery  *Delivery
	notBefore time.Time
	secret    string        // in place of the endpoint's, for one attempt
	shift     time.Duration // of the signature's time, for one attempt
}

// courier sends events one after another, so that a test sees the order it asked for. What failed waits and lets the
// others pass.
type courier struct {
	client     *http.Client
	retryDelay time.Duration // before the second attempt; doubled each time
	wake       chan struct{}

	mu         sync.Mutex
	endpoint   Endpoint
	faults     []Fault
	held       []*parcel // by Reorder
	holdUntil  int
	queue      []*parcel
	deliveries []*Delivery
	owed       map[string]bool // ids of events that the endpoint has not taken
}

func newCourier(endpoint Endpoint, retryDelay time.Duration) *courier {
	return &courier{
		client: &http.Client{Transport: &http.Transport{}, Timeout: attemptTimeout}, retryDelay: retryDelay,
		wake: make(chan struct{}, 1), endpoint: endpoint, owed: map[string]bool{},
	}
}

func (c *courier) configure(endpoint Endpoint) error {
	if endpoint.Shape == "" {
		endpoint.Shape = Shape2023
	}
	if !endpoint.Shape.valid() {
		return fmt.Errorf("unknown shape: it is %q or %q", Shape2023, Shape2025)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoint = endpoint
	return nil
}

func (c *courier) addFault(f Fault) error {
	kinds := []string{Duplicate, Delay, Drop, Reorder, WrongSecret, Past, Future, Livemode}
	if !slices.Contains(kinds, f.Kind) {
		return fmt.Errorf("unknown fault: it is one of %v", kinds)
	}
	f.Count = max(f.Count, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, f)
	return nil
}

// owes tells whether there was an endpoint for an event that has not taken it, or not yet.
func (c *courier) owes(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owed[id]
}

// forget drops what is known of an event.
func (c *courier) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.owed, id)
}

// take accepts an event and lets the faults that wait for it have their way. Without a URL it is not sent at all; what is
// lost never arrives, whatever waits for it.
func (c *courier) take(e event, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endpoint.URL == "" {
		return
	}
	c.owed[e.id] = true
	if lost {
		c.remember(&Delivery{EventID: e.id, Type: e.kind, State: "dropped"})
		return
	}
	p := &parcel{event: e, delivery: &Delivery{EventID: e.id, Type: e.kind, State: "pending"}, notBefore: time.Now()}
	copies := 1
	for i := range c.faults {
		f := &c.faults[i]
		if f.Count == 0 || f.Type != "" && !matches(f.Type, e.kind) {
			continue
		}
		switch f.Kind {
		case Duplicate:
			copies++
		case Delay:
			p.notBefore = p.notBefore.Add(orDuration(f.By, time.Second))
		case Drop:
			p.delivery.State = "dropped"
		case Reorder:
			if c.holdUntil == 0 {
				c.holdUntil = f.Count
			}
		case WrongSecret:
			p.secret = f.Secret
			if p.secret == "" {
				p.secret = "whsec_of_somebody_else_entirely"
			}
		case Past:
			p.shift = -orDuration(f.By, time.Hour)
		case Future:
			p.shift = orDuration(f.By, time.Hour)
		case Livemode:
			p.event.livemode = !p.event.livemode
		}
		f.Count--
	}
	c.faults = slices.DeleteFunc(c.faults, func(f Fault) bool { return f.Count == 0 })
	c.dispatch(p, copies)
}

// dispatch queues a parcel and its copies, or holds it until as many are held as are to be reordered.
func (c *courier) dispatch(p *parcel, copies int) {
	c.remember(p.delivery)
	var parcels []*parcel
	if p.delivery.State == "pending" {
		parcels = append(parcels, p)
		for range copies - 1 {
			again := *p
			again.delivery = &Delivery{EventID: p.delivery.EventID, Type: p.delivery.Type, State: "pending"}
			c.remember(again.delivery)
			parcels = append(parcels, &again)
		}
	}
	if c.holdUntil > 0 {
		c.held = append(c.held, parcels...)
		if c.holdUntil--; c.holdUntil > 0 {
			return
		}
		slices.Reverse(c.held)
		parcels, c.held = c.held, nil
	}
	c.queue = append(c.queue, parcels...)
	c.ring()
}

func (c *courier) remember(d *Delivery) {
	c.deliveries = append(c.deliveries, d)
	if len(c.deliveries) > maxDeliveries {
		c.deliveries = slices.Delete(c.deliveries, 0, len(c.deliveries)-maxDeliveries)
	}
}

func (c *courier) ring() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// list returns what became of the events, oldest first.
func (c *courier) list() []Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Delivery, 0, len(c.deliveries))
	for _, d := range c.deliveries {
		all = append(all, *d)
	}
	return all
}

// run sends until the context ends.
func (c *courier) run(ctx context.Context) {
	defer c.client.CloseIdleConnections()
	for {
		p, endpoint, wait := c.next()
		if p != nil {
			c.send(ctx, p, endpoint)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next takes the first parcel that is due off the queue, or says how long to wait for one.
func (c *courier) next() (*parcel, Endpoint, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait, now := time.Hour, time.Now()
	for i, p := range c.queue {
		if until := p.notBefore.Sub(now); until > 0 {
			wait = min(wait, until)
			continue
		}
		if i == 0 { // the usual case; of a long queue nothing is moved
			c.queue = c.queue[1:]
		} else {
			c.queue = slices.Delete(c.queue, i, i+1)
		}
		return p, c.endpoint, 0
	}
	return nil, Endpoint{}, wait
}

func (c *courier) send(ctx context.Context, p *parcel, endpoint Endpoint) {
	status, err := c.attempt(ctx, p, endpoint)
	c.mu.Lock()
	defer c.mu.Unlock()
	p.secret, p.shift = "", 0
	d := p.delivery
	d.Attempts++
	d.Status, d.Error = status, ""
	if err != nil {
		d.Error = err.Error()
	}
	switch {
	case err == nil && status/100 == 2:
		d.State = "delivered"
		delete(c.owed, d.EventID)
	case ctx.Err() != nil:
	case d.Attempts >= maxAttempts:
		d.State = "given_up"
	default:
		p.notBefore = time.Now().Add(min(c.retryDelay<<(d.Attempts-1), maxRetryDelay))
		c.queue = append(c.queue, p)
	}
}

// attempt signs afresh each time, as Stripe does.
func (c *courier) attempt(ctx context.Context, p *parcel, endpoint Endpoint) (status int, err error) {
	secret := endpoint.Secret
	if p.secret != "" {
		secret = p.secret
	}
	body := p.event.body(endpoint.Shape)
	if endpoint.APIVersion != "" && !p.event.thin {
		body["api_version"] = endpoint.APIVersion
	}
	request, err := SignedRequest(ctx, endpoint.URL, encode(body), secret, time.Now().Add(p.shift))
	if err != nil {
		return 0, err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("sending a webhook: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, nil
}

func orDuration(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}
