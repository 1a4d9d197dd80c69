// Command bench measures the paths that must be fast, each against a limit of the same machine in the same run, and
// prints one table. It starts its own PostgreSQL and Temporal and removes them at the end. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// serveConstant as the first argument makes the process the server that the access checks are compared with.
const serveConstant = "serve-constant"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == serveConstant {
		if err := constantServer(ctx, stderr); err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 1
		}
		return 0
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	rounds := flags.Int("rounds", 3, "how often each pair is measured; the table shows medians")
	only := flags.String("only", "", "paths to measure, by commas (default all): "+strings.Join(pathNames(), ", "))
	if err := flags.Parse(args); err != nil {
		return 2
	}
	chosen, err := choose(*only)
	if err != nil || flags.NArg() > 0 || *rounds < 1 {
		fmt.Fprintln(stderr, "bench: wrong arguments; see -help:", err)
		return 2
	}
	if err := measure(ctx, chosen, *rounds, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// path is one thing to measure. It returns its rows of the table.
type path struct {
	name    string
	measure func(ctx context.Context, s *stack, rounds int) ([]row, error)
}

func paths() []path {
	return []path{
		{"access", measureAccess},
		{"cached", measureCached},
		{"expiry", measureExpiry},
		{"intake", measureIntake},
		{"delivery", measureDelivery},
		{"delay", measureDelay},
	}
}

func pathNames() []string {
	var names []string
	for _, p := range paths() {
		names = append(names, p.name)
	}
	return names
}

func choose(only string) ([]path, error) {
	if only == "" {
		return paths(), nil
	}
	wanted := strings.Split(only, ",")
	var chosen []path
	for _, p := range paths() {
		if slices.Contains(wanted, p.name) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) != len(wanted) {
		return nil, fmt.Errorf("the paths are %s", strings.Join(pathNames(), ", "))
	}
	return chosen, nil
}

func measure(ctx context.Context, chosen []path, rounds int, stdout, stderr io.Writer) (err error) {
	s, err := startStack(ctx, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop(context.WithoutCancel(ctx))) }()
	var rows []row
	for _, p := range chosen {
		measured, err := p.measure(ctx, s, rounds)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", p.name, err)
		}
		rows = append(rows, measured...)
	}
	return printTable(stdout, rows)
}
