package main

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/conformance"
	"termkeeper/internal/storetest"
)

// instance is a running API with a key of role admin.
type instance struct {
	*running
	key     string
	environ []string
}

func startInstance(t *testing.T, environ ...string) instance {
	t.Helper()
	environ = append([]string{
		"DATABASE_URL=" + storetest.NewURL(t), "STRIPE_WEBHOOK_SECRETS=" + testSecret, "TEMPORAL_ADDRESS=127.0.0.1:1",
		"TERMKEEPER_HTTP_ADDR=127.0.0.1:0", "TERMKEEPER_OPS_ADDR=127.0.0.1:0",
	}, environ...)
	code, stdout, stderr := command(t, environ, "apikey", "create", "--role", "admin", "--name", "conformance")
	require.Equal(t, exitDone, code, stderr)
	return instance{running: startCommand(t, environ, "api"), key: strings.TrimSpace(stdout), environ: environ}
}

func (i instance) conform(t *testing.T, args ...string) (conformance.Report, int, string) {
	t.Helper()
	args = append([]string{"conformance", "--url", i.http, "--secret", testSecret, "--json"}, args...)
	code, stdout, stderr := command(t, []string{"TERMKEEPER_API_KEY=" + i.key}, args...)
	var report conformance.Report
	if stdout != "" {
		require.NoError(t, json.Unmarshal([]byte(stdout), &report), stdout)
	}
	return report, code, stderr
}

func TestConformanceWithoutAProvider(t *testing.T) {
	t.Parallel()
	i := startInstance(t)
	report, code, stderr := i.conform(t, "--limit", "3", "--seed", "1")
	require.Empty(t, report.Differences)
	require.Equal(t, exitDone, code, stderr)
	require.Contains(t, strings.Join(report.LeftOut, "\n"), "ties")
}

func TestConformanceWithAProvider(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:0"
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	free := listener.Addr().String()
	require.NoError(t, listener.Close())
	i := startInstance(t, "STRIPE_API_KEY=sk_test_conformance", "STRIPE_API_BASE=http://"+free)
	report, code, stderr := i.conform(t, "--limit", "3", "--seed", "1", "--provider", free)
	require.Empty(t, report.Differences)
	require.Equal(t, exitDone, code, stderr)
	require.Positive(t, report.Asked)
	require.Empty(t, report.LeftOut)
	for _, l := range report.Lives {
		require.Positive(t, l.Tied, l.Life)
	}
}
