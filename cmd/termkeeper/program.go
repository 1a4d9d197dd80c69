package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"termkeeper/internal/config"
	"termkeeper/internal/store"
	"termkeeper/migrations"
	"termkeeper/workflows"
)

// program is what every command has from the outside.
type program struct {
	environ        []string
	stdout, stderr io.Writer
}

// getenv reads one variable of the environment; the last entry of a name counts, as in a shell.
func (p *program) getenv(name string) string {
	for _, entry := range slices.Backward(p.environ) {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value
		}
	}
	return ""
}

// Flags that override variables carry their names in this annotation.
const overrides = "termkeeper_overrides"

// overrideFlag adds a flag that overrides a variable of the environment.
func overrideFlag(cmd *cobra.Command, flag, variable, help string) {
	cmd.Flags().String(flag, "", help+" (overrides "+variable+")")
	cmd.Flags().Lookup(flag).Annotations = map[string][]string{overrides: {variable}}
}

// config reads the environment and the flags over it. An error is one of usage.
func (p *program) config(cmd *cobra.Command, needs ...config.Need) (config.Config, error) {
	environ := slices.Clone(p.environ)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if variable := f.Annotations[overrides]; len(variable) == 1 {
			environ = append(environ, variable[0]+"="+f.Value.String())
		}
	})
	c, err := config.Load(environ, workflows.JobIDs(), needs...)
	if err != nil {
		return c, usage(fmt.Errorf("the configuration is wrong:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  ")))
	}
	return c, nil
}

// The exit codes.
const (
	exitDone        = 0
	exitNo          = 1 // the answer is no, or something went wrong
	exitUsage       = 2
	exitUnreachable = 3 // a dependency could not be reached
)

// coded is an error with its exit code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// usage marks an error of whoever called: a wrong flag, a wrong variable.
func usage(err error) error { return coded{err, exitUsage} }

// unreachable marks an error of a dependency that did not answer.
func unreachable(err error) error { return coded{err, exitUnreachable} }

func exitCode(err error) int {
	var c coded
	var network *net.OpError
	var file *fs.PathError
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &file): // the system's errors about files look like those of the network
		return exitNo
	case errors.As(err, &network) && network.Op == "listen": // an address of our own, no dependency
		return exitNo
	case store.Unavailable(err):
		return exitUnreachable
	default:
		return exitNo
	}
}

// openStore opens a small pool for one command and checks that the database is of the program's environment and that its
// schema is not older than the program. The caller closes the pool.
func openStore(ctx context.Context, c config.Config, name string) (*store.Store, *pgxpool.Pool, error) {
	pool, err := openPool(ctx, c, name)
	if err != nil {
		return nil, nil, err
	}
	s := store.New(pool)
	if err := checkSchema(ctx, s); err != nil {
		pool.Close()
		return nil, nil, err
	}
	return s, pool, nil
}

// openPool is openStore for commands that need no schema. It claims no new database.
func openPool(ctx context.Context, c config.Config, name string) (*pgxpool.Pool, error) {
	pool, err := store.Open(ctx, c.DatabaseURL.Reveal(), store.PoolOptions{
		Name: "termkeeper " + name, MaxConns: 2, StatementTimeout: 30 * time.Second, LockTimeout: 5 * time.Second,
	})
	if err != nil {
		return nil, databaseError(err)
	}
	if err := store.New(pool).CheckEnvironment(ctx, c.Environment); err != nil {
		pool.Close()
		return nil, databaseError(err)
	}
	return pool, nil
}

// checkEnvironment refuses a database of another environment.
func checkEnvironment(ctx context.Context, c config.Config, name string) error {
	pool, err := openPool(ctx, c, name)
	if err != nil {
		return err
	}
	pool.Close()
	return nil
}

// checkSchema refuses a database that lacks migrations of this program. A newer one is fine: while a new version is
// being rolled out, the old one goes on.
func checkSchema(ctx context.Context, s *store.Store) error {
	version, err := s.SchemaVersion(ctx)
	if err != nil {
		return databaseError(err)
	}
	if version < migrations.Newest() {
		return fmt.Errorf("the database has schema version %d and this program needs %d: run `termkeeper migrate up`", version, migrations.Newest())
	}
	return nil
}

// databaseError says in one sentence what to do about a database that does not answer. The driver's own words span
// several lines and say the same for every address it tried.
func databaseError(err error) error {
	if !store.Unavailable(err) {
		return err
	}
	var network *net.OpError
	if errors.As(err, &network) {
		err = network
	}
	return unreachable(fmt.Errorf("PostgreSQL cannot be reached (%w): check that it runs and that DATABASE_URL points at it", err))
}

// noArgs refuses arguments where a command takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("`%s` does not take %q; `%s --help` shows how", cmd.CommandPath(), args[0], cmd.CommandPath()))
	}
	return nil
}
