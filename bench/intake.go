package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/simulator"
)

const (
	webhookSecret = "whsec_bench_0123456789abcdef0123"
	// intakeEvents are one measurement: each renews another subscription.
	intakeEvents = 20_000
	intakeLasts  = 5 * time.Second
)

// fillProvided: subscriptions that Stripe has told of before, whose term ends in an hour.
const fillProvided = `INSERT INTO subscriptions (id, user_id, plan_key, status, started_at, expires_at, leeway_until, provider, external_id, provider_status,
	provider_customer_id, provider_period_start, provider_period_end, truth_at)
SELECT uuid_v7(now()), 'u_' || n, 'plan_0', 'active', $2, $3, $3::timestamptz + interval '1 hour', 'stripe', 'sub_' || n, 'active', 'cus_' || n, $2, $3, $2
FROM generate_series(0, $1::int - 1) AS n`

// renewOnce is the limit: what one event leads to, as one statement. The event is stored with its body and as processed,
// the plan is found by its price, the subscription gets its new term if the event is newer than what is known, and its
// history tells of it.
const renewOnce = `\set n random(0, :subscriptions - 1)
WITH e AS (INSERT INTO payment_webhook_events (external_event_id, type, api_version, livemode, object_id, event_created, payload, status, attempts, processed_at)
	VALUES ('evt_' || gen_random_uuid(), 'customer.subscription.updated', '2025-03-31.basil', false, 'sub_' || :n, :created, convert_to(:body, 'UTF8'), 'processed', 1, now())
	ON CONFLICT (provider, external_event_id) DO NOTHING RETURNING object_id),
s AS (UPDATE subscriptions s SET plan_key = p.key, status = 'active', expires_at = :ends, leeway_until = :ends::timestamptz + interval '1 hour',
		provider_status = 'active', provider_period_start = :starts, provider_period_end = :ends, truth_at = :created, version = version + 1, updated_at = now()
	FROM e, plans p WHERE s.external_id = e.object_id AND s.truth_at <= :created AND p.stripe_price_ids && ARRAY['price_0']
	RETURNING s.id, s.access_until)
INSERT INTO subscription_events (id, subscription_id, event_type, boundary, at, actor, detail)
SELECT uuid_v7(now()), id, 'renewed', access_until, now(), 'stripe', :detail::jsonb FROM s;
`

// measureIntake compares events over HTTP, from the first byte to the last effect, with pgbench doing the same work.
func measureIntake(ctx context.Context, s *stack, rounds int) (rows []row, err error) {
	const full, used = "provided", "provided_now"
	starts := time.Now().UTC().Truncate(time.Second).Add(time.Hour)
	err = s.prepare(ctx, full, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, fillPlans); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, fillProvided, intakeEvents, starts.AddDate(0, 0, -30), starts)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.drop(context.WithoutCancel(ctx), full, used)) }()
	var few, many pair
	for i := range rounds {
		s.say("intake, round %d", i+1)
		var ours [2]loaded
		var detail string
		for j, inFlight := range []int{16, 64} {
			if err := s.copy(ctx, full, used); err != nil {
				return nil, err
			}
			if ours[j], detail, err = s.intakeLoad(ctx, used, inFlight, starts); err != nil {
				return nil, err
			}
		}
		if err := s.copy(ctx, full, used); err != nil {
			return nil, err
		}
		instant := func(at time.Time) string { return at.Format(time.RFC3339) }
		limit, err := s.pgbench(ctx, used, renewOnce, map[string]string{
			"subscriptions": strconv.Itoa(intakeEvents), "created": instant(time.Now().UTC()), "starts": instant(starts), "ends": instant(starts.AddDate(0, 0, 30)),
			"detail": detail, "body": string(renewal(0, "evt_bench", time.Now(), starts)),
		}, intakeLasts)
		if err != nil {
			return nil, err
		}
		s.say("  pgbench: %.0f/s; CPU µs each: %.0f", limit.perSecond, 1e6/limit.perCPUSecond)
		few.add(ours[0], limit)
		many.add(ours[1], limit)
	}
	return slices.Concat(
		few.rows("webhook intake, stored and applied, 16 in flight, against pgbench", 0.80),
		many.rows("webhook intake, stored and applied, 64 in flight, against pgbench", 0.80),
	), nil
}

