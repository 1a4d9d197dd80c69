// Package migrations holds the database schema as goose SQL files and applies them.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migration files, so that tests can name a template database after their content.
//
//go:embed *.sql
var FS embed.FS

// Up brings the database to the newest schema. Any number of processes may call it at once: a session lock of
// PostgreSQL lets one work and the others wait. It returns the files that this call applied.
func Up(ctx context.Context, databaseURL string) ([]string, error) {
	var applied []string
	err := with(databaseURL, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		for _, r := range results {
			applied = append(applied, r.Source.Path)
		}
		return err
	})
	return applied, err
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
