package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// JobExpiry is the job whose scans leave out what it has set aside. It is the schedule's id as well.
const JobExpiry = "subscription-expiry"

// ExpiryCursor is the last row that a pass has come to. The zero value is the beginning.
type ExpiryCursor struct {
	AccessUntil time.Time
	ID          string
}

// Expired is what one batch did.
type Expired struct {
	Count  int
	Cursor ExpiryCursor // the last row marked
	Oldest time.Time    // the earliest end among them
}

const live = `status IN ('trialing', 'active', 'past_due')`

// dueAfterCursor claims by the index subscriptions_due, in its order. The cursor is by both columns: rows that all end
// at one instant would make every batch walk the dead entries of the earlier ones.
const dueAfterCursor = `SELECT ctid FROM subscriptions
	WHERE ` + live + ` AND access_until <= $1 AND (access_until, id) > ($2::timestamptz, $3::uuid)
	ORDER BY access_until, id LIMIT $4 FOR UPDATE SKIP LOCKED`

const dueAfterCursorNotSetAside = `SELECT ctid FROM subscriptions
	WHERE ` + live + ` AND access_until <= $1 AND (access_until, id) > ($2::timestamptz, $3::uuid)
		AND NOT EXISTS (SELECT 1 FROM set_aside_rows a WHERE a.job = '` + JobExpiry + `' AND a.row_id = subscriptions.id)
	ORDER BY access_until, id LIMIT $4 FOR UPDATE SKIP LOCKED`

const dueByID = `SELECT ctid FROM subscriptions WHERE id = $2::uuid AND ` + live + ` AND access_until <= $1 FOR UPDATE SKIP LOCKED`

// The statements mark what their claim returns, with its history and its fact, in one statement. The write repeats the
// condition: a renewal that committed between the claim's snapshot and its lock wins. Batches of a ctid array never take
// more than the limit, which a bare IN (SELECT … LIMIT) does under a nested loop. The key of the fact names the
// subscription and the end in microseconds, and is short, because a unique index of long keys costs a tenth of the speed.
const (
	expireDue            = expireHead + dueAfterCursor + expireTail
	expireDueNotSetAside = expireHead + dueAfterCursorNotSetAside + expireTail
	expireOne            = expireHead + dueByID + expireTail

	expireHead = `WITH u AS (
	UPDATE subscriptions SET status = 'expired', expired_at = $1, version = version + 1, updated_at = $1
	WHERE ctid = ANY (ARRAY(`
	expireTail = `)) AND ` + live + ` AND access_until <= $1
	RETURNING id, user_id, access_until, CASE WHEN cancel_at_period_end THEN 'ended' ELSE 'expired' END AS kind),
h AS (INSERT INTO subscription_events (id, subscription_id, event_type, boundary, at)
	SELECT uuid_v7($1), id, kind, access_until, $1 FROM u
	ON CONFLICT (subscription_id, event_type, boundary)
		WHERE event_type IN ('created', 'expired', 'ended', 'reminded_7d', 'reminded_3d', 'reminded_1d') DO NOTHING),
o AS (INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary, created_at)
	SELECT uuid_v7($1), 'access.ended', 'end:' || id || ':' || (extract(epoch FROM access_until) * 1000000)::bigint,
		id, user_id, kind, access_until, $1 FROM u
	ON CONFLICT (dedupe_key) DO NOTHING)
SELECT count(*) OVER (), min(access_until) OVER (), access_until, id FROM u ORDER BY access_until DESC, id DESC LIMIT 1`
)

// ExpireDue marks at most limit subscriptions that have ended at now, after the cursor. Rows that somebody else holds are
// left out; a pass that starts again from the zero cursor finds them. A short batch does not mean that nothing is left:
// ask NextEnd. withSetAside leaves out the rows that were set aside.
func (s *Store) ExpireDue(ctx context.Context, now time.Time, after ExpiryCursor, limit int, withSetAside bool) (Expired, error) {
	query := expireDue
	if withSetAside {
		query = expireDueNotSetAside
	}
	at, id := after.args()
	e, err := collectExpired(s.pool.QueryRow(ctx, query, now, at, id, limit))
	if err != nil {
		return e, fmt.Errorf("marking ended subscriptions: %w", err)
	}
	return e, nil
}

