package simulator

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// CheckoutFixture is a checkout session as Stripe would tell of it. Zero fields take the value of one that was completed
// and paid.
type CheckoutFixture struct {
	ID, CustomerID, SubscriptionID string // of the latter two "" is null
	ClientReferenceID              string
	UserID                         string            // metadata.user_id; "" leaves it out
	Metadata                       map[string]string // the rest of it
	Email, Name                    string            // customer_details; both empty is null
	CustomerEmail                  string            // what it was made with
	Mode                           string            // "" is subscription
	Status                         string            // "" is complete
	PaymentStatus                  string            // "" is paid
	PaymentIntentID                string            // null until somebody pays
	Amount                         int64             // amount_total, in the smallest unit of the currency
	Currency                       string            // in lower case; "" is usd
	Created, ExpiresAt             time.Time
	Livemode                       bool
}

// CheckoutEventBody writes an event such as checkout.session.completed, as the body of a webhook in that shape.
func CheckoutEventBody(shape Shape, id, eventType string, created time.Time, about CheckoutFixture) []byte {
	return encode(event{id: id, kind: eventType, created: created, livemode: about.Livemode, object: about.write}.body(shape))
}

func (c CheckoutFixture) write(Shape) any {
	metadata := metadataOf(c.UserID)
	maps.Copy(metadata, c.Metadata)
	object := map[string]any{
		"id": c.ID, "object": "checkout.session", "amount_subtotal": c.Amount, "amount_total": c.Amount, "client_reference_id": text(c.ClientReferenceID),
		"created": seconds(c.Created), "currency": orText(c.Currency, "usd"), "customer": text(c.CustomerID), "customer_details": nil,
		"customer_email": text(c.CustomerEmail), "expires_at": seconds(c.ExpiresAt), "invoice": nil, "livemode": c.Livemode, "metadata": metadata,
		"mode": orText(c.Mode, "subscription"), "payment_intent": text(c.PaymentIntentID), "payment_status": orText(c.PaymentStatus, "paid"),
		"status": orText(c.Status, "complete"), "subscription": text(c.SubscriptionID), "url": nil,
	}
	if c.Email != "" || c.Name != "" {
		object["customer_details"] = map[string]any{"email": text(c.Email), "name": text(c.Name), "phone": nil, "address": nil, "tax_exempt": "none", "tax_ids": []any{}}
	}
	if c.Status == "open" {
		object["url"] = "https://checkout.stripe.com/c/pay/" + c.ID
	}
	return object
}

// How soon and how late after it was made a checkout session may expire.
const (
	minCheckout = 30 * time.Minute
	maxCheckout = 24 * time.Hour
)

// checkout is one checkout session of the simulated provider.
type checkout struct {
	CheckoutFixture
	lines        []checkoutLine
	payment      map[string]string // metadata of the payment that is made
	subscription form              // what the subscription is made with
}

// checkoutLine is one thing that is sold in a session.
type checkoutLine struct {
	price    priceFixture
	name     string
	quantity int64
}

func (c *checkout) object() any { return c.write(Shape2023) }

// lineItems is the list that a session has when it is asked for.
func (c *checkout) lineItems() map[string]any {
	data := []any{}
	for n, line := range c.lines {
		total := line.price.UnitAmount * line.quantity
		data = append(data, map[string]any{
			"id": "li_" + c.ID + "_" + strconv.Itoa(n), "object": "item", "amount_discount": 0, "amount_subtotal": total, "amount_tax": 0, "amount_total": total,
			"currency": line.price.Currency, "description": text(line.name), "price": line.price.object(), "quantity": line.quantity,
		})
	}
	return map[string]any{"object": "list", "data": data, "has_more": false, "url": "/v1/checkout/sessions/" + c.ID + "/line_items"}
}

func (s *stripe) createCheckout(f form, _ string) answer {
	now := s.now()
	c := &checkout{
		CheckoutFixture: CheckoutFixture{
			ID: NewID("cs_test"), CustomerID: f.text("customer"), ClientReferenceID: f.text("client_reference_id"), CustomerEmail: f.text("customer_email"),
			Mode: f.text("mode"), Status: "open", PaymentStatus: "unpaid", Created: now, Metadata: f.metadata(nil),
		},
		payment: f.metadataIn("payment_intent_data[metadata]", nil),
	}
	switch {
	case c.Mode == "":
		return lacks("mode")
	case c.Mode != "subscription" && c.Mode != "payment":
		return refusal(http.StatusBadRequest, "", "mode", "Invalid mode: the simulator knows payment and subscription")
	case f.text("success_url") == "":
		return lacks("success_url")
	case f.has("customer") && f.has("customer_email"):
		return refusal(http.StatusBadRequest, "", "customer", "You may only specify one of these parameters: customer, customer_email.")
	case c.Mode == "subscription" && len(c.payment) > 0:
		return refusal(http.StatusBadRequest, "", "payment_intent_data", "You can not pass `payment_intent_data` in `subscription` mode.")
	}
	if c.CustomerID != "" {
		if _, ok := s.living(c.CustomerID); !ok {
			return noSuch("customer", c.CustomerID, "customer")
		}
	}
	if refused, bad := s.sell(c, f); bad {
		return refused
	}
	expires, ok := f.instant("expires_at")
	c.ExpiresAt = or(expires, now.Add(maxCheckout))
	switch {
	case !ok:
		return refusal(http.StatusBadRequest, "parameter_invalid_integer", "expires_at", "Invalid integer: expires_at")
	case c.ExpiresAt.Before(now.Add(minCheckout)):
		return refusal(http.StatusBadRequest, "", "expires_at", "The `expires_at` timestamp must be at least 30 minutes from Checkout Session creation.")
	case c.ExpiresAt.After(now.Add(maxCheckout)):
		return refusal(http.StatusBadRequest, "", "expires_at", "The `expires_at` timestamp must be less than 24 hours from Checkout Session creation.")
	}
	s.checkouts.put(c.ID, c)
	return found(c.object())
}

