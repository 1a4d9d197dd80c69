package settlement

import (
	"context"
	"errors"
	"fmt"
	"time"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

// refund gives the payments of a claimed order back that are to be refunded. What is given back already is asked first, so that
// a repetition after a crash gives back once.
func (s *Settler) refund(ctx context.Context, claimed order.Order, actor string) (order.Order, error) {
	if s.Provider == nil {
		return claimed, ErrNoProvider
	}
	payments, err := s.Store.OrderPayments(ctx, claimed.ID)
	if err != nil {
		return claimed, err
	}
	after := claimed
	for _, p := range payments {
		if p.State != order.PaymentRefunding {
			continue
		}
		refunds, refused, err := s.giveBack(ctx, claimed, p)
		if err != nil {
			return claimed, err
		}
		failpoint.Hit("order_refund_sent")
		if after, err = s.Store.RefundsHeard(ctx, claimed.ID, p.ID, refunds, actor); err != nil {
			return claimed, err
		}
		if refused == "" {
			continue
		}
		after, err = s.change(ctx, claimed.ID, actor, func(o order.Order, payments []order.Payment, at time.Time) (order.Outcome, error) {
			for _, now := range payments {
				if now.ID == p.ID && now.State == order.PaymentRefunding {
					return o.NotGivenBack(payments, p.ID, refused, at), nil
				}
			}
			return order.Outcome{Order: o, Payments: payments}, nil
		})
		if err != nil {
			return claimed, err
		}
	}
	return after, nil
}

// giveBack asks for what is left of a payment. refused says why the provider does not give it back.
func (s *Settler) giveBack(ctx context.Context, o order.Order, p order.Payment) (refunds []store.OrderRefund, refused string, err error) {
	refunds, given, err := s.refundsOf(ctx, p.ID)
	if err != nil || given >= p.Amount {
		return refunds, "", err
	}
	// The same key after a crash, another one after a failure that was written down: the provider would repeat that.
	key := fmt.Sprintf("termkeeper:order:%s:refund:%s:%d", o.ID, p.ID, o.Attempts)
	made, err := s.Provider.Refund(ctx, p.ID, p.Amount-given, key)
	var no *payment.RefusalError
	switch {
	case errors.As(err, &no): // it may have been given back by somebody else meanwhile
		refunds, given, err = s.refundsOf(ctx, p.ID)
		if err == nil && given < p.Amount {
			refused = no.Message
		}
		return refunds, refused, err
	case err != nil:
		return nil, "", err
	}
	refunds = append(refunds, orderRefund(made))
	if made.Status == "failed" || made.Status == "canceled" {
		refused = "the refund is " + made.Status
	}
	return refunds, refused, nil
}

func (s *Settler) refundsOf(ctx context.Context, paymentID string) (refunds []store.OrderRefund, given int64, err error) {
	list, err := s.Provider.Refunds(ctx, paymentID)
	for _, r := range list {
		refunds = append(refunds, orderRefund(r))
		if r.Status != "failed" && r.Status != "canceled" {
			given += r.Amount
		}
	}
	return refunds, given, err
}

func orderRefund(r payment.Refund) store.OrderRefund {
	return store.OrderRefund{
		ID: r.ID, PaymentID: r.PaymentID, ChargeID: r.ChargeID, Status: r.Status, Amount: r.Amount, Currency: r.Currency, Created: r.Created,
	}
}

// Refunded takes a refund that an event told of, where its payment is of an order: whoever made it, the order follows. The error is
// store.ErrNotFound when the payment is not of an order, or payment.ErrNoAnswer: the event is to be tried again.
func (s *Settler) Refunded(ctx context.Context, r payment.Refund) (order.Order, error) {
	id, err := s.Store.OrderOfPayment(ctx, r.PaymentID)
	if err != nil {
		return order.Order{}, err
	}
	refunds := []store.OrderRefund{orderRefund(r)}
	if s.Provider != nil {
		if refunds, _, err = s.refundsOf(ctx, r.PaymentID); err != nil {
			return order.Order{}, err
		}
	}
	return s.Store.RefundsHeard(ctx, id, r.PaymentID, refunds, store.ActorStripe)
}

// DisputeLost takes that a bank took a payment of an order back: it is as good as refunded, and the plan's policy decides on
// what the order gave. The dispute must be stored. The error is store.ErrNotFound when the payment is not of an order.
func (s *Settler) DisputeLost(ctx context.Context, paymentID string) (order.Order, error) {
	id, err := s.Store.OrderOfPayment(ctx, paymentID)
	if err != nil {
		return order.Order{}, err
	}
	return s.Store.RefundsHeard(ctx, id, paymentID, nil, store.ActorStripe)
}
