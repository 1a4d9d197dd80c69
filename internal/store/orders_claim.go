package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/order"
)

const orderFree = ` AND (leased_until IS NULL OR leased_until <= $1)`

// What the jobs claim. Each is repeated in the write. A pending order that became overdue since it was asked for is due at
// once, whatever pause it had.
const (
	dueToAsk     = `status = 'pending' AND next_attempt_at <= $1 AND expires_at > $1` + orderFree
	dueToClose   = `status = 'pending' AND expires_at <= $1 AND (next_attempt_at <= $1 OR asked_at IS NULL OR asked_at < expires_at)` + orderFree
	dueToFinish  = `status IN ('paid', 'fulfilling', 'refunding') AND next_attempt_at <= $1` + orderFree
	claimedOrder = ` RETURNING ` + orderColumns

	// takeOrders moves the next attempt before the work: a process that dies leaves its orders to others when their leases pass.
	takeOrders = `UPDATE payment_orders o SET status = CASE WHEN status = 'paid' THEN 'fulfilling' ELSE status END,
	leased_until = $1::timestamptz + $2::interval, lease_owner = $3, next_attempt_at = $1::timestamptz + $2::interval, version = version + 1, updated_at = $1
WHERE ctid = ANY (ARRAY(SELECT ctid FROM payment_orders WHERE `

	claimToAsk    = takeOrders + dueToAsk + ` ORDER BY next_attempt_at, id LIMIT $4 FOR UPDATE SKIP LOCKED)) AND ` + dueToAsk + claimedOrder
	claimToClose  = takeOrders + dueToClose + ` ORDER BY expires_at, id LIMIT $4 FOR UPDATE SKIP LOCKED)) AND ` + dueToClose + claimedOrder
	claimToFinish = takeOrders + dueToFinish + ` ORDER BY leased_until, id LIMIT $4 FOR UPDATE SKIP LOCKED)) AND ` + dueToFinish + claimedOrder
)

// OrderWork is a kind of work that the jobs claim orders for.
type OrderWork string

// The kinds of work.
const (
	OrdersToAsk    OrderWork = "ask"    // pending, before their deadline
	OrdersToClose  OrderWork = "close"  // pending, past their deadline
	OrdersToFinish OrderWork = "finish" // paid, or left behind while they were fulfilled or refunded
)

func (w OrderWork) claim() string {
	switch w {
	case OrdersToAsk:
		return claimToAsk
	case OrdersToClose:
		return claimToClose
	default:
		return claimToFinish
	}
}

// leaseToken names one claim: an order that was claimed anew by the same process is no longer the earlier claim's.
func leaseToken(owner string) string { return owner + "/" + NewID() }

// ClaimOrders leases at most limit due orders and returns them as they are then. A paid one is Fulfilling by it. What others
// hold is left out.
func (s *Store) ClaimOrders(ctx context.Context, work OrderWork, owner string, limit int, lease time.Duration) ([]order.Order, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return nil, err
	}
	list, err := collectOrders(s.pool.Query(ctx, work.claim(), timestamptz(now), lease, leaseToken(owner), limit))
	if err != nil {
		return nil, fmt.Errorf("claiming orders to %s: %w", work, err)
	}
	return list, nil
}

// claimOrder takes one that is under way, whatever its pause: somebody has just brought it there, or asks for it.
const claimOrder = `UPDATE payment_orders o SET status = CASE WHEN status = 'paid' THEN 'fulfilling' ELSE status END,
	leased_until = clock_timestamp() + $2::interval, lease_owner = $3, next_attempt_at = clock_timestamp() + $2::interval, version = version + 1, updated_at = clock_timestamp()
WHERE id = $1 AND status IN ('paid', 'fulfilling', 'refunding') AND (leased_until IS NULL OR leased_until <= clock_timestamp())` + claimedOrder

// ClaimOrder leases one order that is under way. ErrConflict when it is not, or somebody else has it.
func (s *Store) ClaimOrder(ctx context.Context, id, owner string, lease time.Duration) (order.Order, error) {
	list, err := collectOrders(s.pool.Query(ctx, claimOrder, id, lease, leaseToken(owner)))
	if err != nil {
		return order.Order{}, fmt.Errorf("claiming order %s: %w", id, err)
	}
	if len(list) == 0 {
		return order.Order{}, ErrConflict
	}
	return list[0], nil
}

