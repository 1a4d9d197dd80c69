package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// ChannelEmail is the channel of mails.
const ChannelEmail = "email"

// Delivery is a delivery that was claimed: its row is leased to the claimer until the lease passes, and Version is the
// fence that every later write names.
type Delivery struct {
	ID        string
	Version   int64
	Attempts  int    // with this one
	LastError string // of the attempt before
}

const takeOverDeliveries = `UPDATE deliveries SET status = 'pending', next_attempt_at = $1, leased_until = NULL, lease_owner = NULL,
	last_error = 'its sender vanished while sending; it may have arrived'
WHERE ctid = ANY (ARRAY(SELECT ctid FROM deliveries WHERE status = 'sending' AND leased_until <= $1 ORDER BY leased_until LIMIT 1000 FOR UPDATE SKIP LOCKED))
	AND status = 'sending' AND leased_until <= $1`

// The claims of mails: an earlier delivery of the same subscription to the same receiver that is not finished blocks the later
// ones. While the channel has failures on record one message of each claim is enough to find out whether it is back. The urgent ones are
// told from the rest by the condition of their own index, which repeats a part of the topics.
const (
	claimMails       = claimHead + claimTail
	claimUrgentMails = claimHead + `AND w.topic IN ('access.started', 'payment.failed', 'payment.recovered')` + claimTail

	claimHead = `UPDATE deliveries d SET status = 'sending', attempts = attempts + 1, version = version + 1,
	leased_until = $1 + $3::interval, lease_owner = $4
WHERE ctid = ANY (ARRAY(
	SELECT w.ctid FROM deliveries w
	WHERE w.status = 'pending' AND w.next_attempt_at <= $1 AND w.channel = 'email' `
	claimTail = `
		AND EXISTS (SELECT 1 FROM delivery_channels c WHERE c.channel = 'email' AND (c.paused_until IS NULL OR c.paused_until <= $1))
		AND NOT EXISTS (SELECT 1 FROM deliveries e WHERE e.subscription_id = w.subscription_id AND e.channel = w.channel
			AND e.target = w.target AND e.status IN ('pending', 'sending') AND e.id < w.id)
	ORDER BY w.next_attempt_at, w.id
	LIMIT (SELECT CASE WHEN c.failures > 0 THEN 1 ELSE $2::int END FROM delivery_channels c WHERE c.channel = 'email')
	FOR UPDATE SKIP LOCKED))
	AND status = 'pending' AND next_attempt_at <= $1
RETURNING id, version, attempts, coalesce(last_error, '')`
)

// urgentShare is how many of four deliveries of a claim may be urgent ones that are not the oldest: they overtake a
// backlog, and it moves on all the same.
const urgentShare = 3

// TakeOverDeliveries gives deliveries free whose sender let its lease pass.
func (s *Store) TakeOverDeliveries(ctx context.Context, now time.Time) error {
	if _, err := s.pool.Exec(ctx, takeOverDeliveries, now); err != nil {
		return fmt.Errorf("taking deliveries over: %w", err)
	}
	return nil
}

// ClaimMails leases at most limit due mails to owner: the urgent ones first, up to three quarters, then the oldest. None while
// the channel is paused.
func (s *Store) ClaimMails(ctx context.Context, now time.Time, owner string, limit int, lease time.Duration) ([]Delivery, error) {
	urgent, err := claim(ctx, s.pool, claimUrgentMails, now, limit*urgentShare/4, lease, owner)
	if err != nil {
		return nil, err
	}
	oldest, err := claim(ctx, s.pool, claimMails, now, limit-len(urgent), lease, owner)
	return append(urgent, oldest...), err
}

// claim runs a claim on the pool or in a transaction.
func claim(ctx context.Context, on interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}, query string, args ...any,
) ([]Delivery, error) {
	rows, err := on.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("claiming deliveries: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Delivery, error) {
		var d Delivery
		err := row.Scan(&d.ID, &d.Version, &d.Attempts, &d.LastError)
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("claiming deliveries: %w", err)
	}
	return list, nil
}

// Letter is what is to be sent, as the rows say right before the sending.
type Letter struct {
	Target    string
	MessageID string
	Topic     subscription.Topic
	Kind      string    // the fact's
	Boundary  time.Time // the fact's
	// AccessUntil, SetToEnd and PastDue are the subscription's as it is now: a message that waited tells what holds now. The
	// leeway is left out of AccessUntil: nobody has paid for it.
	AccessUntil time.Time
	SetToEnd    bool
	PastDue     bool
	UserName    string
	Locale      string
	TimeZone    string
	PlanName    string
	// Stale says that the message is no longer true or no longer wanted.
	Stale bool
}

