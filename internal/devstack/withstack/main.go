// Command withstack runs another command, usually `go test`, with a private PostgreSQL and a Temporal development
// server beside it, and exits with that command's code:
//
//	go run ./internal/devstack/withstack -- go test ./...
//
// What the command finds in its environment:
//
//	TERMKEEPER_TEST_DATABASE_URL        superuser, database "postgres"
//	TERMKEEPER_TEST_POSTGRES_BIN        folder of pg_dump, psql and the rest
//	TERMKEEPER_TEST_TEMPORAL_ADDRESS    host:port of the gRPC API
//	TERMKEEPER_TEST_TEMPORAL_NAMESPACE  a namespace that exists
//	TERMKEEPER_TEMPORAL_BINARY          the Temporal CLI
//
// Both servers keep their state in a temporary folder that is removed at the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"termkeeper/internal/devstack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "withstack:", err)
	}
	os.Exit(code)
}

// run returns the exit code: that of the command, or 3 when a server could not be had.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int, err error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("name the command to run, for instance: withstack -- go test ./internal/store")
	}
	const unavailable = 3
	bin, err := devstack.EnsurePostgres(ctx, stderr)
	if err != nil {
		return unavailable, err
	}
	binary, err := devstack.FindTemporal(ctx, stderr)
	if err != nil {
		return unavailable, err
	}
	dir, err := os.MkdirTemp("", "termkeeper-test-")
	if err != nil {
		return unavailable, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	postgres, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{
		DataDir: filepath.Join(dir, "postgres"), BinDir: bin, MaxConnections: 300,
	})
	if err != nil {
		return unavailable, err
	}
	defer func() { err = errors.Join(err, postgres.Stop(context.WithoutCancel(ctx))) }()
	temporal, err := devstack.StartTemporal(ctx, devstack.TemporalOptions{
		Binary: binary, Namespace: "test", LogFile: filepath.Join(dir, "temporal.log"),
	})
	if err != nil {
		return unavailable, err
	}
	defer func() { err = errors.Join(err, temporal.Stop(context.WithoutCancel(ctx))) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-postgres.Done():
			cancel(fmt.Errorf("the PostgreSQL server ended before the command did: %w", postgres.Err()))
		case <-temporal.Done():
			cancel(fmt.Errorf("the Temporal server ended before the command did: %w", temporal.Err()))
		case <-ctx.Done():
		}
	}()

	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	cmd.Env = append(os.Environ(),
		"TERMKEEPER_TEST_DATABASE_URL="+postgres.URL("postgres"),
		"TERMKEEPER_TEST_POSTGRES_BIN="+bin,
		"TERMKEEPER_TEST_TEMPORAL_ADDRESS="+temporal.Address(),
		"TERMKEEPER_TEST_TEMPORAL_NAMESPACE="+temporal.Namespace(),
		"TERMKEEPER_TEMPORAL_BINARY="+binary,
	)
	err = cmd.Run()
	if cause := context.Cause(ctx); cause != nil {
		return 1, cause
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil // the command has said itself what was wrong
	}
	if err != nil {
		return 1, fmt.Errorf("run %s: %w", args[0], err)
	}
	return 0, nil
}
