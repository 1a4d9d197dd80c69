package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/config"
	"termkeeper/internal/storetest"
	"termkeeper/migrations"
)

const testSecret = "whsec_test_0123456789abcdef"

// output can be read while a command writes it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func command(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs output
	code = run(t.Context(), args, environ, &out, &errs)
	return code, out.String(), errs.String()
}

// TestANewInstallation goes the way of a new database: migrations, the first key, the API, its end.
func TestANewInstallation(t *testing.T) {
	t.Parallel()
	environ := []string{
		"DATABASE_URL=" + storetest.NewURL(t), "STRIPE_WEBHOOK_SECRETS=" + testSecret, "TEMPORAL_ADDRESS=127.0.0.1:1",
		"TERMKEEPER_HTTP_ADDR=127.0.0.1:0", "TERMKEEPER_OPS_ADDR=127.0.0.1:1", // the flag below overrides it
	}
	for range migrations.Newest() { // the test's database comes migrated
		code, stdout, stderr := command(t, environ, "migrate", "down")
		require.Equal(t, exitDone, code, stderr)
		require.Contains(t, stdout, "took back ")
	}
	for _, args := range [][]string{{"apikey", "list"}, {"api"}} {
		code, _, stderr := command(t, environ, args...)
		require.Equal(t, exitNo, code)
		require.Contains(t, stderr, "run `termkeeper migrate up`")
	}
	code, stdout, _ := command(t, environ, "migrate", "up")
	require.Equal(t, exitDone, code)
	require.Contains(t, stdout, fmt.Sprintf("the schema is at version %d\n", migrations.Newest()))
	code, stdout, _ = command(t, environ, "migrate", "status")
	require.Equal(t, exitDone, code)
	require.NotContains(t, stdout, "pending")

	code, stdout, stderr := command(t, environ, "apikey", "create", "--role", "access", "--name", "shop")
	require.Equal(t, exitDone, code, stderr)
	key := strings.TrimSpace(stdout)
	require.Regexp(t, `^tk_[A-Za-z0-9_-]{43}$`, key, "nothing but the key is on standard output")
	require.NotContains(t, stderr, key)
	code, stdout, _ = command(t, environ, "apikey", "list")
	require.Equal(t, exitDone, code)
	require.Contains(t, stdout, "shop")
	require.NotContains(t, stdout, key)

	api := startCommand(t, environ, "api", "--ops", "127.0.0.1:0")
	becomes := func(status int, url string) {
		require.Eventually(t, func() bool { return api.get(t, url, key) == status }, 20*time.Second, 20*time.Millisecond)
	}
	becomes(http.StatusOK, api.http+"/v1/access?user_id=u_1")
	becomes(http.StatusOK, api.ops+"/healthz/ready") // without Temporal
	code, stdout, _ = command(t, environ, "apikey", "revoke", keyID(t, environ))
	require.Equal(t, exitDone, code)
	require.Contains(t, stdout, "shop")
	becomes(http.StatusUnauthorized, api.http+"/v1/access?user_id=u_1")

	code, _, stderr = command(t, append(environ, "TERMKEEPER_ENV=production"), "api", "--ops", "127.0.0.1:0")
	require.Equal(t, exitNo, code)
	require.Contains(t, stderr, "the database belongs to the environment development")
	code, _, stderr = command(t, append(environ, "TERMKEEPER_ENV=production"), "migrate", "down")
	require.Equal(t, exitNo, code)
	require.Contains(t, stderr, "--force")
	code, _, stderr = command(t, environ, "api", "--http", strings.TrimPrefix(api.http, "http://"), "--ops", "127.0.0.1:0")
	require.Equal(t, exitNo, code)
	require.Contains(t, stderr, "address already in use")

	require.Equal(t, exitDone, api.stop(t))
	require.NotContains(t, api.stderr.String(), testSecret)
	require.NotContains(t, api.stderr.String(), key)
}

