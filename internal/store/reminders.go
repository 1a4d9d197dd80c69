package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"termkeeper/internal/subscription"
)

// JobReminders is the job whose scans leave out what it has set aside. It is the schedule's id as well.
const JobReminders = "subscription-reminders"

// ending is what will end and does not renew by itself. It is the condition of the index subscriptions_ending.
const ending = live + ` AND held_at IS NULL AND leeway_until IS NULL`

// nearEnds finds the rows that a reminder may be due for: those whose end has come near and was not looked at yet, and
// those whose next look is due. Seven calendar days have 171 hours at most (a move of the clock by three). Each row that
// was looked at leaves the due part of both indexes, so a run reads only what is due, however many ends are near. The end
// counts from the first entry of the history that speaks of it; a row without one counts from its start.
const (
	nearEnds = nearHead + `(
		(SELECT id, user_id, started_at, access_until FROM subscriptions
		WHERE ` + ending + ` AND reminder_boundary IS DISTINCT FROM access_until
			AND access_until > $1::timestamptz AND access_until <= $1::timestamptz + interval '171 hours' AND ` + notSetAside + `
		ORDER BY access_until, id LIMIT $2)
		UNION ALL
		(SELECT id, user_id, started_at, access_until FROM subscriptions
		WHERE ` + ending + ` AND reminder_boundary = access_until AND reminder_at <= $1::timestamptz AND access_until > $1::timestamptz AND ` + notSetAside + `
		ORDER BY reminder_at, id LIMIT $2)
		LIMIT $2)` + nearTail
	nearEndByID = nearHead + `(SELECT id, user_id, started_at, access_until FROM subscriptions
		WHERE ` + ending + ` AND id = $2::uuid AND access_until > $1::timestamptz AND access_until <= $1::timestamptz + interval '171 hours')` + nearTail

	nearHead = `SELECT n.id, n.access_until, GREATEST(n.started_at, h.set_at), coalesce(u.time_zone, ''), h.told
FROM `
	nearTail = ` n
	CROSS JOIN LATERAL (SELECT min(e.at) FILTER (WHERE e.event_type NOT LIKE 'reminded\_%') AS set_at,
			coalesce(array_agg(e.event_type) FILTER (WHERE e.event_type LIKE 'reminded\_%'), '{}') AS told
		FROM subscription_events e WHERE e.subscription_id = n.id AND e.boundary = n.access_until) h
	LEFT JOIN users u ON u.id = n.user_id`

	notSetAside = `NOT EXISTS (SELECT 1 FROM set_aside_rows a WHERE a.job = '` + JobReminders + `' AND a.row_id = subscriptions.id)`
)

// remind moves the rows' next look and writes the ledger and the facts. It locks the rows and repeats the condition they
// were found on: a renewal or a cancellation that committed meanwhile wins, and nobody waits for one that holds the row.
// One ledger row per bucket and end lets only one of several runs tell it.
const remind = `WITH s AS MATERIALIZED (
	SELECT s.ctid, s.id, s.user_id, s.access_until, l.look
	FROM unnest($2::uuid[], $3::timestamptz[], $4::timestamptz[]) AS l(id, boundary, look) JOIN subscriptions s ON s.id = l.id
	WHERE ` + ending + ` AND s.access_until = l.boundary AND s.access_until > $1::timestamptz
	FOR UPDATE OF s SKIP LOCKED),
m AS (UPDATE subscriptions t SET reminder_boundary = s.access_until, reminder_at = s.look FROM s WHERE t.ctid = s.ctid RETURNING 1),
w AS (SELECT s.id, s.user_id, s.access_until, w.event_type, w.kind, w.superseded_by
	FROM s JOIN unnest($5::uuid[], $6::text[], $7::text[], $8::text[]) AS w(id, event_type, kind, superseded_by) ON w.id = s.id),
h AS (INSERT INTO subscription_events (id, subscription_id, event_type, boundary, at, detail)
	SELECT uuid_v7($1), id, event_type, access_until, $1, CASE WHEN superseded_by IS NOT NULL THEN jsonb_build_object('superseded_by', superseded_by) END FROM w
	ON CONFLICT (subscription_id, event_type, boundary)
		WHERE event_type IN ('created', 'expired', 'ended', 'reminded_7d', 'reminded_3d', 'reminded_1d') DO NOTHING
	RETURNING subscription_id, event_type),
o AS (INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary, created_at)
	SELECT uuid_v7($1), 'access.ending_soon', 'soon:' || w.id || ':' || (extract(epoch FROM w.access_until) * 1000000)::bigint || ':' || w.kind,
		w.id, w.user_id, w.kind, w.access_until, $1
	FROM w JOIN h ON h.subscription_id = w.id AND h.event_type = w.event_type WHERE w.superseded_by IS NULL
	ON CONFLICT (dedupe_key) DO NOTHING
	RETURNING 1)
SELECT (SELECT count(*) FROM m), (SELECT count(*) FROM o), (SELECT count(*) FROM h)`

