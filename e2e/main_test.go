// Package e2e runs the real program as child processes against real servers: the walks that a person or another program
// takes, and what must hold when a process or a server is stopped or killed in the middle of them.
//
// `make test` gives it PostgreSQL and Temporal (see internal/devstack/withstack). Tests that stop or kill a server start
// one of their own. `go test -short` leaves the whole package out, see TestMain.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// programs is the folder with the two builds of the program. TestMain sets it once, before any test runs.
var programs string

const (
	plain      = "termkeeper"
	failpoints = "termkeeper-failpoints" // can be told to kill itself at a named place, see internal/failpoint
)

// TestMain builds the program. Under -short it runs no test: every one of them needs child processes and seconds, so
// that "short" and "without this package" are the same thing. `go test` says "no tests to run" then, and not that they
// passed.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		if err := flag.Set("test.run", "^$"); err != nil {
			panic(err) // the testing package has always had it
		}
		os.Exit(m.Run())
	}
	runMoreAtOnce()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
	}
	os.Exit(code)
}

// runMoreAtOnce lets four tests run at the same time, unless -parallel says otherwise. They wait most of their time: for
// an end, a heartbeat, a server that starts. One per core would take half as long again.
func runMoreAtOnce() {
	const name, tests = "test.parallel", "4"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		_ = flag.Set(name, tests) // it fails for a wrong name or number only
	}
}

func buildAndRun(m *testing.M) (code int, err error) {
	const failed = 1
	if programs, err = os.MkdirTemp("", "termkeeper-e2e-"); err != nil {
		return failed, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	if err := os.Chmod(programs, 0o755); err != nil { // another user runs the program too
		return failed, err
	}
	if err := build(plain); err != nil {
		return failed, err
	}
	if err := build(failpoints, "-tags", "failpoints"); err != nil {
		return failed, err
	}
	return m.Run(), nil
}

func build(name string, flags ...string) error {
	// Without the debugger's tables the linker is done in half the time.
	args := append([]string{"build", "-ldflags=-w", "-o", filepath.Join(programs, name)}, flags...)
	cmd := exec.CommandContext(context.Background(), "go", append(args, "./cmd/termkeeper")...)
	cmd.Dir = ".." // the module's root: tests run in the folder of their package
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return nil
}