const returnOrder = `UPDATE payment_orders SET leased_until = NULL, lease_owner = NULL, next_attempt_at = now() + $3::interval,
	version = version + 1, updated_at = now() WHERE id = $1 AND lease_owner = $2`

// ReturnOrder gives a claimed order back that was not worked on, to be taken up again after the pause.
func (s *Store) ReturnOrder(ctx context.Context, o order.Order, pause time.Duration) error {
	if _, err := s.pool.Exec(ctx, returnOrder, o.ID, o.LeaseOwner, pause); err != nil {
		return fmt.Errorf("giving order %s back: %w", o.ID, err)
	}
	return nil
}

// askOrder lets one caller in an interval ask the provider about an order.
const askOrder = `UPDATE payment_orders o SET asked_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = $1 AND (asked_at IS NULL OR asked_at <= clock_timestamp() - $2::interval)` + claimedOrder

// AskOrder takes the right to ask the provider about an order now. ErrConflict when somebody asked within the interval.
func (s *Store) AskOrder(ctx context.Context, id string, interval time.Duration) (order.Order, error) {
	list, err := collectOrders(s.pool.Query(ctx, askOrder, id, interval))
	if err != nil {
		return order.Order{}, fmt.Errorf("asking about order %s: %w", id, err)
	}
	if len(list) == 0 {
		return order.Order{}, ErrConflict
	}
	return list[0], nil
}

const providerPause = `SELECT failures > 0, coalesce(paused_until > clock_timestamp(), false) FROM provider_pauses WHERE provider = 'stripe'`

// probeOrder lets the order that waits the longest try whether the provider is back.
const probeOrder = `UPDATE payment_orders SET next_attempt_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = (SELECT id FROM payment_orders WHERE status = 'pending' AND unanswered_since IS NOT NULL AND leased_until IS NULL
	ORDER BY expires_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) AND next_attempt_at > clock_timestamp()`

// ProviderPaused reports whether the jobs are to leave the provider alone now. When a pause is over, one order that had no answer is due
// whatever its own pause says: it tries whether the provider is back.
func (s *Store) ProviderPaused(ctx context.Context) (bool, error) {
	var failing, paused bool
	err := s.pool.QueryRow(ctx, providerPause).Scan(&failing, &paused)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil && failing && !paused {
		_, err = s.pool.Exec(ctx, probeOrder)
	}
	if err != nil {
		return false, fmt.Errorf("reading whether the provider is paused: %w", err)
	}
	return paused, nil
}

// pauseProvider: 5 s, twice as long each time, a minute at most; longer only where the provider says so.
const pauseProvider = `UPDATE provider_pauses SET failures = failures + 1, last_error = $2, updated_at = clock_timestamp(),
	paused_until = clock_timestamp() + GREATEST($1::interval, LEAST(interval '1 minute', interval '5 seconds' * (2 ^ LEAST(failures, 10))))
WHERE provider = 'stripe'`

// PauseProvider lets all jobs leave the provider alone for a while: it is down, or asked for it.
func (s *Store) PauseProvider(ctx context.Context, retryAfter time.Duration, failure string) error {
	if _, err := s.pool.Exec(ctx, pauseProvider, retryAfter, failure); err != nil {
		return fmt.Errorf("pausing the provider: %w", err)
	}
	return nil
}

const reviveProvider = `UPDATE provider_pauses SET failures = 0, paused_until = NULL, last_error = NULL, updated_at = clock_timestamp()
WHERE provider = 'stripe' AND failures > 0`

// hurryOrders: what had no answer while the provider was down need not sit out its pause.
const hurryOrders = `UPDATE payment_orders SET next_attempt_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE status = 'pending' AND unanswered_since IS NOT NULL AND next_attempt_at > clock_timestamp() AND leased_until IS NULL`

// ReviveProvider ends the pause: the provider has answered. Orders that had no answer are due at once.
func (s *Store) ReviveProvider(ctx context.Context) error {
	tag, err := s.pool.Exec(ctx, reviveProvider)
	if err == nil && tag.RowsAffected() > 0 {
		_, err = s.pool.Exec(ctx, hurryOrders)
	}
	if err != nil {
		return fmt.Errorf("ending the pause of the provider: %w", err)
	}
	return nil
}
