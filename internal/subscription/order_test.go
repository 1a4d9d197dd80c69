package subscription_test

import (
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/subscription"
)

// told is one event of a subscription's life, with the second in which it happened.
type told struct {
	subscription.Provider
	created time.Time
	deleted bool
}

// lives are sets of ten events. In each, period 2 is renewed, and past due for two periods; they end differently.
func lives() map[string][]told {
	other := func(p *subscription.Provider) { p.PriceIDs = []string{"price_2"} }
	toEnd := func(p *subscription.Provider) { other(p); p.CancelAtPeriodEnd = true }
	p5, p6 := p4.AddDate(0, 1, 0), p4.AddDate(0, 2, 0)
	common := []told{
		{says("incomplete", p1, p2), p1, false},
		{says("active", p1, p2), p1.Add(time.Minute), false},
		{says("active", p2, p3), p2, false},
		{says("past_due", p2, p3), p2.Add(time.Hour), false},
		{says("past_due", p3, p4), p3.Add(2 * time.Second), false},
		{says("active", p3, p4), p3.Add(5 * day), false},
	}
	change := told{says("active", p3, p4, other), p3.Add(6 * day), false}
	return map[string][]told{
		"ends deleted": append(common[:6:6], change,
			told{says("active", p3, p4, toEnd), p3.Add(7 * day), false},
			told{says("active", p3, p4, other), p3.Add(8 * day), false},
			told{says("canceled", p3, p4, other, func(p *subscription.Provider) { p.EndedAt = p3.Add(9 * day) }), p3.Add(9 * day), true}),
		"ends active": append(common[:6:6], change,
			told{says("active", p3, p4, toEnd), p3.Add(7 * day), false},
			told{says("active", p3, p4, other), p3.Add(8 * day), false},
			told{says("active", p4, p5, other), p4, false}),
		"ends past due": append(common[:6:6], change,
			told{says("active", p4, p5, other), p4, false},
			told{says("past_due", p4, p5, other), p4.Add(time.Hour), false},
			told{says("past_due", p5, p6, other), p5.Add(time.Second), false}),
		"ends set to end while unpaid": append(common[:6:6], change,
			told{says("past_due", p4, p5, other), p4.Add(time.Hour), false},
			told{says("past_due", p4, p5, toEnd), p4.Add(time.Hour + time.Minute), false},
			told{says("unpaid", p5, p6, toEnd), p5.Add(time.Second), false}),
	}
}

// withTies puts pairs of events into one second.
func withTies(events []told) []told {
	list := append([]told(nil), events...)
	for _, pair := range [][2]int{{0, 1}, {2, 3}, {8, 9}} {
		list[pair[0]].created = list[pair[1]].created
	}
	return list
}

// twice adds copies of some events under other ids.
func twice(events []told) []told {
	return append(events[:len(events):len(events)], events[1], events[4])
}

// plansBy is where the two prices lead.
var plansBy = map[string]*subscription.Plan{"price_1": plan, "price_2": {Key: "team", Grace: 2 * grace}}

// receiver is where events arrive: what the database and the intake do, with a provider that answers or not.
type receiver struct {
	events    []told
	reachable bool
	received  time.Time
}

// state is what is known after some events have come. It is a key of a map: everything that the future depends on.
type state struct {
	come     int // bits of the events that came
	answered bool
	known    bool
	row      subscription.Subscription
}

func (r receiver) observe(i int, applied bool) subscription.Observation {
	e := r.events[i]
	return subscription.Observation{
		ID: fmt.Sprintf("%03d", i), Provider: e.Provider, Plan: plansBy[e.PriceIDs[0]], Applied: applied,
		News: subscription.News{Created: e.created, Received: r.received, Deleted: e.deleted},
	}
}

// last is what the provider answers: all has happened by now.
func (r receiver) answer() subscription.Observation {
	e := r.events[9]
	return subscription.Observation{
		ID: "answer", Provider: e.Provider, Plan: plansBy[e.PriceIDs[0]],
		News: subscription.News{Created: r.received.Add(-time.Second), Received: r.received, Fetched: true},
	}
}

// hear is the state after event i has come, too.
func (r receiver) hear(s state, i int) state {
	var row *subscription.Subscription
	if s.known {
		row = &s.row
	}
	came := r.observe(i, false)
	outcome := subscription.Apply(row, came.Provider, came.News, came.Plan, leeway)
	next := s
	next.come |= 1 << i
	if outcome.Fetch {
		question := subscription.Question{Asks: []subscription.Observation{came}}
		for j := range r.events {
			if next.come&(1<<j) != 0 {
				question.Said = append(question.Said, r.observe(j, j != i))
			}
		}
		if answer := r.answer(); r.reachable {
			question.Answer = &answer
			next.answered = true
		}
		if next.answered {
			question.Said = append(question.Said, r.answer())
		}
		outcome = subscription.Settle(row, question, r.received, leeway)
	}
	if outcome.Skip == subscription.SkipNone {
		next.row, next.known = outcome.Next, true
	}
	if outcome.Mark && next.known {
		next.row.NeedsReconcile = true
	}
	return next
}

// everyOrder walks all orders in which the events can come. What follows depends on a state alone, so orders that have
// led to the same state are gone on with together: nothing is left out, and ten events take no 3,628,800 walks.
func (r receiver) everyOrder() (ends []state, states int) {
	seen := map[state]bool{{}: true}
	frontier := []state{{}}
	for len(frontier) > 0 {
		s := frontier[len(frontier)-1]
		frontier = frontier[:len(frontier)-1]
		if bits.OnesCount(uint(s.come)) == len(r.events) {
			ends = append(ends, s)
			continue
		}
		for i := range r.events {
			if s.come&(1<<i) != 0 {
				continue
			}
			if next := r.hear(s, i); !seen[next] {
				seen[next] = true
				frontier = append(frontier, next)
			}
		}
	}
	return ends, len(seen)
}

func (r receiver) inOrder() state {
	var s state
	for i := range r.events[:10] {
		s = r.hear(s, i)
	}
	return s
}

// terms is the row without how it was learned.
func terms(s state) subscription.Subscription {
	row := s.row
	row.TruthAt, row.NeedsReconcile = time.Time{}, false
	return row
}

func TestEveryOrderEndsInOneRow(t *testing.T) {
	t.Parallel()
	received := p4.AddDate(0, 6, 0)
	for name, events := range lives() {
		for _, c := range []struct {
			name      string
			events    []told
			reachable bool
		}{
			{"no answer", events, false},
			{"no answer, duplicates", twice(events), false},
			{"no answer, ties", withTies(events), false},
			{"answer", events, true},
			{"answer, duplicates", twice(events), true},
			{"answer, ties", withTies(events), true},
			{"answer, ties and duplicates", twice(withTies(events)), true},
		} {
			if len(c.events) > 10 && name != "ends past due" && name != "ends deleted" {
				continue // twelve events have four times the states of ten; two lives are enough of that
			}
			t.Run(name+": "+c.name, func(t *testing.T) {
				t.Parallel()
				r := receiver{c.events, c.reachable, received}
				want := terms(r.inOrder())
				ends, states := r.everyOrder()
				require.GreaterOrEqual(t, states, 1<<10)
				for _, end := range ends {
					require.True(t, end.known)
					require.Equal(t, want, terms(end))
				}
				t.Logf("%d states, %d ends", states, len(ends))
			})
		}
	}
}
