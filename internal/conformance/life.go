package conformance

import (
	"time"
)

// A life is what happens to the subscriptions of one user at the provider, with the state in which every order of its
// events must end.
type life struct {
	name     string
	twoPlans bool // it cannot be tried without a second plan
	play     func(c cast) script
}

// script is a life that was played for one cast.
type script struct {
	events []event
	holds  []thing // what the provider has in the end
	want   State
	// endedAt is the end that the provider gives a subscription of this life that it is told to end; zero for now. It is that of
	// the refund, so that all orders can end in one state.
	endedAt time.Time
}

// event is one event of a life.
type event struct {
	id      string
	kind    string
	what    string // for a person
	created time.Time
	about   thing
	spare   bool // the others tell the same in the end, so it may be lost
}

// cast is who takes part in one try: ids that nobody has used before.
type cast struct {
	now      time.Time // a whole second; the same in all tries of a run
	shape    Shape
	tag      string // in every id
	one, two Plan
	leeway   time.Duration
	grace    time.Duration
	answers  bool // the instance can ask the provider
}

func (c cast) user() string                  { return "conformance-" + c.tag }
func (c cast) customer() string              { return "cus_" + c.tag }
func (c cast) id(prefix, name string) string { return prefix + "_" + c.tag + name }

const day = 24 * time.Hour

// month is thirty days that begin so many days from now.
func (c cast) month(days int) period { return c.span(time.Duration(days)*day, 30*day) }

func (c cast) span(from, long time.Duration) period {
	return period{c.now.Add(from), c.now.Add(from + long)}
}

// subscribe makes an active subscription of the user's to the first plan, that began with the period.
func (c cast) subscribe(name string, p period) subscribed {
	return subscribed{
		id: c.id("sub", name), customer: c.customer(), user: c.user(), price: c.one.Price, status: "active", began: p.start, period: p, invoice: c.id("in", name+"1"),
	}
}

// in changes what a later moment has differently.
func (s subscribed) in(change func(*subscribed)) subscribed {
	change(&s)
	return s
}

func (s subscribed) with(status string) subscribed {
	s.status = status
	return s
}

func (s subscribed) renewed(p period, invoice string) subscribed {
	s.period, s.invoice = p, invoice
	return s
}

// bill is a paid invoice for the period that the subscription is in.
func (c cast) bill(s subscribed, reason string, at time.Time) billed {
	return billed{
		id: s.invoice, customer: s.customer, user: s.user, subscription: s.id, price: s.price, reason: reason, status: "paid", made: at, period: s.period,
		total: fullPrice, payment: payment{intent: "pi_" + s.invoice, charge: "ch_" + s.invoice, customer: s.customer, invoice: s.invoice, made: at},
	}
}

const (
	firstInvoice   = "subscription_create"
	renewalInvoice = "subscription_cycle"
	changeInvoice  = "subscription_update"
)

func (c cast) event(kind, what string, created time.Time, about thing) event {
	return event{id: c.id("evt", kindLetters(kind)+created.UTC().Format("0102150405")), kind: kind, what: what, created: created, about: about}
}

// kindLetters keeps ids of events of one second apart.
func kindLetters(kind string) string {
	letters := make([]byte, 0, len(kind))
	for i := range len(kind) {
		if k := kind[i]; k >= 'a' && k <= 'z' {
			letters = append(letters, k)
		}
	}
	return string(letters)
}

func (c cast) created(s subscribed) event {
	return c.event("customer.subscription.created", "created, "+s.status, s.began, s)
}

func (c cast) updated(what string, at time.Time, s subscribed) event {
	return c.event("customer.subscription.updated", what, at, s)
}

func (c cast) deleted(at time.Time, s subscribed) event {
	return c.event("customer.subscription.deleted", "deleted", at, s)
}

func (c cast) paid(what string, b billed) event {
	return c.event("invoice.paid", what, b.made, b).lost()
}

// lost marks an event that may get lost.
func (e event) lost() event {
	e.spare = true
	return e
}