// renewal is the body of the event by which Stripe tells of the next term.
func renewal(n int, event string, created, starts time.Time) []byte {
	id := strconv.Itoa(n)
	return simulator.EventBody(simulator.Shape2025, event, "customer.subscription.updated", created, simulator.SubscriptionFixture{
		ID: "sub_" + id, CustomerID: "cus_" + id, PriceID: "price_0", UserID: "u_" + id, Status: "active",
		PeriodStart: starts, PeriodEnd: starts.AddDate(0, 0, 30), StartDate: starts.AddDate(0, 0, -30),
		Invoice: simulator.InvoiceFixture{ID: "in_" + id},
	})
}

// intakeLoad sends one event for each subscription and waits until all are applied. It also returns what the history
// keeps of one of them.
func (s *stack) intakeLoad(ctx context.Context, database string, inFlight int, starts time.Time) (result loaded, detail string, err error) {
	api, address, err := s.api(ctx, database)
	if err != nil {
		return loaded{}, "", err
	}
	defer func() { err = errors.Join(err, api.stop()) }()
	requests := make([][]byte, intakeEvents)
	now := time.Now()
	for n := range requests {
		requests[n] = signed(renewal(n, simulator.NewID("evt"), now, starts), now)
	}
	var sent atomic.Int64
	sources := make([]source, inFlight)
	for i := range sources {
		sources[i] = func() []byte {
			if n := sent.Add(1); n <= intakeEvents {
				return requests[n-1]
			}
			return nil
		}
	}
	before, err := s.cpuOf(api)
	if err != nil {
		return loaded{}, "", err
	}
	begun := time.Now()
	if result, err = load(ctx, address, sources); err != nil {
		return loaded{}, "", err
	}
	err = s.on(ctx, database, func(conn *pgx.Conn) error {
		err := poll(ctx, 10*time.Millisecond, func() (bool, error) {
			var waiting bool
			err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM payment_webhook_events WHERE status = 'pending')").Scan(&waiting)
			return !waiting, err
		})
		if err != nil {
			return err
		}
		var applied, renewed int
		var last time.Time
		err = conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE status = 'processed' AND reason IS NULL), max(processed_at),
			(SELECT count(*) FROM subscription_events WHERE event_type = 'renewed'), (SELECT detail::text FROM subscription_events LIMIT 1)
			FROM payment_webhook_events`).Scan(&applied, &last, &renewed, &detail)
		if err == nil && (applied != intakeEvents || renewed != intakeEvents) {
			err = fmt.Errorf("of %d events %d were applied and %d are in the history", intakeEvents, applied, renewed)
		}
		result.lasted = max(result.lasted, last.Sub(begun))
		return err
	})
	if err != nil {
		return loaded{}, "", err
	}
	after, err := s.cpuOf(api)
	result.cpu = after.since(before)
	s.say("  %d in flight: %.0f/s, %d refused; %s", inFlight, result.speed().perSecond, result.refused, result.cpu.each(intakeEvents))
	return result, detail, err
}

// signed is the request by which Stripe delivers a body, as the bytes that go over the wire.
func signed(body []byte, at time.Time) []byte {
	var request bytes.Buffer
	fmt.Fprintf(&request, "POST /v1/webhooks/stripe HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json; charset=utf-8\r\n"+
		"Stripe-Signature: %s\r\nContent-Length: %d\r\n\r\n", simulator.SignatureHeader(body, webhookSecret, at), len(body))
	request.Write(body)
	return request.Bytes()
}
