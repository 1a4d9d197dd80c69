package store

import (
	"context"
	"errors"
	"fmt"
)

// claimEnvironment: the first process of a new database names it. Two at once: one inserts, the other waits for it and
// then reads the name.
const claimEnvironment = `WITH claimed AS (INSERT INTO environment (name) VALUES ($1) ON CONFLICT (only_row) DO NOTHING RETURNING name)
SELECT name FROM claimed UNION ALL SELECT name FROM environment LIMIT 1`

// ClaimEnvironment gives a new database to the environment name, and refuses a database that belongs to another one.
func (s *Store) ClaimEnvironment(ctx context.Context, name string) error {
	var owner string
	const tries = 2 // the row of a process that came first is not in the snapshot of the statement that waited for it
	for try := 1; ; try++ {
		err := notFound(s.pool.QueryRow(ctx, claimEnvironment, name).Scan(&owner))
		if err == nil {
			break
		}
		if err != ErrNotFound || try == tries { //nolint:errorlint // notFound returns it bare
			return fmt.Errorf("reading which environment the database belongs to: %w", err)
		}
	}
	return sameEnvironment(owner, name)
}

const readEnvironment = `SELECT name FROM environment`

// CheckEnvironment refuses a database that belongs to another environment than name, and claims none. A database without an
// owner, or without a schema yet, is taken.
func (s *Store) CheckEnvironment(ctx context.Context, name string) error {
	var owner string
	err := notFound(s.pool.QueryRow(ctx, readEnvironment).Scan(&owner))
	if errors.Is(err, ErrNotFound) || sqlState(err) == codeUndefinedTable {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading which environment the database belongs to: %w", err)
	}
	return sameEnvironment(owner, name)
}

func sameEnvironment(owner, name string) error {
	if owner != name {
		return fmt.Errorf("the database belongs to the environment %s, this process to %s: set TERMKEEPER_ENV or DATABASE_URL right", owner, name)
	}
	return nil
}
