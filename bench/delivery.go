package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/mail"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
	"termkeeper/workflows"
)

const facts = 2_000

// fillFacts: ended subscriptions whose users are to be told, one mail each.
const fillFacts = `WITH u AS (INSERT INTO users (id, email, name, locale) SELECT 'u_' || n, 'u_' || n || '@example.org', 'User ' || n, 'en' FROM generate_series(1, $1::int) AS n RETURNING id),
s AS (INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at, expired_at)
	SELECT id, 'plan_0', 'expired', now() - interval '30 days', now() - interval '1 minute', now() FROM u RETURNING id, user_id, access_until)
INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary) SELECT uuid_v7(now()), 'access.ended', 'end:' || id, id, user_id, 'expired', access_until FROM s`

// measureDelivery has no limit to hold against: it shows how many facts a second become mails in the sink.
func measureDelivery(ctx context.Context, s *stack, rounds int) (rows []row, err error) {
	const full, used = "facts", "facts_now"
	err = s.prepare(ctx, full, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, fillPlans); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, fillFacts, facts)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.drop(context.WithoutCancel(ctx), full, used)) }()
	delivered := row{path: "outbox facts dispatched and delivered by mail", unit: "/s"}
	for i := range rounds {
		if err := s.copy(ctx, full, used); err != nil {
			return nil, err
		}
		lasted, err := s.deliver(ctx, used)
		if err != nil {
			return nil, err
		}
		delivered.ours = append(delivered.ours, facts/lasted.Seconds())
		s.say("delivery, round %d: %.0f/s", i+1, delivered.ours[i])
	}
	return []row{delivered}, nil
}

func (s *stack) deliver(ctx context.Context, database string) (lasted time.Duration, err error) {
	sink, err := simulator.Start(ctx, simulator.Options{Log: zap.NewNop()})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sink.Close(context.WithoutCancel(ctx))) }()
	sender, err := mail.New(sink.SMTPURL())
	if err != nil {
		return 0, err
	}
	err = s.withRuns(ctx, database, func(keeper *store.Store, runs *activities.Runs) error {
		outbox := &activities.Outbox{Store: keeper, Mail: sender, Owner: "bench", Runs: runs}
		begun := time.Now()
		defer func() { lasted = time.Since(begun) }()
		return runActivity(workflows.JobOutboxDelivery, outbox.Deliver)
	})
	if err != nil {
		return 0, err
	}
	var sent int
	err = s.on(ctx, database, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM deliveries WHERE status = 'sent'").Scan(&sent)
	})
	if err == nil && sent != facts {
		err = fmt.Errorf("of %d facts %d were told", facts, sent)
	}
	return lasted, err
}