// sell reads what a session sells.
func (s *stripe) sell(c *checkout, f form) (refused answer, bad bool) {
	for n := 0; f.under("line_items[" + strconv.Itoa(n) + "]"); n++ {
		line, refused, bad := s.line(c.Mode, f, "line_items["+strconv.Itoa(n)+"]")
		if bad {
			return refused, true
		}
		if n > 0 && line.price.Currency != c.Currency {
			return refusal(http.StatusBadRequest, "", "line_items", "All line items must have the same currency."), true
		}
		c.Currency = line.price.Currency
		c.Amount += line.price.UnitAmount * line.quantity
		c.lines = append(c.lines, line)
	}
	if len(c.lines) == 0 {
		return lacks("line_items"), true
	}
	if f.has("subscription_data[trial_period_days]") || f.has("subscription_data[trial_end]") {
		c.Amount = 0
	}
	if c.Mode == "subscription" {
		c.subscription = form{"items[0][price]": {c.lines[0].price.ID}}
		for name, values := range f { // subscription_data[metadata][user_id] becomes metadata[user_id]
			if rest, ok := strings.CutPrefix(name, "subscription_data["); ok {
				c.subscription[strings.Replace(rest, "]", "", 1)] = values
			}
		}
	}
	return answer{}, false
}

// line reads one line item: a price that there is, or, for a payment, one that is made for it.
func (s *stripe) line(mode string, f form, at string) (line checkoutLine, refused answer, bad bool) {
	no := func(said answer) (checkoutLine, answer, bool) { return checkoutLine{}, said, true }
	line.quantity = 1
	if f.has(at+"[quantity]") || mode == "payment" {
		n, err := strconv.ParseInt(f.text(at+"[quantity]"), 10, 64)
		if err != nil || n < 1 {
			return no(refusal(http.StatusBadRequest, "parameter_invalid_integer", at+"[quantity]", "Invalid integer: "+at+"[quantity]"))
		}
		line.quantity = n
	}
	if id := f.text(at + "[price]"); id != "" {
		price, ok := s.prices.get(id)
		switch {
		case !ok:
			return no(noSuch("price", id, at+"[price]"))
		case mode == "payment" && price.Interval != "":
			return no(refusal(http.StatusBadRequest, "", at, "You specified `payment` mode but passed a recurring price. Either switch to `subscription` mode or use only one-time prices."))
		case mode == "subscription" && price.Interval == "":
			return no(refusal(http.StatusBadRequest, "", at, "You must provide at least one recurring price in `subscription` mode when using prices."))
		}
		line.price = price
		return line, answer{}, false
	}
	data := at + "[price_data]"
	if !f.under(data) {
		return no(lacks(at + "[price]"))
	}
	if mode == "subscription" {
		return no(refusal(http.StatusBadRequest, "", data, "The simulator sells subscriptions by a price only."))
	}
	line.name = f.text(data + "[product_data][name]")
	product := f.text(data + "[product]")
	switch _, known := s.products.get(product); {
	case product == "" && line.name == "":
		return no(lacks(data + "[product_data][name]"))
	case product != "" && !known:
		return no(noSuch("product", product, data+"[product]"))
	}
	line.price = priceFixture{ID: NewID("price"), Product: orText(product, NewID("prod")), IntervalCount: 1, Created: s.now()}
	if refused, bad = line.price.cost(f, data+"[currency]", data+"[unit_amount]"); bad {
		return no(refused)
	}
	return line, answer{}, false
}

func (s *stripe) checkout(_ form, id string) answer {
	c, ok := s.checkouts.get(id)
	if !ok {
		return missing("checkout.session", id)
	}
	return found(c.object())
}

func (s *stripe) listCheckouts(f form, _ string) answer {
	return list(f, "/v1/checkout/sessions", &s.checkouts, func(c *checkout) bool {
		for name, value := range map[string]string{
			"payment_intent": c.PaymentIntentID, "subscription": c.SubscriptionID, "customer": c.CustomerID, "status": c.Status, "customer_details[email]": c.Email,
		} {
			if f.has(name) && f.text(name) != value {
				return false
			}
		}
		return f.created(c.Created)
	}, func(c *checkout) any { return c.object() })
}

// expireCheckout closes a session, so that nobody can pay any more.
func (s *stripe) expireCheckout(_ form, id string) answer {
	c, ok := s.checkouts.get(id)
	if !ok {
		return missing("checkout.session", id)
	}
	if c.Status != "open" {
		return refusal(http.StatusBadRequest, "checkout_session_not_open", "",
			"Only Checkout Sessions with a status in [\"open\"] can be expired. This Checkout Session has a status of `"+c.Status+"`.")
	}
	s.close(c, s.now())
	return found(c.object())
}

func (s *stripe) close(c *checkout, at time.Time) {
	c.Status = "expired"
	s.tell("checkout.session.expired", at, c.CheckoutFixture)
}

// due is when an open session expires by itself.
func (c *checkout) due() time.Time {
	if c.Status != "open" {
		return time.Time{}
	}
	return c.ExpiresAt
}

func (c *checkout) step(s *stripe, at time.Time) { s.close(c, at) }

func lacks(name string) answer {
	return refusal(http.StatusBadRequest, "parameter_missing", name, "Missing required param: "+name+".")
}

func idOf(said answer) string {
	object, _ := said.body.(map[string]any)
	id, _ := object["id"].(string)
	return id
}
