package simulator

import (
	"container/heap"
	"time"
)

// incompleteLasts is how long the first payment of a subscription may take.
const incompleteLasts = 23 * time.Hour

// chargeDelay is how long after the rollover Stripe charges: the period has moved by then.
const chargeDelay = time.Hour

// advance sets the simulated clock and lets happen what would have happened meanwhile. It never goes back.
func (s *stripe) advance(to time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to.After(s.now()) {
		s.offset = time.Until(to)
	}
	now := s.now()
	s.settle(now)
	return now
}

// timed is an object to which things happen as time goes by: a subscription or a checkout session.
type timed interface {
	due() time.Time // when something happens next; the zero time for never
	step(s *stripe, at time.Time)
}

// agenda is a heap of objects by what is due first, and of those by the order in which they were made.
type agenda []appointment

type appointment struct {
	at   time.Time
	made int
	with timed
}

func (a agenda) Len() int { return len(a) }

func (a agenda) Less(i, j int) bool {
	return a[i].at.Before(a[j].at) || a[i].at.Equal(a[j].at) && a[i].made < a[j].made
}

func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push is that of heap.Interface.
func (a *agenda) Push(x any) { *a = append(*a, x.(appointment)) }

// Pop is that of heap.Interface.
func (a *agenda) Pop() any {
	last := len(*a) - 1
	popped := (*a)[last]
	*a = (*a)[:last]
	return popped
}

// settle lets everything happen that is due at an instant, oldest first over all objects. Between two changes it looks at
// them only once. The caller holds the lock.
func (s *stripe) settle(now time.Time) {
	if now.Before(s.quietUntil) {
		return
	}
	quietUntil := now.AddDate(100, 0, 0)
	var ahead agenda
	add := func(made int, with timed) {
		switch at := with.due(); {
		case at.IsZero():
		case at.After(now):
			quietUntil = earlier(quietUntil, at)
		default:
			heap.Push(&ahead, appointment{at, made, with})
		}
	}
	for i, e := range s.subscriptions.entries {
		add(i, e.thing)
	}
	for i, e := range s.checkouts.entries {
		add(i, e.thing)
	}
	for len(ahead) > 0 {
		next := heap.Pop(&ahead).(appointment)
		next.with.step(s, next.at)
		add(next.made, next.with)
	}
	s.quietUntil = quietUntil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// due returns when something happens next to the subscription, the zero time for never.
func (sub *subscription) due() time.Time {
	switch sub.Status {
	case "canceled", "incomplete_expired", "paused":
		return time.Time{}
	case "incomplete":
		return sub.StartDate.Add(incompleteLasts)
	}
	next := sub.PeriodEnd
	for _, at := range []time.Time{sub.CancelAt, sub.chargeAt, sub.lateAt, sub.noticeAt()} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// step does the one thing that is due: the end that was set, the charge, the notices, or the rollover.
func (sub *subscription) step(s *stripe, at time.Time) {
	switch {
	case sub.Status == "incomplete":
		sub.Invoice.Status = "void"
		s.invoiced(sub, "invoice.voided", at)
		s.become(sub, "incomplete_expired", at)
	case at.Equal(sub.CancelAt), at.Equal(sub.PeriodEnd) && sub.CancelAtPeriodEnd:
		s.end(sub, at)
	case at.Equal(sub.chargeAt):
		s.collect(sub, at)
	case at.Equal(sub.lateAt):
		sub.lateAt = time.Time{}
		s.invoiced(sub, "invoice.overdue", at)
		s.become(sub, "past_due", at)
	case at.Equal(sub.noticeAt()):
		s.notice(sub, at)
	case sub.Status == "trialing" && sub.afterTrial == "pause":
		s.pause(sub, at)
	case sub.Status == "trialing" && sub.afterTrial == "cancel":
		s.end(sub, at)
	default:
		s.rollOver(sub, at)
	}
}

// rollOver moves the period before anything is paid, as Stripe does. An unpaid subscription goes on rolling.
func (s *stripe) rollOver(sub *subscription, at time.Time) {
	previous := map[string]any{
		"current_period_start": seconds(sub.PeriodStart), "current_period_end": seconds(sub.PeriodEnd), "latest_invoice": text(sub.Invoice.ID),
	}
	anchor := or(sub.anchor, or(sub.TrialEnd, sub.StartDate))
	sub.PeriodStart, sub.PeriodEnd = at, sub.price.after(at, anchor)
	if sub.Status == "trialing" {
		previous["status"] = sub.Status
		sub.Status = "active"
	}
	s.bill(sub, "subscription_cycle", "draft", at, sub.term())
	sub.chargeAt = at.Add(chargeDelay)
	if sub.SendInvoice {
		sub.Invoice.DueDate = sub.chargeAt.AddDate(0, 0, sub.DaysUntilDue)
	}
	s.changed(sub, at, previous)
	s.invoiced(sub, "invoice.created", at)
}

// collect settles the open invoice: paid, or past_due with the end of the new period. One that is sent is past due only when
// nobody has paid it in time; one of a subscription that is unpaid, or whose collection is paused, is neither.
func (s *stripe) collect(sub *subscription, at time.Time) {
	sub.chargeAt = time.Time{}
	if sub.Status == "unpaid" {
		return // its invoices stay drafts
	}
	switch sub.PauseCollection {
	case "void":
		sub.Invoice.Status = "void"
		s.invoiced(sub, "invoice.voided", at)
		return
	case "mark_uncollectible":
		sub.Invoice.Status = "uncollectible"
		s.invoiced(sub, "invoice.marked_uncollectible", at)
		return
	case "keep_as_draft":
		return
	}
	if sub.SendInvoice {
		sub.Invoice.Status = "open"
		s.invoiced(sub, "invoice.finalized", at)
		s.invoiced(sub, "invoice.sent", at)
		if sub.fails {
			sub.lateAt = sub.Invoice.DueDate
			return
		}
	}
	if sub.fails {
		sub.Invoice.Status = "open"
		s.charged(sub, false, at)
		s.invoiced(sub, "invoice.payment_failed", at)
		s.become(sub, "past_due", at)
		return
	}
	s.pay(sub, at)
}

// pay settles the latest invoice with a payment.
func (s *stripe) pay(sub *subscription, at time.Time) {
	sub.chargeAt, sub.lateAt = time.Time{}, time.Time{}
	s.charged(sub, true, at)
	sub.Invoice.Status = "paid"
	s.invoiced(sub, "invoice.paid", at)
	s.invoiced(sub, "invoice.payment_succeeded", at)
	s.become(sub, "active", at)
}

func (s *stripe) become(sub *subscription, status string, at time.Time) {
	if sub.Status == status {
		return
	}
	previous := map[string]any{"status": sub.Status}
	sub.Status = status
	s.changed(sub, at, previous)
}
