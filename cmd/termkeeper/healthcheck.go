package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthPatience is longer than a process takes to find out that it is not ready, so that its own words are shown.
const healthPatience = 3 * time.Second

func healthcheckCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the process on this machine whether it is ready",
		Long: `Asks the API or the worker that runs on this machine whether it is ready, at TERMKEEPER_OPS_ADDR. It is for containers, which
have no other program to ask with.`,
		Example: `  termkeeper healthcheck
  termkeeper healthcheck --ops 127.0.0.1:9090`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config(cmd)
			if err != nil {
				return err
			}
			answer, err := askReady(cmd.Context(), c.OpsAddr)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(p.stdout, answer)
			return err
		},
	}
	overrideFlag(cmd, "ops", "TERMKEEPER_OPS_ADDR", "address of health and metrics")
	return cmd
}

// askReady returns what the process at addr says of itself. The error says that it is not ready, or not there.
func askReady(ctx context.Context, addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", usage(fmt.Errorf("reading the address of health and metrics: %w", err))
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) { // one that listens everywhere is asked here
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz/ready", nil)
	if err != nil {
		return "", usage(fmt.Errorf("making the request for %s: %w", addr, err))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", unreachable(fmt.Errorf("nothing answers at %s; check that the process runs and that TERMKEEPER_OPS_ADDR is its own", addr))
	}
	defer response.Body.Close()
	const most = 4 << 10 // it is one line
	text, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil {
		return "", unreachable(fmt.Errorf("reading the answer of %s: %w", addr, err))
	}
	answer := strings.TrimSpace(string(text))
	if response.StatusCode != http.StatusOK {
		return "", errors.New(answer)
	}
	return answer, nil
}
