// Package store is the only place with SQL. Its methods are named after the question or the change and speak in the
// types of the rule packages. Every write is one statement or one short transaction.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"termkeeper/internal/subscription"
)

// Store asks and changes the database through one pool of connections.
type Store struct {
	pool *pgxpool.Pool
}

// New makes a store of a pool. The caller closes the pool.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// PoolOptions are the limits of one pool. A pool belongs to one kind of work, so that none can starve another.
type PoolOptions struct {
	Name             string        // application_name, seen in pg_stat_activity
	MaxConns         int32         // connections at most
	StatementTimeout time.Duration // a statement past it is canceled by the server
	LockTimeout      time.Duration // waiting for a lock longer than this is an error
	// KeepOpen has all connections open from the start: right where a new one may not be had, because others use up what the
	// server has, and the work must go on all the same.
	KeepOpen bool
	// GenericPlans plans each statement once for all values. For a short list of values PostgreSQL would plan anew each
	// time, which takes longer than the statement: right where every value asks for the same plan.
	GenericPlans bool
	// IndexScans reads no table as a whole where there is an index: right where a few rows are wanted of a table that may
	// have grown since the plan was made.
	IndexScans bool
}

// Open makes a pool and proves with one round trip that the database answers.
func Open(ctx context.Context, databaseURL string, o PoolOptions) (*pgxpool.Pool, error) {
	pool, err := OpenLazy(ctx, databaseURL, o)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("reaching PostgreSQL: %w", err)
	}
	return pool, nil
}

// OpenLazy makes a pool without asking the database anything.
func OpenLazy(ctx context.Context, databaseURL string, o PoolOptions) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("reading the database URL: %w", err)
	}
	config.MaxConns = o.MaxConns
	if o.KeepOpen {
		config.MinConns = o.MaxConns
	}
	config.ConnConfig.ConnectTimeout = 3 * time.Second
	params := config.ConnConfig.RuntimeParams
	params["application_name"] = o.Name
	params["timezone"] = "UTC"
	if o.GenericPlans {
		params["plan_cache_mode"] = "force_generic_plan"
	}
	if o.IndexScans {
		params["enable_seqscan"] = "off"
		params["jit"] = "off" // a plan that has to scan all the same counts as very dear, and would be compiled
	}
	params["statement_timeout"] = milliseconds(o.StatementTimeout)
	params["lock_timeout"] = milliseconds(o.LockTimeout)
	params["idle_in_transaction_session_timeout"] = milliseconds(time.Minute)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("opening the pool %s: %w", o.Name, err)
	}
	return pool, nil
}

func milliseconds(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// Now is the database's clock.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var now time.Time
	if err := s.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("reading the database's clock: %w", err)
	}
	return now.UTC(), nil
}

// Ping proves that the database answers.
func (s *Store) Ping(ctx context.Context) error { return s.pool.Ping(ctx) }

// NewID makes a UUID of version 7: new rows sit together in an index.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// instant reads a column that may be null (zero) or infinity (Forever).
func instant(t pgtype.Timestamptz) time.Time {
	switch {
	case !t.Valid:
		return time.Time{}
	case t.InfinityModifier == pgtype.Infinity:
		return subscription.Forever
	default:
		return t.Time.UTC()
	}
}

// timestamptz writes an instant at microseconds: zero as null, Forever as infinity.
func timestamptz(t time.Time) pgtype.Timestamptz {
	switch {
	case t.IsZero():
		return pgtype.Timestamptz{}
	case subscription.IsForever(t):
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	default:
		return pgtype.Timestamptz{Time: t.UTC().Truncate(time.Microsecond), Valid: true}
	}
}

// text writes an empty string as null.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// value reads null as an empty string.
func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
