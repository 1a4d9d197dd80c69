package settlement

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

// Evidence is what an event told of an order. Exactly one of Session and Payment is set.
type Evidence struct {
	Session *payment.CheckoutSession
	Payment *payment.Payment
}

func (e Evidence) orderID() string {
	if e.Session != nil {
		return e.Session.OrderID
	}
	return e.Payment.OrderID
}

// Take settles an order that an event tells of. What the event says only makes us ask; where no key is configured the event, which
// is signed, is all there is. The error is store.ErrNotFound when the order is not ours, or payment.ErrNoAnswer: the event is to be
// tried again.
func (s *Settler) Take(ctx context.Context, e Evidence) (order.Order, error) {
	o, err := s.orderOf(ctx, e)
	if err != nil {
		return o, err
	}
	answer, err := s.heard(ctx, &o, e)
	if err != nil {
		return o, err
	}
	return s.settle(ctx, o.ID, answer, store.ActorStripe)
}

func (s *Settler) orderOf(ctx context.Context, e Evidence) (order.Order, error) {
	if id := e.orderID(); uuid.Validate(id) == nil {
		return s.Store.Order(ctx, id)
	}
	if e.Session == nil {
		return order.Order{}, store.ErrNotFound
	}
	return s.Store.OrderOfSession(ctx, e.Session.ID)
}

// heard is the provider's answer about the order of an event.
func (s *Settler) heard(ctx context.Context, o *order.Order, e Evidence) (order.Answer, error) {
	if s.Provider == nil {
		return e.alone(*o)
	}
	if e.Session != nil && e.Session.ID != o.SessionID {
		if o.SessionID != "" { // a second checkout of the order, whose making was not answered: its money counts, its end does not
			other, _, err := s.Provider.Checkout(ctx, e.Session.ID)
			if err != nil {
				return order.Answer{}, err
			}
			answer, err := answerOf(*o, other)
			if answer.Checkout != order.Done {
				answer.Checkout = order.Open
			}
			return answer, err
		}
		attached, err := s.Store.AttachCheckout(ctx, o.ID, e.Session.ID, e.Session.URL)
		if err != nil {
			return order.Answer{}, err
		}
		*o = attached
	}
	answer, err := s.ask(ctx, o, false)
	if err != nil && (e.Payment == nil || !errors.Is(err, ErrNoCheckout)) {
		return answer, err
	}
	if e.Payment != nil && !slices.ContainsFunc(answer.Payments, func(p order.Payment) bool { return p.ID == e.Payment.ID }) {
		return answer, s.addPayments(ctx, *o, &answer)
	}
	return answer, nil
}

// alone takes a signed event at its word. A session of an event names its payment by its id only.
func (e Evidence) alone(o order.Order) (order.Answer, error) {
	if e.Payment != nil {
		answer := order.Answer{Checkout: order.Open}
		if e.Payment.Captured() {
			answer.Payments = []order.Payment{captured(*e.Payment)}
		}
		return answer, nil
	}
	session := *e.Session
	if session.PaymentStatus == "paid" && len(session.Payments) == 0 && session.PaymentIntentID != "" {
		session.Payments = []payment.Payment{{
			ID: session.PaymentIntentID, Status: "succeeded", Amount: session.Amount, Currency: session.Currency, Created: session.Created,
		}}
	}
	return answerOf(o, session)
}
