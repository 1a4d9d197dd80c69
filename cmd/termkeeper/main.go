// Termkeeper keeps the terms of paid access: who has access until when, and what must happen around those dates.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // the second signal ends the process at once
	}()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the whole program. It returns the exit code. ctx ends when the program is to stop in order.
// environ is a list of NAME=value and not a function, because the cadences of jobs are found by their names' shape.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	p := &program{environ: environ, stdout: stdout, stderr: stderr}
	root := rootCommand(p)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, "termkeeper: "+err.Error()) // nobody is left to tell of an error
		return exitCode(err)
	}
	return exitDone
}

func rootCommand(p *program) *cobra.Command {
	root := &cobra.Command{
		Use:           "termkeeper",
		Short:         "Keeps the terms of paid access: who has access until when, and what must happen around those dates",
		SilenceErrors: true, SilenceUsage: true,
		Example: `  termkeeper migrate up
  termkeeper apikey create --role admin --name first
  termkeeper api`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("there is no command %q; `termkeeper --help` lists them", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; `%s --help` shows how", err, cmd.CommandPath()))
	})
	root.AddCommand(
		apiCommand(p),
		devCommand(p),
		demoCommand(p),
		migrateCommand(p),
		apikeyCommand(p),
		workerCommand(p),
		schedulesCommand(p),
		conformanceCommand(p),
		healthcheckCommand(p),
		versionCommand(p),
	)
	return root
}
