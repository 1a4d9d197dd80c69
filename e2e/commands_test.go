package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/storetest"
	"termkeeper/migrations"
)

// The exit codes of the contract.
const (
	exitDone        = 0
	exitNo          = 1
	exitUsage       = 2
	exitUnreachable = 3
)

// requireSentences demands that an error says something for a person on stderr and nothing on stdout.
func requireSentences(t *testing.T, s said, code int, parts ...string) {
	t.Helper()
	require.Equal(t, code, s.code, "%s%s", s.stdout, s.stderr)
	require.Empty(t, s.stdout)
	require.True(t, strings.HasPrefix(s.stderr, "termkeeper: "), s.stderr)
	require.NotContains(t, s.stderr, "goroutine ")
	for _, part := range parts {
		require.Contains(t, s.stderr, part)
	}
}

func TestExitCodesOfUsage(t *testing.T) {
	t.Parallel()
	p := program{}
	for _, args := range [][]string{
		{"no-such-command"},
		{"api", "surplus"},
		{"api", "--no-such-flag"},
		{"apikey", "create", "--role", "king", "--name", "x"},
		{"apikey", "create", "--role", "admin"},
		{"apikey", "revoke", "not-an-id"},
		{"worker", "--queues", "no-such-queue"},
		{"dev", "--ephemeral", "--data-dir", "x"},
	} {
		with := program{environ: []string{"DATABASE_URL=postgres://nobody@127.0.0.1:9/none"}}
		requireSentences(t, with.run(t, args...), exitUsage)
	}
	for _, args := range [][]string{{}, {"--help"}, {"api", "--help"}, {"apikey"}, {"version"}} {
		require.NotEmpty(t, p.done(t, args...))
	}
	require.Contains(t, p.done(t, "version"), fmt.Sprint(migrations.Newest()))
}

func TestEveryWrongValueIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	p := program{environ: []string{
		"DATABASE_URL=mysql://root:canary-password@db/x", "TERMKEEPER_ENV=test", "TERMKEEPER_HTTP_ADDR=nowhere", "TERMKEEPER_OPS_ADDR=127.0.0.1:70000",
		"TERMKEEPER_ACCESS_MODE=lax", "TERMKEEPER_RENEWAL_LEEWAY=soon", "STRIPE_WEBHOOK_SECRETS=whsec_canary_short", "SMTP_URL=http://mail",
		"TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=1.5s", "TERMKEEPER_JOB_NO_SUCH_JOB_EVERY=5s", "TERMKEEPER_INSTANCE_ID=two words",
	}}
	s := p.run(t, "api")
	requireSentences(t, s, exitUsage, "DATABASE_URL", "TERMKEEPER_ENV", "TERMKEEPER_HTTP_ADDR", "TERMKEEPER_OPS_ADDR", "TERMKEEPER_ACCESS_MODE",
		"TERMKEEPER_RENEWAL_LEEWAY", "STRIPE_WEBHOOK_SECRETS", "SMTP_URL", "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY", "TERMKEEPER_JOB_NO_SUCH_JOB_EVERY",
		"TERMKEEPER_INSTANCE_ID")
	require.NotContains(t, s.stderr, "canary", "a secret is not repeated")
}

// Without a good secret anybody could forge events, so there is no start without one.
func TestWebhookSecretsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, secrets := range []string{"", " ", "whsec_of_23_characters_", webhookSecret + ",", webhookSecret + ", short"} {
		p := program{environ: []string{"DATABASE_URL=postgres://nobody@127.0.0.1:9/none", "STRIPE_WEBHOOK_SECRETS=" + secrets}}
		requireSentences(t, p.run(t, "api"), exitUsage, "STRIPE_WEBHOOK_SECRETS")
	}
}

func TestUnreachableDependencies(t *testing.T) {
	t.Parallel()
	away := program{environ: []string{"DATABASE_URL=postgres://nobody@127.0.0.1:9/none", "STRIPE_WEBHOOK_SECRETS=" + webhookSecret, "TERMKEEPER_OPS_ADDR=127.0.0.1:0"}}
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "status"}, {"apikey", "list"}, {"api"}, {"worker"}} {
		requireSentences(t, away.run(t, args...), exitUnreachable, "PostgreSQL cannot be reached")
	}
	s := newSystem(t)
	for _, args := range [][]string{{"schedules", "apply"}, {"schedules", "list"}} {
		requireSentences(t, s.program().run(t, args...), exitUnreachable, "Temporal cannot be reached")
	}
	requireSentences(t, program{}.run(t, "demo", "--data-dir", t.TempDir()), exitUnreachable, "no running system")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := storetest.NewURL(t)
	p := program{environ: []string{"DATABASE_URL=" + url, "STRIPE_WEBHOOK_SECRETS=" + webhookSecret, "TERMKEEPER_HTTP_ADDR=127.0.0.1:0", "TERMKEEPER_OPS_ADDR=127.0.0.1:0"}}
	status := func() (applied, pending int) {
		for line := range strings.Lines(p.done(t, "migrate", "status")) {
			switch {
			case strings.HasPrefix(line, "applied "):
				applied++
			case strings.HasPrefix(line, "pending "):
				pending++
			}
		}
		return applied, pending
	}
	all, pending := status() // the template of the test databases has the newest schema
	require.Positive(t, all)
	require.Zero(t, pending)

	require.Contains(t, p.done(t, "migrate", "down"), "took back")
	applied, pending := status()
	require.Equal(t, all-1, applied)
	require.Equal(t, 1, pending)
	requireSentences(t, p.run(t, "api"), exitNo, "termkeeper migrate up")
	requireSentences(t, p.run(t, "worker"), exitNo, "termkeeper migrate up")
	for range all - 1 {
		p.done(t, "migrate", "down")
	}
	applied, _ = status()
	require.Zero(t, applied)
	requireSentences(t, p.run(t, "apikey", "list"), exitNo, "termkeeper migrate up")

	// Five at once: one works, the others wait for it, all are content.
	lines := 0
	for _, r := range p.atOnce(t, 5, "migrate", "up") {
		require.Zero(t, r.code, r.stderr)
		lines += strings.Count(r.stdout, "applied ")
	}
	require.Equal(t, all, lines, "each migration is applied by one of them")
	applied, pending = status()
	require.Equal(t, all, applied)
	require.Zero(t, pending)

	// Dropping data of production needs a word more.
	production := program{environ: append(p.environ, "TERMKEEPER_ENV=production")}
	requireSentences(t, production.run(t, "migrate", "down"), exitNo, "--force")
	applied, _ = status()
	require.Equal(t, all, applied)
}

