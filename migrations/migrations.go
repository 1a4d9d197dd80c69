// Package migrations holds the database schema as goose SQL files and applies them.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migration files, so that tests can name a template database after their content.
//
//go:embed *.sql
var FS embed.FS

// Waiting for locks. A change of a table waits for all who use it, and everybody who comes later waits behind the change,
// readers too. So it waits for less than an access check does (200 ms), gives way, and comes again: a transaction of
// minutes delays the migration and nothing else.
const (
	lockTimeout = "100ms"
	lockTries   = 120
	lockPause   = time.Second
	// codeLockNotAvailable: a lock was not to be had within lock_timeout.
	codeLockNotAvailable = "55P03"
)

// Up brings the database to the newest schema, while older processes run. Any number of processes may call it at once: a
// session lock of PostgreSQL lets one work and the others wait. It returns the files that this call applied, those before
// an error too.
func Up(ctx context.Context, databaseURL string) ([]string, error) {
	var applied []string
	err := with(databaseURL, func(p *goose.Provider) error {
		for try := 1; ; try++ {
			results, err := p.Up(ctx)
			var partial *goose.PartialError
			if errors.As(err, &partial) {
				results = partial.Applied
			}
			for _, r := range results {
				applied = append(applied, r.Source.Path)
			}
			if err == nil || !lockedOut(err) {
				return err
			}
			if try == lockTries {
				return fmt.Errorf("a long transaction keeps a table locked; end it and run it again: %w", err)
			}
			select {
			case <-time.After(lockPause):
			case <-ctx.Done():
				return errors.Join(ctx.Err(), err)
			}
		}
	})
	return applied, err
}

// lockedOut reports whether a migration was given up because somebody else used its table.
func lockedOut(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == codeLockNotAvailable
}

// Down takes the newest migration back, data included. It returns the file that it undid.
func Down(ctx context.Context, databaseURL string) (string, error) {
	var undone string
	err := with(databaseURL, func(p *goose.Provider) error {
		result, err := p.Down(ctx)
		if result != nil {
			undone = result.Source.Path
		}
		return err
	})
	return undone, err
}

// State is what is known of one migration.
type State struct {
	Version int64
	File    string
	Applied bool
}

// Status lists all migrations, oldest first, with what the database has of them.
func Status(ctx context.Context, databaseURL string) ([]State, error) {
	var states []State
	err := with(databaseURL, func(p *goose.Provider) error {
		list, err := p.Status(ctx)
		for _, s := range list {
			states = append(states, State{Version: s.Source.Version, File: s.Source.Path, Applied: s.State == goose.StateApplied})
		}
		return err
	})
	return states, err
}

// Newest is the version of the newest migration in this program.
func Newest() int64 {
	files, err := FS.ReadDir(".")
	if err != nil {
		panic(err) // the files are part of the program
	}
	version, err := goose.NumericComponent(files[len(files)-1].Name())
	if err != nil {
		panic(err)
	}
	return version
}

func with(databaseURL string, do func(*goose.Provider) error) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("reading the database URL: %w", err)
	}
	config.RuntimeParams["application_name"] = "termkeeper migrate"
	config.RuntimeParams["lock_timeout"] = lockTimeout
	db := stdlib.OpenDB(*config)
	defer closeQuietly(db)
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("preparing the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	if err := do(provider); err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	return nil
}

// closeQuietly drops the error of closing: everything that mattered was committed or reported before.
func closeQuietly(db *sql.DB) { _ = db.Close() }
