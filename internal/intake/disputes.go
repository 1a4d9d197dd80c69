package intake

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

// dispute: a bank wants a payment back, or has decided. While it is open access goes on; what is lost is money taken back.
func (s *settling) dispute(ctx context.Context, r read) error {
	id, chargeID := r.money.of()
	p, err := s.paymentOf(ctx, r)
	if err != nil && !errors.Is(err, errUnmapped) {
		return s.notOurs(ctx, r, err)
	}
	unmapped := err != nil
	said := r.money.dispute
	if s.in.settings.Money != nil {
		if said, err = askMoney(ctx, s, said.ID, s.in.settings.Money.Dispute); err != nil {
			return err
		}
	}
	seen := store.SeenDispute{
		ID: said.ID, PaymentID: id, ChargeID: said.ChargeID, Status: said.Status, Reason: said.Reason, Amount: said.Amount, Currency: said.Currency,
		Created: said.Created, Said: r.told(),
	}
	if said.Status != r.money.dispute.Status { // the answer tells what is newer than the event
		seen.Said = time.Now().UTC().Truncate(time.Second)
	}
	exists := false
	if p.SubscriptionID != "" { // before the alert, which names it
		if _, exists, err = s.rowOf(ctx, p.SubscriptionID); err != nil {
			return err
		}
	}
	if err := s.in.store.KeepDispute(ctx, seen, s.in.settings.Money != nil); err != nil {
		return err
	}
	if r.kind == eventDisputeCreated {
		s.in.log.Warn("a payment is disputed", zap.String("dispute", seen.ID), zap.String("status", seen.Status), zap.Int64("amount", seen.Amount), zap.String("currency", seen.Currency))
	}
	switch {
	case p.OrderID != "" && seen.Status == subscription.DisputeLost:
		return s.orderMoney(ctx, r, func(orders *settlement.Settler) error {
			_, err := orders.DisputeLost(ctx, id)
			return err
		})
	case p.OrderID != "":
		return s.done(ctx, r, "of_an_order")
	case unmapped, !exists:
		return s.park(ctx, r, id)
	}
	if err := s.in.store.MarkDisputed(ctx, p.SubscriptionID); err != nil {
		return err
	}
	if seen.Status != subscription.DisputeLost {
		return s.done(ctx, r, "")
	}
	return s.judge(ctx, r, id, chargeID)
}
