// Command ensure finds what Termkeeper needs besides Go, installs what is missing where it may, and prints the paths:
//
//	go run ./internal/devstack/ensure                        # both
//	go run ./internal/devstack/ensure postgresql             # by apt-get, as root on Debian and its kin
//	go run ./internal/devstack/ensure temporal               # by download, else `go install`
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"termkeeper/internal/devstack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ensure:", err)
		os.Exit(3)
	}
}

func run(ctx context.Context, wanted []string, out io.Writer) error {
	if len(wanted) == 0 {
		wanted = []string{"postgresql", "temporal"}
	}
	for _, name := range wanted {
		var path string
		var err error
		switch name {
		case "postgresql":
			path, err = devstack.EnsurePostgres(ctx, out)
		case "temporal":
			path, err = devstack.FindTemporal(ctx, out)
		default:
			err = fmt.Errorf("%q is not known; name postgresql or temporal", name)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", name, path)
	}
	return nil
}