func TestAPIKeys(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t)
	api := s.startAPI(t)

	made := s.program().run(t, "apikey", "create", "--role", "access", "--name", "web-shop")
	require.Zero(t, made.code, made.stderr)
	shop := api.caller
	shop.key = strings.TrimSpace(made.stdout)
	require.True(t, strings.HasPrefix(shop.key, "tk_"), "stdout has the key and nothing else, for KEY=$(…)")
	require.NotContains(t, made.stderr, shop.key)

	list := s.program().done(t, "apikey", "list")
	require.NotContains(t, list, shop.key)
	var id string
	for line := range strings.Lines(list) {
		if strings.Contains(line, "web-shop") {
			id = strings.Fields(line)[0]
			require.Contains(t, line, " access ")
		}
	}
	require.NotEmpty(t, id, list)

	shop.want(t, http.StatusOK, http.MethodGet, accessPath("u_1", "", time.Time{}), nil)
	shop.want(t, http.StatusForbidden, http.MethodGet, "/v1/plans", nil)
	s.program().done(t, "apikey", "revoke", id)
	await(t, "the revoked key is refused", func() error {
		a, err := shop.call(t.Context(), http.MethodGet, accessPath("u_1", "", time.Time{}), nil)
		if err == nil && a.status != http.StatusUnauthorized {
			err = fmt.Errorf("answered with %d", a.status)
		}
		return err
	})
	shop.want(t, http.StatusUnauthorized, http.MethodGet, accessPath("u_1", "", time.Time{}), nil)
	api.want(t, http.StatusOK, http.MethodGet, "/v1/plans", nil) // the other key goes on
	requireSentences(t, s.program().run(t, "apikey", "revoke", "01980000-0000-7000-8000-000000000000"), exitNo, "no key")
}

// The database remembers whose it is.
func TestEnvironmentsDoNotMix(t *testing.T) {
	t.Parallel()
	s := newSystemWithJobs(t)
	s.startAPI(t)
	s.program().reaching(t, "schedules", "apply")
	staging := s.program("TERMKEEPER_ENV=staging")
	for _, args := range [][]string{{"api"}, {"worker"}, {"migrate", "up"}, {"migrate", "down"}, {"apikey", "list"}, {"apikey", "create", "--role", "admin", "--name", "x"}} {
		requireSentences(t, staging.run(t, args...), exitNo, "development", "staging", "TERMKEEPER_ENV")
	}
	requireSentences(t, staging.run(t, "schedules", "apply"), exitNo, "development", "staging")
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM environment WHERE name = 'development'`))
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM api_keys`))
}

// A copy of a database is moved to another environment as docs/operations.md says: nothing that waited to be told is told.
func TestDatabaseMovesToAnotherEnvironment(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t)
	api := s.startAPI(t)
	gone := api.subscribe(t, "u_1", now().Add(day))
	api.stops(t, syscall.SIGTERM)
	s.exec(t, `INSERT INTO outbox (topic, dedupe_key, subscription_id, user_id) VALUES ('access.ended', 'waits', $1, 'u_1'), ('access.ended', 'sending', $1, 'u_1')`, gone.ID)
	s.exec(t, `INSERT INTO deliveries (outbox_id, channel, target, topic, message_id, status, leased_until, lease_owner)
		SELECT id, 'email', 'a@example.com', topic, dedupe_key, 'sending', now(), 'x' FROM outbox WHERE dedupe_key = 'sending'`)

	s.exec(t, fenced(t, "sql", "## Environments"))
	staging := s.program("TERMKEEPER_ENV=staging")
	moved := s.launchAPI(t, staging)
	moved.want(t, http.StatusUnauthorized, http.MethodGet, "/v1/plans", nil)
	moved.key = strings.TrimSpace(staging.done(t, "apikey", "create", "--role", "admin", "--name", "staging"))
	moved.want(t, http.StatusOK, http.MethodGet, "/v1/plans", nil)
	requireSentences(t, s.program().run(t, "api"), exitNo, "staging")
	require.Zero(t, s.count(t, `SELECT count(*) FROM outbox WHERE status = 'pending'`))
	require.Zero(t, s.count(t, `SELECT count(*) FROM deliveries WHERE status IN ('pending', 'sending')`))
}

// Only the build for the tests can be told to kill itself.
func TestReleaseHasNoFailpoints(t *testing.T) {
	t.Parallel()
	for build, has := range map[string]bool{plain: false, failpoints: true} {
		text, err := os.ReadFile(programs + "/" + build)
		require.NoError(t, err)
		require.Equal(t, has, strings.Contains(string(text), "TERMKEEPER_FAILPOINT"), build)
	}
}
