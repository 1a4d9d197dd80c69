package simulator

import "time"

// CustomerFixture is a customer as Stripe would tell of it.
type CustomerFixture struct {
	ID, Email, Name, UserID string // UserID is metadata.user_id; "" leaves it out
	Created                 time.Time
	Livemode                bool
}

// CustomerEventBody writes an event such as customer.deleted, as the body of a webhook in that shape.
func CustomerEventBody(shape Shape, id, eventType string, created time.Time, about CustomerFixture) []byte {
	return encode(event{
		id: id, kind: eventType, created: created, livemode: about.Livemode, object: func(Shape) any { return about.object() },
	}.body(shape))
}

func (c CustomerFixture) object() map[string]any {
	return map[string]any{
		"id": c.ID, "object": "customer", "balance": 0, "created": seconds(c.Created), "currency": "usd", "delinquent": false,
		"email": text(c.Email), "name": text(c.Name), "livemode": c.Livemode, "metadata": metadataOf(c.UserID),
	}
}

// customer is one customer of the simulated provider.
type customer struct {
	CustomerFixture
	metadata map[string]string
	deleted  bool
}

// object is what a fetch sees: of a deleted customer only that it is.
func (c *customer) object() map[string]any {
	if c.deleted {
		return map[string]any{"id": c.ID, "object": "customer", "deleted": true}
	}
	object := c.CustomerFixture.object()
	object["metadata"] = c.metadata
	return object
}

// living is the customer of that id that was not deleted.
func (s *stripe) living(id string) (*customer, bool) {
	c, ok := s.customers.get(id)
	return c, ok && !c.deleted
}

func (s *stripe) createCustomer(f form, _ string) answer {
	c := &customer{
		CustomerFixture: CustomerFixture{ID: NewID("cus"), Email: f.text("email"), Name: f.text("name"), Created: s.now()},
		metadata:        f.metadata(nil),
	}
	s.customers.put(c.ID, c)
	return found(c.object())
}

func (s *stripe) customer(_ form, id string) answer {
	c, ok := s.customers.get(id)
	if !ok {
		return missing("customer", id)
	}
	return found(c.object())
}

func (s *stripe) listCustomers(f form, _ string) answer {
	return list(f, "/v1/customers", &s.customers, func(c *customer) bool {
		return !c.deleted && (!f.has("email") || c.Email == f.text("email")) && f.created(c.Created)
	}, func(c *customer) any { return c.object() })
}

func (s *stripe) updateCustomer(f form, id string) answer {
	c, ok := s.living(id)
	if !ok {
		return missing("customer", id)
	}
	if f.has("email") {
		c.Email = f.text("email")
	}
	if f.has("name") {
		c.Name = f.text("name")
	}
	c.metadata = f.metadata(c.metadata)
	return found(c.object())
}

// deleteCustomer ends the customer's subscriptions at once, as Stripe does, and tells of each of them.
func (s *stripe) deleteCustomer(_ form, id string) answer {
	c, ok := s.living(id)
	if !ok {
		return missing("customer", id)
	}
	now := s.now()
	for _, sub := range s.subscriptions.all() {
		if sub.CustomerID == c.ID && sub.Status != "canceled" && sub.Status != "incomplete_expired" {
			s.end(sub, now)
		}
	}
	last := *c
	c.deleted = true
	s.publish("customer.deleted", now, func(Shape) any { return last.object() }, nil)
	return found(c.object())
}