// active is the state of who has paid until the end of the period and goes on.
func (c cast) active(plan Plan, p period) State {
	return State{Allowed: true, Reason: "active", Plan: plan.Key, ExpiresAt: instant(p.end), AccessUntil: instant(p.end.Add(c.leeway))}
}

// Lives are the names of all lives, in the order in which they are tried.
func Lives() []string {
	var names []string
	for _, l := range lives() {
		names = append(names, l.name)
	}
	return names
}

func lives() []life {
	return []life{
		{name: "renew", play: renew},
		{name: "fail, recover", play: recovers},
		{name: "fail on", play: failOn},
		{name: "cancel", play: cancel},
		{name: "cancel, resubscribe", play: resubscribe},
		{name: "plan change", twoPlans: true, play: changePlan},
		{name: "refund, ends", play: refundEnds},
		{name: "refund, keeps", twoPlans: true, play: refundKeeps},
		{name: "refund in part", play: refundInPart},
		{name: "refund, earlier period", play: refundEarlier},
		{name: "dispute lost", play: disputeLost},
		{name: "dispute won", play: disputeWon},
	}
}

// renew: bought by a checkout that alone says whose it is, paid, and renewed once.
func renew(c cast) script {
	first, second := c.month(-40), c.month(-10)
	s := c.subscribe("a", first).in(func(s *subscribed) { s.user = "" })
	sold := checkout{id: c.id("cs_test", ""), customer: s.customer, user: c.user(), subscription: s.id, made: first.start.Add(6 * time.Second)}
	next := s.renewed(second, c.id("in", "a2"))
	return script{
		events: []event{
			c.created(s.with("incomplete")).lost(),
			c.updated("active", first.start.Add(5*time.Second), s).lost(),
			c.event("checkout.session.completed", "checkout completed", sold.made, sold),
			c.paid("first invoice paid", c.bill(s, firstInvoice, first.start.Add(7*time.Second))),
			c.updated("renewed", second.start, next),
			c.paid("renewal paid", c.bill(next, renewalInvoice, second.start.Add(time.Hour))),
		},
		holds: []thing{next, sold, customer{c.customer(), first.start}, c.bill(next, renewalInvoice, second.start.Add(time.Hour))},
		want:  c.active(c.one, second),
	}
}

// recovers: the renewal is not paid at first.
func recovers(c cast) script {
	first, second := c.month(-40), c.month(-10)
	s := c.subscribe("a", first)
	next := s.renewed(second, c.id("in", "a2"))
	failed, paid := second.start.Add(time.Hour), second.start.Add(2*day)
	open := c.bill(next, renewalInvoice, second.start).unpaid()
	settled := c.bill(next, renewalInvoice, paid)
	return script{
		events: []event{
			c.created(s).lost(),
			c.updated("period moved on", second.start, next).lost(),
			c.event("invoice.payment_failed", "payment failed", failed, open).lost(),
			c.updated("past due", failed.Add(time.Second), next.with("past_due")).lost(),
			c.paid("renewal paid after all", settled),
			c.updated("active again", paid.Add(time.Second), next),
		},
		holds: []thing{next, customer{c.customer(), first.start}, settled},
		want:  c.active(c.one, second),
	}
}

func (b billed) unpaid() billed {
	b.status, b.payment.charge = "open", ""
	return b
}

