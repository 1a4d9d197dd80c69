package simulator

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

// CheckoutCompletion is what a customer fills in. Where the session was made with a customer, that one stays.
type CheckoutCompletion struct {
	Email string `json:"email"` // "" is the e-mail address that the session was made with
	Name  string `json:"name"`
}

// complete lets a customer pay: the subscription and, where it is missing, the customer are made and told of, and last of
// all that the session is complete. false when there is no open session of that id that sells a subscription.
func (s *stripe) complete(id string, in CheckoutCompletion) (CheckoutFixture, bool) {
	defer s.steer()()
	c, ok := s.checkouts.get(id)
	if !ok || c.Status != "open" || c.Mode != "subscription" {
		return CheckoutFixture{}, false
	}
	c.filledIn(in.Email, in.Name)
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
	if sub, _ := s.subscriptions.get(c.SubscriptionID); sub.Status == "trialing" {
		c.PaymentStatus = "no_payment_required"
	}
	s.tell("checkout.session.completed", s.now(), c.CheckoutFixture)
	return c.CheckoutFixture, true
}

func (c *checkout) filledIn(email, name string) {
	c.Email, c.Name = orText(email, c.CustomerEmail), name
}

// PayOptions say how a customer pays. The zero value pays what is asked for, at once.
type PayOptions struct {
	Amount   int64  `json:"amount"`   // captured, in the smallest unit; 0 is what is asked for
	Currency string `json:"currency"` // "" is what is asked for
	// Async: the session is complete, and the payment is processing until FinishPayment.
	Async bool `json:"async"`
	// Fail: the attempt is declined. The session stays open.
	Fail bool `json:"fail"`
	// DropWebhook: none of the events is ever sent. They are in the list of events, as not delivered.
	DropWebhook bool   `json:"drop_webhook"`
	Email       string `json:"email"` // "" is the e-mail address that the session was made with
	Name        string `json:"name"`
}

// pay lets a customer pay in an open session of the mode payment.
func (s *stripe) payCheckout(id string, in PayOptions) (PaymentIntentFixture, error) {
	defer s.steer()()
	c, ok := s.checkouts.get(id)
	switch {
	case !ok:
		return PaymentIntentFixture{}, fmt.Errorf("there is no checkout session %q", id)
	case c.Mode != "payment":
		return PaymentIntentFixture{}, fmt.Errorf("checkout session %q sells a subscription: it is completed, not paid", id)
	case c.Status != "open":
		return PaymentIntentFixture{}, fmt.Errorf("checkout session %q is %s", id, c.Status)
	}
	defer s.drop(in.DropWebhook)()
	c.filledIn(in.Email, in.Name)
	now := s.now()
	if c.Amount == 0 && in.Amount == 0 {
		c.Status, c.PaymentStatus = "complete", "no_payment_required"
		s.tell("checkout.session.completed", now, c.CheckoutFixture)
		return PaymentIntentFixture{}, nil
	}
	wanted := c.intent(in)
	p, known := s.intents.get(c.PaymentIntentID) // of an attempt that was declined
	if !known {
		p = s.begin(wanted, now)
		c.PaymentIntentID = p.ID
	}
	p.Amount, p.Currency = wanted.Amount, wanted.Currency
	switch {
	case in.Fail:
		s.decline(p, now)
		return *p, nil
	case in.Async:
		p.Status = "processing"
		s.tell("payment_intent.processing", now, *p)
	default:
		s.capture(p, now)
		c.PaymentStatus = "paid"
	}
	c.Status = "complete"
	s.tell("checkout.session.completed", now, c.CheckoutFixture)
	return *p, nil
}

// intent is the payment that a session asks for.
func (c *checkout) intent(in PayOptions) PaymentIntentFixture {
	amount := in.Amount
	if amount == 0 {
		amount = c.Amount
	}
	return PaymentIntentFixture{
		CustomerID: c.CustomerID, Amount: amount, Currency: strings.ToLower(orText(in.Currency, c.Currency)), Metadata: maps.Clone(c.payment),
	}
}

// extraPayment captures money for the order of a session without the session, whatever its state.
func (s *stripe) extraPayment(id string, in PayOptions) (PaymentIntentFixture, error) {
	defer s.steer()()
	c, ok := s.checkouts.get(id)
	if !ok {
		for _, other := range s.checkouts.all() { // the newest one of the order
			if other.Metadata["order_id"] == id && id != "" {
				c = other
			}
		}
	}
	if c == nil {
		return PaymentIntentFixture{}, fmt.Errorf("there is no checkout session, and none of an order, %q", id)
	}
	defer s.drop(in.DropWebhook)()
	now := s.now()
	p := s.begin(c.intent(in), now)
	switch {
	case in.Fail:
		s.decline(p, now)
	case in.Async:
		p.Status = "processing"
		s.tell("payment_intent.processing", now, *p)
	default:
		s.capture(p, now)
	}
	return *p, nil
}

// finishPayment ends a payment that is processing, and tells the session of it.
func (s *stripe) finishPayment(id string, succeeds, dropWebhook bool) (PaymentIntentFixture, error) {
	defer s.steer()()
	p, ok := s.intents.get(id)
	if !ok || p.Status != "processing" {
		return PaymentIntentFixture{}, fmt.Errorf("there is no payment %q that is processing", id)
	}
	defer s.drop(dropWebhook)()
	now := s.now()
	kind := "checkout.session.async_payment_succeeded"
	if succeeds {
		s.capture(p, now)
	} else {
		kind = "checkout.session.async_payment_failed"
		s.decline(p, now)
	}
	for _, c := range s.checkouts.all() {
		if c.PaymentIntentID == id {
			s.sessionPaid(c, kind, succeeds, now)
		}
	}
	return *p, nil
}

func (s *stripe) sessionPaid(c *checkout, kind string, paid bool, at time.Time) {
	if paid {
		c.PaymentStatus = "paid"
	}
	s.tell(kind, at, c.CheckoutFixture)
}
