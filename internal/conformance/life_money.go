package conformance

import "time"

// The lives in which money goes back. The first plan ends what was paid back, the second keeps it.

// sold is a subscription that is in its paid period, with the events that led there.
type sold struct {
	subscription subscribed
	bill         billed
	events       []event
}

// sell makes a subscription that was paid at the begin of its period.
func (c cast) sell(plan Plan, p period) sold {
	s := c.subscribe("a", p).in(func(s *subscribed) { s.price = plan.Price })
	bill := c.bill(s, firstInvoice, p.start.Add(time.Second))
	return sold{s, bill, append([]event{c.created(s).lostIf(c.answers)}, c.payment("paid", bill)...)}
}

// payment is a paid invoice, and where its shape does not name the payment, what does.
func (c cast) payment(what string, b billed) []event {
	list := []event{c.event("invoice.paid", what, b.made, b).lostIf(c.answers)}
	if c.shape == Shape2025 {
		list = append(list, c.event("invoice_payment.paid", what+": by which payment", b.made.Add(time.Second), invoicePaid{b.payment}).lostIf(c.answers))
	}
	return list
}

func (e event) lostIf(spare bool) event {
	e.spare = spare
	return e
}

// refund gives back so much of a payment. Whichever of the last two comes tells it.
func (c cast) refund(p payment, amount int, at time.Time) (back refund, charge asCharge, events []event) {
	p.refunded = amount
	back, charge = refund{id: "re_" + p.intent, payment: p, amount: amount, status: "succeeded", made: at}, asCharge{p}
	pending := back
	pending.status = "pending"
	return back, charge, []event{
		c.event("refund.created", "refund made", at, pending).lost(),
		c.event("charge.refunded", "charge refunded", at, charge).lost(),
		c.event("refund.updated", "refund succeeded", at.Add(time.Minute), back).lost(),
	}
}

// paid are the objects of the provider about a paid invoice of a subscription.
func (s sold) holds(rest ...thing) []thing {
	return append([]thing{
		s.subscription, s.bill, asIntent{s.bill.payment}, asCharge{s.bill.payment}, customer{s.subscription.customer, s.subscription.began},
	}, rest...)
}

// endedBy is the state of who lost the access at an instant because the money went back.
func (c cast) endedBy(plan Plan, at time.Time) State {
	return State{Reason: "canceled", Plan: plan.Key, ExpiresAt: instant(at), AccessUntil: instant(at)}
}

func refundEnds(c cast) script {
	s, at := c.sell(c.one, c.month(-10)), c.now.Add(-day)
	back, charge, events := c.refund(s.bill.payment, fullPrice, at)
	return script{events: append(s.events, events...), holds: s.holds(charge, back), endedAt: at, want: c.endedBy(c.one, at)}
}

func refundKeeps(c cast) script {
	s := c.sell(c.two, c.month(-10))
	back, charge, events := c.refund(s.bill.payment, fullPrice, c.now.Add(-day))
	return script{events: append(s.events, events...), holds: s.holds(charge, back), want: c.active(c.two, s.subscription.period)}
}

func refundInPart(c cast) script {
	s := c.sell(c.one, c.month(-10))
	back, charge, events := c.refund(s.bill.payment, fullPrice/2, c.now.Add(-day))
	return script{events: append(s.events, events...), holds: s.holds(charge, back), want: c.active(c.one, s.subscription.period)}
}

// refundEarlier: what is paid back is the period before the one that runs.
func refundEarlier(c cast) script {
	first, second := c.month(-40), c.month(-10)
	s := c.sell(c.one, first)
	next := s.subscription.renewed(second, c.id("in", "a2"))
	renewal := c.bill(next, renewalInvoice, second.start.Add(time.Hour))
	back, charge, events := c.refund(s.bill.payment, fullPrice, c.now.Add(-day))
	list := append(s.events, c.updated("renewed", second.start, next), c.paid("renewal paid", renewal))
	list[0].spare = true
	return script{
		events: append(list, events[1:]...),
		holds:  s.holds(next, renewal, asIntent{renewal.payment}, asCharge{renewal.payment}, charge, back),
		want:   c.active(c.one, second),
	}
}

// dispute lets a bank want a payment back and decide.
func (c cast) dispute(p payment, verdict string, at time.Time) (end dispute, charge asCharge, events []event) {
	p.disputed = true
	opened := at.Add(-5 * day)
	open := dispute{id: "dp_" + p.intent, payment: p, status: "needs_response", made: opened}
	end = open
	end.status = verdict
	return end, asCharge{p}, []event{
		c.event("charge.dispute.created", "dispute opened", opened, open).lost(),
		c.event("charge.dispute.funds_withdrawn", "funds withdrawn", opened.Add(time.Second), open).lost(),
		c.event("charge.dispute.closed", "dispute "+verdict, at, end),
	}
}

func disputeLost(c cast) script {
	s, at := c.sell(c.one, c.month(-10)), c.now.Add(-day)
	end, charge, events := c.dispute(s.bill.payment, "lost", at)
	return script{events: append(s.events, events...), holds: s.holds(charge, end), endedAt: at, want: c.endedBy(c.one, at)}
}

func disputeWon(c cast) script {
	s := c.sell(c.one, c.month(-10))
	end, charge, events := c.dispute(s.bill.payment, "won", c.now.Add(-day))
	return script{events: append(s.events, events...), holds: s.holds(charge, end), want: c.active(c.one, s.subscription.period)}
}
