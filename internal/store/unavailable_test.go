package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

func TestUnavailable(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, &net.OpError{Op: "dial", Err: errors.New("refused")},
		&pgconn.PgError{Code: "57P01"}, &pgconn.PgError{Code: "57014"}, &pgconn.PgError{Code: "53300"}, &pgconn.PgError{Code: "08006"}, &pgconn.PgError{Code: "55P03"},
		&pgconn.PgError{Code: "40P01"}, &pgconn.PgError{Code: "25006"},
	} {
		require.True(t, store.Unavailable(fmt.Errorf("reading: %w", err)), "%v", err)
	}
	for _, err := range []error{
		errors.New("scan"), store.ErrNotFound, store.ErrConflict, context.Canceled, &pgconn.PgError{Code: "42P01"}, &pgconn.PgError{Code: "23505"}, &pgconn.PgError{Code: "22021"}, &pgconn.PgError{},
	} {
		require.False(t, store.Unavailable(fmt.Errorf("reading: %w", err)), "%v", err)
	}
	require.False(t, store.Unavailable(nil))
}

// TestUnavailableIsWhatTheDriverSays asks real trouble what it looks like.
func TestUnavailableIsWhatTheDriverSays(t *testing.T) {
	t.Parallel()
	_, err := store.Open(t.Context(), "postgres://nobody@127.0.0.1:1/none", store.PoolOptions{Name: "test", MaxConns: 1})
	require.True(t, store.Unavailable(err), "%v", err)

	databaseURL := storetest.NewURL(t)
	pool, err := store.Open(t.Context(), databaseURL, store.PoolOptions{Name: "test", MaxConns: 2, StatementTimeout: 20 * time.Millisecond, LockTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `SELECT pg_sleep(10)`)
	require.True(t, store.Unavailable(err), "%v", err)
	_, err = pool.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
	require.True(t, store.Unavailable(err), "%v", err)
	_, err = pool.Exec(t.Context(), `SELECT * FROM no_such_table`)
	require.Error(t, err)
	require.False(t, store.Unavailable(err), "%v", err)
}

func TestSchemaVersion(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	version, err := s.SchemaVersion(t.Context())
	require.NoError(t, err)
	require.Positive(t, version)
	_, err = pool.Exec(t.Context(), `DROP TABLE goose_db_version`)
	require.NoError(t, err)
	version, err = s.SchemaVersion(t.Context())
	require.NoError(t, err)
	require.Zero(t, version, "a database that was never migrated has version 0")
}
