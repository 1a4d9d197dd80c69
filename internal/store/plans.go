package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Plan is what a subscription gives and what it costs.
type Plan struct {
	Key            string
	Name           string
	Features       []string
	StripePriceIDs []string
	Price          *Price        // nil where it is not sold here
	Duration       time.Duration // of one term; 0 where a subscription must name its own end, or has none
	Lifetime       bool          // a subscription that names no end of its own has none; excludes a duration
	GracePeriod    time.Duration // after an unpaid renewal
	RefundPolicy   string        // keep or end
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// Price is an amount in minor units of a currency of ISO 4217.
type Price struct {
	Amount   int64
	Currency string
}

// ErrPriceTaken says that another plan sells one of the prices already; a price must lead to one plan.
var ErrPriceTaken = errors.New("a Stripe price belongs to another plan")

// planColumns: an interval with months or days, which only SQL can write, counts as PostgreSQL counts its epoch.
const planColumns = `p.key, p.name, p.features, p.stripe_price_ids, p.price_amount, p.price_currency,
	extract(epoch FROM p.duration)::float8 AS duration, extract(epoch FROM p.grace_period)::float8 AS grace_period,
	p.lifetime, p.refund_policy, p.created_at, p.updated_at`

type planRow struct {
	Key            string
	Name           string
	Features       []string
	StripePriceIDs []string `db:"stripe_price_ids"`
	PriceAmount    *int64
	PriceCurrency  *string
	Duration       *float64
	GracePeriod    float64
	Lifetime       bool
	RefundPolicy   string
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

func (r planRow) domain() Plan {
	p := Plan{
		Key: r.Key, Name: r.Name, Features: r.Features, StripePriceIDs: r.StripePriceIDs, GracePeriod: seconds(r.GracePeriod),
		Lifetime: r.Lifetime, RefundPolicy: r.RefundPolicy, CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
	}
	if r.PriceAmount != nil && r.PriceCurrency != nil {
		p.Price = &Price{Amount: *r.PriceAmount, Currency: *r.PriceCurrency}
	}
	if r.Duration != nil {
		p.Duration = seconds(*r.Duration)
	}
	return p
}

// seconds rounds to the microseconds that PostgreSQL keeps.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

func collectPlans(rows pgx.Rows, err error) ([]Plan, error) {
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[planRow])
	if err != nil {
		return nil, err
	}
	plans := make([]Plan, len(list))
	for i, r := range list {
		plans[i] = r.domain()
	}
	return plans, nil
}

const planByKey = `SELECT ` + planColumns + ` FROM plans p WHERE p.key = $1`

// Plan is the plan with this key, or ErrNotFound.
func (s *Store) Plan(ctx context.Context, key string) (Plan, error) {
	list, err := collectPlans(s.pool.Query(ctx, planByKey, key))
	if err != nil {
		return Plan{}, fmt.Errorf("reading plan %s: %w", key, err)
	}
	if len(list) == 0 {
		return Plan{}, ErrNotFound
	}
	return list[0], nil
}

const plansPage = `SELECT ` + planColumns + ` FROM plans p WHERE p.key > $1 ORDER BY p.key LIMIT $2`

// Plans is one page of at most limit plans whose keys come after the given one.
func (s *Store) Plans(ctx context.Context, after string, limit int) ([]Plan, error) {
	list, err := collectPlans(s.pool.Query(ctx, plansPage, after, limit))
	if err != nil {
		return nil, fmt.Errorf("listing plans: %w", err)
	}
	return list, nil
}

// lockPlans lets one writer look for taken prices at a time. Readers and new subscriptions do not wait for it.
const lockPlans = `LOCK TABLE plans IN SHARE ROW EXCLUSIVE MODE`

const plansWithPrices = `SELECT key FROM plans WHERE stripe_price_ids && $1::text[] AND key <> $2 ORDER BY key`

const insertPlan = `INSERT INTO plans AS p (key, name, features, stripe_price_ids, price_amount, price_currency, duration, grace_period, refund_policy, lifetime)
VALUES ($1, $2, $3, $4, $5, $6, $7::interval, $8::interval, $9, $10) RETURNING ` + planColumns

// CreatePlan writes a new plan. ErrExists when its key is taken, ErrPriceTaken when another plan sells one of its prices.
func (s *Store) CreatePlan(ctx context.Context, p Plan) (Plan, error) {
	written, err := s.writePlan(ctx, func(tx pgx.Tx) (Plan, string, error) { return p, insertPlan, nil })
	if sqlState(err) == codeUniqueViolation {
		return Plan{}, ErrExists
	}
	if err != nil {
		return Plan{}, fmt.Errorf("creating plan %s: %w", p.Key, err)
	}
	return written, nil
}

const updatePlan = `UPDATE plans AS p SET name = $2, features = $3, stripe_price_ids = $4, price_amount = $5, price_currency = $6,
	duration = $7::interval, grace_period = $8::interval, refund_policy = $9, lifetime = $10, updated_at = now()
WHERE p.key = $1 RETURNING ` + planColumns

// ChangePlan reads the plan, lets change work on it and writes it, all under one lock. ErrNotFound when there is none,
// ErrPriceTaken when another plan sells one of its prices; an error of change comes back as it is.
func (s *Store) ChangePlan(ctx context.Context, key string, change func(*Plan) error) (Plan, error) {
	written, err := s.writePlan(ctx, func(tx pgx.Tx) (Plan, string, error) {
		list, err := collectPlans(tx.Query(ctx, planByKey, key))
		if err != nil {
			return Plan{}, "", err
		}
		if len(list) == 0 {
			return Plan{}, "", ErrNotFound
		}
		err = change(&list[0])
		return list[0], updatePlan, err
	})
	if err != nil {
		return Plan{}, fmt.Errorf("changing plan %s: %w", key, err)
	}
	return written, nil
}

func (s *Store) writePlan(ctx context.Context, next func(pgx.Tx) (Plan, string, error)) (Plan, error) {
	var written Plan
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockPlans); err != nil {
			return err
		}
		p, statement, err := next(tx)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, plansWithPrices, nonNil(p.StripePriceIDs), p.Key)
		if err != nil {
			return err
		}
		taken, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(taken) > 0 {
			return fmt.Errorf("%w: %s", ErrPriceTaken, strings.Join(taken, ", "))
		}
		var amount *int64
		var currency *string
		if p.Price != nil {
			amount, currency = &p.Price.Amount, &p.Price.Currency
		}
		var duration *time.Duration
		if p.Duration > 0 {
			duration = &p.Duration
		}
		list, err := collectPlans(tx.Query(ctx, statement, p.Key, p.Name, nonNil(p.Features), nonNil(p.StripePriceIDs), amount, currency,
			duration, p.GracePeriod, p.RefundPolicy, p.Lifetime))
		if err != nil {
			return err
		}
		written = list[0]
		return finishClaim(ctx, tx, written)
	})
	return written, err
}

// nonNil writes no elements as an empty array and not as null.
func nonNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
