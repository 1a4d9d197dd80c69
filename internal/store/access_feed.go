package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// AccessFeed reads which users' subscriptions and which plans' features have changed, on one session of the database.
// The session is the proof that nothing was missed: a server that crashed, or another one that took its place, may have
// lost transactions and used their numbers again, and either ends the session.
type AccessFeed struct {
	conn     *pgxpool.Conn
	snapshot string // of the poll before
}

// AccessChange is one row of the feed. Without users and plan it means that anybody's subscriptions may have changed.
type AccessChange struct {
	UserIDs []string
	PlanKey string
}

// AccessPoll is what one poll has found beside the changes.
type AccessPoll struct {
	// At is the database's clock, read while the poll was under way.
	At time.Time
	// Lost says that rows may have been trimmed that were never read: all that is known from before is to be forgotten.
	Lost bool
}

// ErrStandby says that the server follows another one. Its snapshots cannot be compared.
var ErrStandby = errors.New("the database is a standby; the feed of changes needs the primary")

const beginAccessFeed = `SELECT clock_timestamp(), pg_current_snapshot()::text, pg_is_in_recovery()`

// OpenAccessFeed takes a connection of the pool until Close. The feed tells of changes that commit after the returned
// instant of the database's clock; what was read before is not covered.
func (s *Store) OpenAccessFeed(ctx context.Context) (*AccessFeed, time.Time, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("connecting the feed of changes: %w", err)
	}
	f := &AccessFeed{conn: conn}
	var at time.Time
	var standby bool
	if err = conn.QueryRow(ctx, beginAccessFeed).Scan(&at, &f.snapshot, &standby); err == nil && standby {
		err = ErrStandby
	}
	if err != nil {
		f.Close()
		return nil, time.Time{}, fmt.Errorf("beginning the feed of changes: %w", err)
	}
	return f, at.UTC(), nil
}

// changesSince finds the rows of transactions that the snapshot $1 did not see: those that had not begun, and those that
// were under way. Asking for the two by the index keeps a transaction of hours from making each poll read all that came
// after its begin. The bound above leaves out rows of another server, which a restored dump has brought along. The first
// column is read before the rows are.
const changesSince = `SELECT clock_timestamp(), pg_current_snapshot()::text, pg_is_in_recovery(),
	f.trimmed > pg_snapshot_xmin($1::pg_snapshot) AND f.trimmed <= pg_snapshot_xmin(pg_current_snapshot()), c.found IS NOT NULL, c.user_ids, c.plan_key
FROM access_feed f LEFT JOIN (
	SELECT user_ids, plan_key, true AS found FROM access_changes
	WHERE xid >= pg_snapshot_xmax($1::pg_snapshot) AND xid < pg_snapshot_xmax(pg_current_snapshot())
	UNION ALL
	SELECT user_ids, plan_key, true FROM access_changes WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::pg_snapshot)))
) AS c ON true
WHERE f.only_row`

// Poll hands over the changes that were committed since the poll before, each once, in no order. After an error the feed
// is of no more use: close it.
func (f *AccessFeed) Poll(ctx context.Context, changed func(AccessChange)) (AccessPoll, error) {
	p, err := f.poll(ctx, changed)
	if err != nil {
		return AccessPoll{}, fmt.Errorf("reading the feed of changes: %w", err)
	}
	return p, nil
}

func (f *AccessFeed) poll(ctx context.Context, changed func(AccessChange)) (AccessPoll, error) {
	rows, err := f.conn.Query(ctx, changesSince, f.snapshot)
	if err != nil {
		return AccessPoll{}, err
	}
	defer rows.Close()
	var p AccessPoll
	var snapshot string
	first := true
	for rows.Next() {
		var at time.Time
		var standby bool
		var found bool
		var users []string
		var plan *string
		if err := rows.Scan(&at, &snapshot, &standby, &p.Lost, &found, &users, &plan); err != nil {
			return AccessPoll{}, err
		}
		if standby {
			return AccessPoll{}, ErrStandby
		}
		if first {
			p.At, first = at.UTC(), false
		}
		if found {
			changed(AccessChange{UserIDs: users, PlanKey: value(plan)})
		}
	}
	if err := rows.Err(); err != nil {
		return AccessPoll{}, err
	}
	if first {
		return AccessPoll{}, pgx.ErrNoRows // somebody has emptied access_feed
	}
	f.snapshot = snapshot
	return p, nil
}

// Close gives the connection back, and closes it where it is broken.
func (f *AccessFeed) Close() { f.conn.Release() }

// accessChangesKept is how long rows of the feed are kept at least. A reader that was away longer forgets everything.
const accessChangesKept = 10 * time.Minute

// moveAccessTrim: the rows of transactions that had ended when the mark was made have been there for all who polled since.
// A mark that this server has not come to is another server's, brought along by a restored dump; it is made anew.
const moveAccessTrim = `UPDATE access_feed SET
	trimmed = CASE WHEN marked <= pg_snapshot_xmin(pg_current_snapshot()) THEN marked ELSE '0' END,
	marked = pg_snapshot_xmin(pg_current_snapshot()), marked_at = $1
WHERE marked_at <= $2 OR marked > pg_snapshot_xmin(pg_current_snapshot())`

// trimAccessChanges also removes rows of transactions to come, which only a restored dump can have brought along.
const trimAccessChanges = `DELETE FROM access_changes WHERE ctid = ANY (ARRAY(
	(SELECT ctid FROM access_changes
		WHERE xid < (SELECT trimmed FROM access_feed WHERE only_row AND trimmed <= pg_snapshot_xmin(pg_current_snapshot())) ORDER BY xid LIMIT $1)
	UNION ALL
	(SELECT ctid FROM access_changes WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) ORDER BY xid LIMIT $1)
	LIMIT $1))`

// TrimAccessChanges removes at most limit rows of the feed that are older than ten minutes at now and returns how many. Rows go
// between ten minutes and ten minutes and the time from one call to the next later. Fewer than limit means that nothing is left.
func (s *Store) TrimAccessChanges(ctx context.Context, now time.Time, limit int) (int, error) {
	var removed int64
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, moveAccessTrim, now, now.Add(-accessChangesKept)); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, trimAccessChanges, limit)
		removed = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("trimming the feed of changes: %w", err)
	}
	return int(removed), nil
}