func keyID(t *testing.T, environ []string) string {
	t.Helper()
	_, stdout, _ := command(t, environ, "apikey", "list")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	return strings.Fields(lines[len(lines)-1])[0]
}

// running is a command that serves.
type running struct {
	http, ops string
	stderr    *output
	cancel    context.CancelFunc
	code      chan int
}

// startCommand runs a serving command until it says where it serves.
func startCommand(t *testing.T, environ []string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{stderr: &output{}, cancel: cancel, code: make(chan int, 1)}
	go func() { r.code <- run(ctx, args, environ, io.Discard, r.stderr) }()
	t.Cleanup(cancel)
	require.Eventually(t, func() bool {
		for line := range strings.SplitSeq(r.stderr.String(), "\n") {
			var entry struct {
				Message string `json:"msg"`
				HTTP    string `json:"http_addr"`
				Ops     string `json:"ops_addr"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "serving" {
				r.http, r.ops = "http://"+entry.HTTP, "http://"+entry.Ops
				return true
			}
		}
		return len(r.code) > 0
	}, 30*time.Second, 10*time.Millisecond)
	require.NotEmpty(t, r.http, r.stderr.String())
	return r
}

func (r *running) stop(t *testing.T) int {
	t.Helper()
	r.cancel()
	select {
	case code := <-r.code:
		return code
	case <-time.After(40 * time.Second):
		require.Fail(t, "the command does not stop", r.stderr.String())
		return exitNo
	}
}

func (r *running) get(t *testing.T, url, key string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for want, err := range map[int]error{exitNo: broken, exitUsage: fmt.Errorf("reading: %w", usage(broken)), exitUnreachable: unreachable(broken)} {
		require.Equal(t, want, exitCode(err))
	}
	require.Equal(t, exitUnreachable, exitCode(&net.OpError{Op: "dial", Err: broken}))
	require.Equal(t, exitNo, exitCode(&net.OpError{Op: "listen", Err: broken}))
	_, noFile := os.Open(filepath.Join(t.TempDir(), "missing"))
	require.Equal(t, exitNo, exitCode(fmt.Errorf("opening the log: %w", noFile)), "a file is no dependency that does not answer")
	require.Equal(t, exitUsage, exitCode(errors.Join(usage(broken), broken)))
}

// TestHelpShowsExamples walks all commands: each says what it does, and has an example.
func TestHelpShowsExamples(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		require.Contains(t, cmd.Example, "termkeeper", cmd.CommandPath())
		code, stdout, _ := command(t, nil, append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		require.Equal(t, exitDone, code)
		require.Contains(t, stdout, "Examples:", cmd.CommandPath())
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(rootCommand(&program{stdout: io.Discard, stderr: io.Discard}))
}

func TestFlagsOverrideTheEnvironment(t *testing.T) {
	t.Parallel()
	p := &program{environ: []string{"DATABASE_URL=postgres://env@127.0.0.1/x", "TERMKEEPER_OPS_ADDR=127.0.0.1:1", "TERMKEEPER_OPS_ADDR=127.0.0.1:2"}}
	require.Equal(t, "127.0.0.1:2", p.getenv("TERMKEEPER_OPS_ADDR"), "the last entry counts")
	require.Empty(t, p.getenv("TERMKEEPER_HTTP_ADDR"))
	cmd := apiCommand(p)
	require.NoError(t, cmd.ParseFlags([]string{"--database-url", "postgres://flag@127.0.0.1/x"}))
	c, err := p.config(cmd, config.NeedDatabase)
	require.NoError(t, err)
	require.Equal(t, "postgres://flag@127.0.0.1/x", c.DatabaseURL.Reveal())
	require.Equal(t, "127.0.0.1:2", c.OpsAddr)
	require.NoError(t, cmd.ParseFlags([]string{"--http", "nowhere"}))
	_, err = p.config(cmd)
	require.ErrorContains(t, err, "TERMKEEPER_HTTP_ADDR")
}
