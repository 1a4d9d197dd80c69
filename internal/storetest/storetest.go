// Package storetest gives each test a migrated PostgreSQL database of its own and a Temporal namespace of its own, on
// the servers that `make test` has started (see internal/devstack/withstack).
package storetest

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// poolSize lets a test race sixteen writers. The server of `make test` takes 300 connections, for every package at once.
const poolSize = 16

// New returns a pool on a database of the test's own, with the newest schema and no rows. Both are gone after the
// test; the database of a failed test stays, and the test says where. Without a server the test fails.
func New(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(NewURL(tb))
	if err != nil {
		tb.Fatal(err)
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close) // before the database is dropped: cleanups run last one first
	return pool
}

// NewURL is New for a test that opens its own connections: it returns the superuser's URL of the database.
func NewURL(tb testing.TB) string {
	tb.Helper()
	server := os.Getenv("TERMKEEPER_TEST_DATABASE_URL")
	if server == "" {
		tb.Fatal("this test needs PostgreSQL: run the tests with `make test`, or set TERMKEEPER_TEST_DATABASE_URL to a superuser's URL")
	}
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	name := "test_" + strings.ToLower(rand.Text())
	if err := clone(ctx, server, name); err != nil {
		tb.Fatal(err)
	}
	address, err := onDatabase(server, name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the database of this failed test stays: %s", address)
			return
		}
		if err := drop(context.WithoutCancel(tb.Context()), server, name); err != nil {
			tb.Error(err)
		}
	})
	return address
}
