package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/order"
)

const paymentsOfOrders = `SELECT order_id, external_id, charge_id, customer_id, amount, refunded_amount, currency, captured_at, state, reason FROM payments
WHERE order_id = ANY ($1::uuid[]) AND captured_at IS NOT NULL ORDER BY captured_at, external_id`

// PaymentsOfOrders are the captured payments of some orders that are known here, by the id of the order, the earliest first.
func (s *Store) PaymentsOfOrders(ctx context.Context, orderIDs []string) (map[string][]order.Payment, error) {
	type row struct {
		OrderID string
		orderPaymentRow
	}
	rows, err := s.pool.Query(ctx, paymentsOfOrders, orderIDs)
	if err != nil {
		return nil, fmt.Errorf("reading the payments of orders: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		return nil, fmt.Errorf("reading the payments of orders: %w", err)
	}
	payments := map[string][]order.Payment{}
	for _, r := range list {
		payments[r.OrderID] = append(payments[r.OrderID], r.domain())
	}
	return payments, nil
}
