package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// setAside doubles the pause with each attempt, from one minute to a day.
const setAside = `INSERT INTO set_aside_rows AS s (job, row_id, next_attempt_at, last_error)
VALUES ($1, $2, clock_timestamp() + interval '1 minute', $3)
ON CONFLICT (job, row_id) DO UPDATE SET last_error = excluded.last_error, attempts = s.attempts + 1,
	next_attempt_at = clock_timestamp() + LEAST(interval '1 day', interval '1 minute' * (2 ^ LEAST(s.attempts, 20)))`

// SetAside takes a row that makes a batch fail by itself out of the scans of a job. It is tried again alone.
func (s *Store) SetAside(ctx context.Context, job, rowID, failure string) error {
	if _, err := s.pool.Exec(ctx, setAside, job, rowID, failure); err != nil {
		return fmt.Errorf("setting a row of %s aside: %w", job, err)
	}
	return nil
}

// takeSetAside moves the next attempt before the work, so that a row that kills its process waits as well.
const takeSetAside = `UPDATE set_aside_rows SET next_attempt_at = clock_timestamp() + interval '1 minute'
WHERE ctid = ANY (ARRAY(SELECT ctid FROM set_aside_rows WHERE job = $1 AND next_attempt_at <= $2 ORDER BY next_attempt_at LIMIT $3 FOR UPDATE SKIP LOCKED))
	AND job = $1 AND next_attempt_at <= $2
RETURNING row_id`

// TakeSetAside takes at most limit rows whose next attempt is due at now.
func (s *Store) TakeSetAside(ctx context.Context, job string, now time.Time, limit int) ([]string, error) {
	rows, err := s.pool.Query(ctx, takeSetAside, job, now, limit)
	if err != nil {
		return nil, fmt.Errorf("taking the rows of %s that were set aside: %w", job, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("taking the rows of %s that were set aside: %w", job, err)
	}
	return ids, nil
}

const dropSetAside = `DELETE FROM set_aside_rows WHERE job = $1 AND row_id = $2`

// DropSetAside gives a row back to the scans.
func (s *Store) DropSetAside(ctx context.Context, job, rowID string) error {
	if _, err := s.pool.Exec(ctx, dropSetAside, job, rowID); err != nil {
		return fmt.Errorf("giving a row back to %s: %w", job, err)
	}
	return nil
}

const beginScan = `SELECT clock_timestamp(), EXISTS (SELECT 1 FROM set_aside_rows WHERE job = $1)`

// BeginScan is the instant that a pass of a job decides by, and whether it must leave rows out. Where it need not, its
// plan stays the fast one.
func (s *Store) BeginScan(ctx context.Context, job string) (now time.Time, withSetAside bool, err error) {
	if err := s.pool.QueryRow(ctx, beginScan, job).Scan(&now, &withSetAside); err != nil {
		return now, false, fmt.Errorf("beginning a pass of %s: %w", job, err)
	}
	return now.UTC(), withSetAside, nil
}
