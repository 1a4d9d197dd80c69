package simulator

import (
	"slices"
	"strings"
	"time"
)

// How many events the list has: those of 30 days, as Stripe, and no more than fit into a test's memory.
const (
	eventsKept = 30 * 24 * time.Hour
	maxEvents  = 200_000
)

// forget takes the events off that Stripe would not list any more.
func (s *stripe) forget(now time.Time) {
	for n := len(s.events.entries); n > 0; n-- {
		if n <= maxEvents && now.Sub(s.events.entries[0].thing.created) <= eventsKept {
			return
		}
		s.courier.forget(s.events.takeOldest().id)
	}
}

// event writes an event as a fetch sees it: in the shape of the version that the caller sent.
func (s *stripe) event(_ form, id string) answer {
	s.forget(s.now())
	e, ok := s.events.get(id)
	if !ok {
		return missing("event", id)
	}
	return found(s.told(e))
}

// told is an event with how many endpoints have not taken it yet.
func (s *stripe) told(e event) any {
	body := e.body(Shape2023)
	body["pending_webhooks"] = 0
	if s.courier.owes(e.id) {
		body["pending_webhooks"] = 1
	}
	return body
}

func (s *stripe) listEvents(f form, _ string) answer {
	s.forget(s.now())
	types := f.list("types")
	if one := f.text("type"); one != "" {
		types = append(types, one)
	}
	success := f.text("delivery_success")
	return list(f, "/v1/events", &s.events, func(e event) bool {
		return !e.thin && (len(types) == 0 || slices.ContainsFunc(types, func(t string) bool { return matches(t, e.kind) })) &&
			f.created(e.created) && (success == "" || s.courier.owes(e.id) == (success == "false"))
	}, s.told)
}

// matches tells whether a type fits; "customer.subscription.*" takes a whole family.
func matches(pattern, kind string) bool {
	if family, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(kind, family)
	}
	return pattern == kind
}