// Reminded is what one batch did.
type Reminded struct {
	Looked     int // rows that will not be looked at again before their next bucket
	Told       int // facts access.ending_soon
	Superseded int // reminders that were of no use any more and are only recorded
}

// nearEnd is a row of nearEnds.
type nearEnd struct {
	id string
	subscription.Ending
}

// RemindDue tells the reminders that are due at now, of at most limit rows. A batch that looked at no row is the end of a
// pass: nothing is due, or what is due is held by somebody else.
func (s *Store) RemindDue(ctx context.Context, now time.Time, limit int) (Reminded, error) {
	return s.remind(ctx, now, nearEnds, limit)
}

// RemindOne does the same for one subscription.
func (s *Store) RemindOne(ctx context.Context, now time.Time, id string) (Reminded, error) {
	return s.remind(ctx, now, nearEndByID, id)
}

func (s *Store) remind(ctx context.Context, now time.Time, find string, which any) (Reminded, error) {
	list, err := s.nearEnds(ctx, find, now, which)
	if err != nil || len(list) == 0 {
		return Reminded{}, err
	}
	var ids, told, events, kinds []string
	var boundaries, looks []pgtype.Timestamptz
	var superseded []*string
	add := func(id string, b subscription.Bucket, by string) {
		told, events, kinds, superseded = append(told, id), append(events, string(b.Event)), append(kinds, b.Kind), append(superseded, text(by))
	}
	for _, e := range list {
		ids, boundaries, looks = append(ids, e.id), append(boundaries, timestamptz(e.End)), append(looks, timestamptz(e.NextLook(now)))
		due, passed, found := e.DueReminder(now)
		if !found {
			continue
		}
		add(e.id, due, "")
		for _, b := range passed {
			add(e.id, b, string(due.Event))
		}
	}
	var done Reminded
	var recorded int
	err = s.pool.QueryRow(ctx, remind, now, ids, boundaries, looks, told, events, kinds, superseded).Scan(&done.Looked, &done.Told, &recorded)
	if err != nil {
		return Reminded{}, fmt.Errorf("writing reminders: %w", err)
	}
	done.Superseded = recorded - done.Told
	return done, nil
}

// FirstNearEnd is the id of the next subscription that RemindDue would look at, or "".
func (s *Store) FirstNearEnd(ctx context.Context, now time.Time) (string, error) {
	list, err := s.nearEnds(ctx, nearEnds, now, 1)
	if err != nil || len(list) == 0 {
		return "", err
	}
	return list[0].id, nil
}

func (s *Store) nearEnds(ctx context.Context, find string, args ...any) ([]nearEnd, error) {
	rows, err := s.pool.Query(ctx, find, args...)
	if err != nil {
		return nil, fmt.Errorf("looking for ends that are near: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanNearEnd)
	if err != nil {
		return nil, fmt.Errorf("looking for ends that are near: %w", err)
	}
	return list, nil
}

func scanNearEnd(row pgx.CollectableRow) (nearEnd, error) {
	var e nearEnd
	var end, since pgtype.Timestamptz
	var told []string
	err := row.Scan(&e.id, &end, &since, &e.TimeZone, &told)
	e.End, e.Since = instant(end), instant(since)
	for _, event := range told {
		e.Told = append(e.Told, subscription.EventType(event))
	}
	return e, err
}