// failOn: the renewal stays unpaid into the period after it, whose end the provider shows; the grace counts from the first
// unpaid one.
func failOn(c cast) script {
	const half = day / 2
	first, second, third := c.span(-5*half, day), c.span(-3*half, day), c.span(-half, day)
	s := c.subscribe("a", first)
	next := s.renewed(second, c.id("in", "a2"))
	after := next.renewed(third, c.id("in", "a3")).with("past_due")
	failed := c.bill(next, renewalInvoice, second.start).unpaid()
	grace := second.start.Add(c.grace)
	want := State{Plan: c.one.Key, Reason: "expired", ExpiresAt: instant(second.start), GraceUntil: instant(grace), AccessUntil: instant(grace)}
	if c.now.Add(time.Hour).Before(grace) {
		want.Allowed, want.Reason = true, "grace_period"
	}
	return script{
		events: []event{
			c.created(s).lost(),
			c.updated("period moved on", second.start, next).lost(),
			c.event("invoice.payment_failed", "payment failed", second.start.Add(time.Hour), failed).lost(),
			c.updated("past due", second.start.Add(time.Hour+time.Second), next.with("past_due")),
			c.updated("past due in the next period", third.start, after).lost(),
		},
		holds: []thing{after, customer{c.customer(), first.start}, c.bill(after, renewalInvoice, third.start).unpaid(), failed},
		want:  want,
	}
}

// cancel: set to end, taken back, and then ended at once.
func cancel(c cast) script {
	only := c.month(-20)
	s := c.subscribe("a", only)
	ended := only.start.Add(17 * day)
	gone := s.in(func(s *subscribed) { s.status, s.canceled, s.ended = "canceled", ended, ended })
	return script{
		events: []event{
			c.created(s).lost(),
			c.updated("set to end", only.start.Add(5*day), s.in(func(s *subscribed) { s.endsWithPeriod = true })).lost(),
			c.updated("not to end any more", only.start.Add(6*day), s).lost(),
			c.deleted(ended, gone),
		},
		holds: []thing{gone, customer{c.customer(), only.start}, c.bill(s, firstInvoice, only.start)},
		want:  State{Reason: "canceled", Plan: c.one.Key, ExpiresAt: instant(ended), AccessUntil: instant(ended)},
	}
}

// resubscribe: one subscription ends with its period, a new one begins. The end of the old one may come last.
func resubscribe(c cast) script {
	old, young := c.month(-40), c.month(-9)
	a, b := c.subscribe("a", old), c.subscribe("b", young)
	ending := a.in(func(s *subscribed) { s.endsWithPeriod, s.canceled = true, old.start.Add(20*day) })
	gone := ending.in(func(s *subscribed) { s.status, s.ended = "canceled", old.end })
	bill := c.bill(b, firstInvoice, young.start.Add(6*time.Second))
	return script{
		events: []event{
			c.created(a).lost(),
			c.updated("set to end", old.start.Add(20*day), ending).lost(),
			c.deleted(old.end, gone).lost(),
			c.created(b.with("incomplete")).lost(),
			c.updated("the new one is active", young.start.Add(5*time.Second), b),
			c.paid("the new one is paid", bill),
		},
		holds: []thing{gone, b, customer{c.customer(), old.start}, c.bill(a, firstInvoice, old.start), bill},
		want:  c.active(c.one, young),
	}
}

// changePlan: another price in the middle of a period. The invoices of 0 and of prorations alone move nothing.
func changePlan(c cast) script {
	first, second := c.month(-40), c.month(-10)
	s := c.subscribe("a", first)
	next := s.renewed(second, c.id("in", "a2"))
	renewal := c.bill(next, renewalInvoice, second.start.Add(time.Hour))
	changed := c.now.Add(-5 * day)
	other := next.in(func(s *subscribed) { s.price, s.invoice = c.two.Price, c.id("in", "a3") })
	proration := c.bill(other, changeInvoice, changed.Add(time.Second))
	proration.proration, proration.period = true, period{changed, second.end}
	nothing := c.bill(other, changeInvoice, changed.Add(2*time.Second))
	nothing.id, nothing.total = c.id("in", "a4"), 0
	return script{
		events: []event{
			c.created(s).lost(),
			c.updated("renewed", second.start, next).lost(),
			c.paid("renewal paid", renewal),
			c.updated("another price", changed, other),
			c.paid("proration paid", proration),
			c.paid("invoice of 0", nothing),
		},
		holds: []thing{other, customer{c.customer(), first.start}, renewal, proration, nothing},
		want:  c.active(c.two, second),
	}
}