// letter is the fence and the second look in one: nothing comes back when the lease is lost or too short for the sending.
// A newer fact of the same topic makes an older one stale: of three reminders that waited the last one is sent. Beyond that,
// what is no longer so is not told:
//   - an end, when the user has access again, or the subscription a later end than the fact speaks of. One that was
//     canceled keeps the time that an operator gave on top, and gives nothing for it;
//   - a reminder, unless that very end still lies ahead and nothing will renew it;
//   - a start, when it gives no access. A first one that is long past was learned of late (a subscription that was there
//     before this program was), and one that begins unpaid has a message of its own;
//   - a failed payment, when it was paid or the access is over; a payment, when the next one failed already.
const letter = `SELECT d.target, d.message_id, o.topic, coalesce(o.kind, ''), o.boundary, GREATEST(s.expires_at, s.grace_period_ends_at, s.comp_until), coalesce(s.cancel_at_period_end, false),
	coalesce(s.status = 'past_due', false), coalesce(u.name, ''), coalesce(u.locale, ''), coalesce(u.time_zone, ''), coalesce(nullif(p.name, ''), p.key, ''),
	s.id IS NULL
	OR EXISTS (SELECT 1 FROM outbox newer WHERE newer.subscription_id = o.subscription_id AND newer.id > o.id AND newer.topic = o.topic AND newer.created_at <= $4)
	OR CASE o.topic
		WHEN 'access.ended' THEN gives_access(s, $4) OR (s.status <> 'canceled' AND s.access_until > o.boundary)
			OR EXISTS (SELECT 1 FROM subscriptions other WHERE other.user_id = o.user_id AND gives_access(other, $4))
		WHEN 'access.ending_soon' THEN NOT gives_access(s, $4) OR s.access_until <> o.boundary OR s.leeway_until IS NOT NULL
		WHEN 'access.started' THEN NOT gives_access(s, $4)
			OR (o.kind = 'first' AND (s.status = 'past_due' OR s.started_at < o.created_at - interval '3 days'))
		WHEN 'payment.failed' THEN s.status <> 'past_due' OR s.access_until <= $4
		WHEN 'payment.recovered' THEN s.status NOT IN ('trialing', 'active') OR s.access_until <= $4
	END
FROM deliveries d JOIN outbox o ON o.id = d.outbox_id
	LEFT JOIN users u ON u.id = o.user_id
	LEFT JOIN subscriptions s ON s.id = o.subscription_id
	LEFT JOIN plans p ON p.key = s.plan_key
WHERE d.id = $1 AND d.version = $2 AND d.status = 'sending' AND d.leased_until > clock_timestamp() + $3::interval`

// Letter reads what to send for a claimed delivery, and whether it is still so at the instant at. ErrConflict when the
// claim is lost, or its lease ends before a sending that takes up to sending could.
func (s *Store) Letter(ctx context.Context, d Delivery, at time.Time, sending time.Duration) (Letter, error) {
	var l Letter
	var boundary, until pgtype.Timestamptz
	err := s.pool.QueryRow(ctx, letter, d.ID, d.Version, sending, at).Scan(&l.Target, &l.MessageID, &l.Topic, &l.Kind, &boundary, &until,
		&l.SetToEnd, &l.PastDue, &l.UserName, &l.Locale, &l.TimeZone, &l.PlanName, &l.Stale)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return l, ErrConflict
	case err != nil:
		return l, fmt.Errorf("reading a delivery: %w", err)
	}
	l.Boundary, l.AccessUntil = instant(boundary), instant(until)
	return l, nil
}

// The ends of a delivery.
const (
	DeliverySent       = "sent"
	DeliverySuperseded = "superseded"
	DeliveryDead       = "dead"
)

const finishDelivery = `UPDATE deliveries SET status = $3, finished_at = clock_timestamp(), last_error = $4, leased_until = NULL, lease_owner = NULL
WHERE id = $1 AND version = $2 AND status = 'sending'`

// FinishDelivery ends a claimed delivery. ErrConflict when the claim was lost meanwhile; then the other one decides.
func (s *Store) FinishDelivery(ctx context.Context, d Delivery, status, failure string) error {
	return s.fenced(ctx, "finishing a delivery", finishDelivery, d.ID, d.Version, status, text(failure))
}

const retryDelivery = `UPDATE deliveries SET status = 'pending', next_attempt_at = clock_timestamp() + $3::interval, last_error = $4,
	attempts = attempts - $5, leased_until = NULL, lease_owner = NULL
WHERE id = $1 AND version = $2 AND status = 'sending'`

// RetryDelivery gives a claimed delivery back, to be tried again after the pause. uncounted says that it was no attempt of
// the message, because the fault is not its own.
func (s *Store) RetryDelivery(ctx context.Context, d Delivery, pause time.Duration, failure string, uncounted bool) error {
	attempts := 0
	if uncounted {
		attempts = 1
	}
	return s.fenced(ctx, "giving a delivery back", retryDelivery, d.ID, d.Version, pause, text(failure), attempts)
}

func (s *Store) fenced(ctx context.Context, doing, query string, args ...any) error {
	tag, err := s.pool.Exec(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if tag.RowsAffected() == 0 {
		return ErrConflict
	}
	return nil
}

// pauseChannel: failures of messages that were sent at the same time count once, because the first one has set the pause.
const pauseChannel = `UPDATE delivery_channels SET failures = failures + 1, last_error = $3, updated_at = clock_timestamp(),
	paused_until = clock_timestamp() + LEAST(interval '5 minutes', interval '1 second' * (2 ^ LEAST(failures, 20)))
WHERE channel = $1 AND (paused_until IS NULL OR paused_until <= $2)`

// PauseChannel stops a channel that is down: for a second, then twice as long each time, five minutes at most. now is
// when the messages that failed were claimed.
func (s *Store) PauseChannel(ctx context.Context, channel string, now time.Time, failure string) error {
	if _, err := s.pool.Exec(ctx, pauseChannel, channel, now, failure); err != nil {
		return fmt.Errorf("pausing the channel %s: %w", channel, err)
	}
	return nil
}

const reviveChannel = `UPDATE delivery_channels SET failures = 0, paused_until = NULL, last_error = NULL, updated_at = clock_timestamp()
WHERE channel = $1 AND failures > 0`

// ReviveChannel records that a channel has taken a message.
func (s *Store) ReviveChannel(ctx context.Context, channel string) error {
	if _, err := s.pool.Exec(ctx, reviveChannel, channel); err != nil {
		return fmt.Errorf("reviving the channel %s: %w", channel, err)
	}
	return nil
}