// ExpireOne marks one subscription, where it is due at now.
func (s *Store) ExpireOne(ctx context.Context, now time.Time, id string) (Expired, error) {
	e, err := collectExpired(s.pool.QueryRow(ctx, expireOne, now, id))
	if err != nil {
		return e, fmt.Errorf("marking an ended subscription: %w", err)
	}
	return e, nil
}

func collectExpired(row pgx.Row) (Expired, error) {
	var e Expired
	err := row.Scan(&e.Count, &e.Oldest, &e.Cursor.AccessUntil, &e.Cursor.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return Expired{}, nil
	}
	return e, err
}

func (c ExpiryCursor) args() (pgtype.Timestamptz, string) {
	if c.ID == "" {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, "00000000-0000-0000-0000-000000000000"
	}
	return timestamptz(c.AccessUntil), c.ID
}

const firstDue = `SELECT id FROM subscriptions WHERE ` + live + ` AND access_until <= $1 AND (access_until, id) > ($2::timestamptz, $3::uuid)
	AND NOT EXISTS (SELECT 1 FROM set_aside_rows a WHERE a.job = '` + JobExpiry + `' AND a.row_id = subscriptions.id)
	ORDER BY access_until, id LIMIT 1 FOR UPDATE SKIP LOCKED`

// FirstDue is the id of the next subscription that ExpireDue would take, or "".
func (s *Store) FirstDue(ctx context.Context, now time.Time, after ExpiryCursor) (string, error) {
	at, id := after.args()
	var first string
	err := notFound(s.pool.QueryRow(ctx, firstDue, now, at, id).Scan(&first))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return "", fmt.Errorf("looking for the first ended subscription: %w", err)
	}
	return first, nil
}

// nextEnd walks the index from its beginning. It is asked ten times a second while a run waits, so it returns its cost
// to the caller by being slow only when a drained backlog has left dead entries there.
const nextEnd = `SELECT access_until, clock_timestamp() FROM subscriptions WHERE ` + live + `
	AND NOT EXISTS (SELECT 1 FROM set_aside_rows a WHERE a.job = '` + JobExpiry + `' AND a.row_id = subscriptions.id)
	ORDER BY access_until, id LIMIT 1`

// NextEnd is the earliest end of a subscription that is not marked yet, in the past when one is due, and the database's
// clock at the same instant. The end is zero when there is none, or only lifetimes.
func (s *Store) NextEnd(ctx context.Context) (end, now time.Time, err error) {
	return s.nextEnd(ctx, nextEnd)
}

// nextEndAfter is the same from an end on.
const nextEndAfter = `SELECT access_until, clock_timestamp() FROM subscriptions WHERE ` + live + ` AND access_until > $1
	ORDER BY access_until, id LIMIT 1`

// NextEndAfter is NextEnd for ends after one instant only. It is fast whatever lies before.
func (s *Store) NextEndAfter(ctx context.Context, after time.Time) (end, now time.Time, err error) {
	return s.nextEnd(ctx, nextEndAfter, timestamptz(after))
}

func (s *Store) nextEnd(ctx context.Context, query string, args ...any) (end, now time.Time, err error) {
	var at pgtype.Timestamptz
	err = s.pool.QueryRow(ctx, query, args...).Scan(&at, &now)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		now, err = s.Now(ctx)
		return time.Time{}, now, err
	case err != nil:
		return time.Time{}, time.Time{}, fmt.Errorf("looking for the next end of a subscription: %w", err)
	case at.InfinityModifier == pgtype.Infinity:
		return time.Time{}, now.UTC(), nil
	}
	return at.Time.UTC(), now.UTC(), nil
}
