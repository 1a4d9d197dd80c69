package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/devstack"
	"termkeeper/migrations"
)

// template is a migrated database without rows. Every measurement works on copies, so that each begins alike.
const template = "migrated"

// stack is what all measurements share: a PostgreSQL server, the program, and a folder that is removed at the end.
type stack struct {
	log      io.Writer
	dir      string
	program  string // the built termkeeper
	postgres *devstack.Postgres
	cpu      cpuMeter
}

func startStack(ctx context.Context, log io.Writer) (*stack, error) {
	dir, err := os.MkdirTemp("", "termkeeper-bench-")
	if err != nil {
		return nil, err
	}
	s := &stack{log: log, dir: dir, program: filepath.Join(dir, "termkeeper")}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *stack) start(ctx context.Context) error {
	s.say("building the program")
	build := exec.CommandContext(ctx, "go", "build", "-o", s.program, "./cmd/termkeeper")
	build.Stderr = s.log
	if err := build.Run(); err != nil {
		return fmt.Errorf("building termkeeper (run bench in the root of the module): %w", err)
	}
	s.say("starting PostgreSQL")
	var err error
	s.postgres, err = devstack.StartPostgres(ctx, devstack.PostgresOptions{
		DataDir: filepath.Join(s.dir, "postgres"), Database: template, MaxConnections: 100, Settings: settings(),
	})
	if err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, s.postgres.URL(template)); err != nil {
		return err
	}
	return s.on(ctx, "postgres", func(conn *pgx.Conn) error {
		s.cpu, err = newCPUMeter(ctx, conn)
		return err
	})
}

// settings are the server's settings that differ from those of `termkeeper dev` and of PostgreSQL itself; README.md has them too.
func settings() map[string]string {
	return map[string]string{
		// A checkpoint in the middle of one round and not of the other would decide a ratio. The bench makes its own.
		"max_wal_size": "8GB", "checkpoint_timeout": "1h",
		// The delay to a mark is taken from the instant of its commit.
		"track_commit_timestamp": "on",
	}
}

func (s *stack) stop(ctx context.Context) error {
	var err error
	if s.postgres != nil {
		err = s.postgres.Stop(ctx)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *stack) say(format string, args ...any) { fmt.Fprintf(s.log, format+"\n", args...) }

// on connects as the superuser.
func (s *stack) on(ctx context.Context, database string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.postgres.URL(database))
	if err != nil {
		return fmt.Errorf("connecting to the database %s: %w", database, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}

// prepare makes a database with rows, vacuumed and analyzed, that copies are made of.
func (s *stack) prepare(ctx context.Context, name string, fill func(*pgx.Conn) error) error {
	s.say("filling the database %s", name)
	if err := s.copy(ctx, template, name); err != nil {
		return err
	}
	return s.on(ctx, name, func(conn *pgx.Conn) error {
		if err := fill(conn); err != nil {
			return fmt.Errorf("filling the database %s: %w", name, err)
		}
		_, err := conn.Exec(ctx, "VACUUM (ANALYZE)")
		return err
	})
}

// copy makes a database of another one, whatever was there before, and a checkpoint: what is dirty is on disk when the
// measurement begins.
func (s *stack) copy(ctx context.Context, from, to string) error {
	return s.on(ctx, "postgres", func(conn *pgx.Conn) error {
		for _, statement := range []string{
			"DROP DATABASE IF EXISTS " + pgx.Identifier{to}.Sanitize() + " WITH (FORCE)",
			"CREATE DATABASE " + pgx.Identifier{to}.Sanitize() + " TEMPLATE " + pgx.Identifier{from}.Sanitize() + " STRATEGY file_copy",
			"CHECKPOINT",
		} {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("copying the database %s: %w", from, err)
			}
		}
		return nil
	})
}

func (s *stack) drop(ctx context.Context, names ...string) error {
	return s.on(ctx, "postgres", func(conn *pgx.Conn) error {
		for _, name := range names {
			if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)"); err != nil {
				return err
			}
		}
		return nil
	})
}

// poll asks every few milliseconds until the answer is yes.
func poll(ctx context.Context, every time.Duration, ask func() (bool, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		yes, err := ask()
		if err != nil || yes {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
