package simulator

import (
	"maps"
	"net/http"
	"strings"
	"time"
)

// CheckoutFixture is a checkout session in the mode subscription as Stripe would tell of it. Zero fields take the value of one
// that was completed and paid.
type CheckoutFixture struct {
	ID, CustomerID, SubscriptionID string // of the latter two "" is null
	ClientReferenceID              string
	UserID                         string // metadata.user_id; "" leaves it out
	Email, Name                    string // customer_details; both empty is null
	CustomerEmail                  string // what it was made with
	Status                         string // "" is complete
	PaymentStatus                  string // "" is paid
	Created, ExpiresAt             time.Time
	Livemode                       bool
}

// CheckoutEventBody writes an event such as checkout.session.completed, as the body of a webhook in that shape.
func CheckoutEventBody(shape Shape, id, eventType string, created time.Time, about CheckoutFixture) []byte {
	return encode(event{
		id: id, kind: eventType, created: created, livemode: about.Livemode, object: func(Shape) any { return about.object(metadataOf(about.UserID)) },
	}.body(shape))
}

func (c CheckoutFixture) object(metadata map[string]string) map[string]any {
	object := map[string]any{
		"id": c.ID, "object": "checkout.session", "client_reference_id": text(c.ClientReferenceID), "created": seconds(c.Created),
		"customer": text(c.CustomerID), "customer_details": nil, "customer_email": text(c.CustomerEmail), "expires_at": seconds(c.ExpiresAt),
		"livemode": c.Livemode, "metadata": metadata, "mode": "subscription", "payment_intent": nil, "payment_status": "paid", "status": "complete",
		"subscription": text(c.SubscriptionID), "url": nil,
	}
	if c.Status != "" {
		object["status"] = c.Status
	}
	if c.PaymentStatus != "" {
		object["payment_status"] = c.PaymentStatus
	}
	if c.Email != "" || c.Name != "" {
		object["customer_details"] = map[string]any{"email": text(c.Email), "name": text(c.Name), "phone": nil, "address": nil, "tax_exempt": "none", "tax_ids": []any{}}
	}
	if c.Status == "open" {
		object["url"] = "https://checkout.stripe.com/c/pay/" + c.ID
	}
	return object
}

// checkout is one checkout session of the simulated provider.
type checkout struct {
	CheckoutFixture
	metadata     map[string]string
	subscription form // what the subscription is made with
}

func (c *checkout) object() map[string]any { return c.CheckoutFixture.object(maps.Clone(c.metadata)) }

func (s *stripe) createCheckout(f form, _ string) answer {
	lacks := func(name string) answer {
		return refusal(http.StatusBadRequest, "parameter_missing", name, "Missing required param: "+name+".")
	}
	switch price := f.text("line_items[0][price]"); {
	case f.text("mode") == "":
		return lacks("mode")
	case f.text("mode") != "subscription":
		return refusal(http.StatusBadRequest, "", "mode", "Invalid mode: the simulator knows subscription only")
	case f.text("success_url") == "":
		return lacks("success_url")
	case price == "":
		return lacks("line_items[0][price]")
	case s.prices[price].ID == "":
		return noSuch("price", price, "line_items[0][price]")
	}
	if id := f.text("customer"); id != "" {
		if _, ok := s.living(id); !ok {
			return noSuch("customer", id, "customer")
		}
	}
	expires, ok := f.instant("expires_at")
	if !ok {
		return refusal(http.StatusBadRequest, "parameter_invalid_integer", "expires_at", "Invalid integer: expires_at")
	}
	now := s.now()
	c := &checkout{
		CheckoutFixture: CheckoutFixture{
			ID: NewID("cs_test"), CustomerID: f.text("customer"), ClientReferenceID: f.text("client_reference_id"), CustomerEmail: f.text("customer_email"),
			Status: "open", PaymentStatus: "unpaid", Created: now, ExpiresAt: or(expires, now.AddDate(0, 0, 1)),
		},
		metadata: f.metadata(nil), subscription: form{"items[0][price]": {f.text("line_items[0][price]")}},
	}
	for name, values := range f { // subscription_data[metadata][user_id] becomes metadata[user_id]
		if rest, ok := strings.CutPrefix(name, "subscription_data["); ok {
			c.subscription[strings.Replace(rest, "]", "", 1)] = values
		}
	}
	s.checkouts[c.ID] = c
	return found(c.object())
}

func (s *stripe) checkout(_ form, id string) answer {
	c, ok := s.checkouts[id]
	if !ok {
		return missing("checkout.session", id)
	}
	return found(c.object())
}

// CheckoutCompletion is what a customer fills in. Where the session was made with a customer, that one stays.
type CheckoutCompletion struct {
	Email string `json:"email"` // "" is the e-mail address that the session was made with
	Name  string `json:"name"`
}

// complete lets a customer pay: the subscription and, where it is missing, the customer are made and told of, and last of
// all that the session is complete. false when there is no open session of that id.
func (s *stripe) complete(id string, in CheckoutCompletion) (CheckoutFixture, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(s.now())
	c, ok := s.checkouts[id]
	if !ok || c.Status != "open" || !s.now().Before(c.ExpiresAt) {
		return CheckoutFixture{}, false
	}
	c.Email, c.Name = in.Email, in.Name
	if c.Email == "" {
		c.Email = c.CustomerEmail
	}
	if _, ok := s.living(c.CustomerID); !ok {
		made := s.createCustomer(form{"email": {c.Email}, "name": {c.Name}}, "")
		c.CustomerID = idOf(made)
	}
	order := maps.Clone(c.subscription)
	order["customer"] = []string{c.CustomerID}
	made := s.createSubscription(order, "")
	if made.status != http.StatusOK { // its price and customer are there: what is wrong is in subscription_data
		return CheckoutFixture{}, false
	}
	c.SubscriptionID, c.Status, c.PaymentStatus = idOf(made), "complete", "paid"
	if s.subscriptions[c.SubscriptionID].Status == "trialing" {
		c.PaymentStatus = "no_payment_required"
	}
	done := c.object()
	s.publish("checkout.session.completed", s.now(), func(Shape) any { return done }, nil)
	return c.CheckoutFixture, true
}

func idOf(said answer) string {
	object, _ := said.body.(map[string]any)
	id, _ := object["id"].(string)
	return id
}
