package config_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/config"
)

const (
	databaseURL = "postgres://termkeeper:canary-pass@127.0.0.1:5432/termkeeper"
	secretA     = "whsec_canary_aaaaaaaaaaaaaaaa"
	secretB     = "whsec_canary_bbbbbbbbbbbbbbbb"
)

var jobs = []string{"subscription-expiry", "webhook-apply"}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := config.Load(nil, jobs)
	require.NoError(t, err)
	require.Equal(t, config.Development, c.Environment)
	require.Equal(t, "127.0.0.1:8080", c.HTTPAddr)
	require.Equal(t, "127.0.0.1:9090", c.OpsAddr)
	require.Equal(t, config.AccessStrict, c.AccessMode)
	require.Equal(t, time.Hour, c.RenewalLeeway)
	require.Empty(t, c.WebhookKeys())
	require.Empty(t, c.JobEvery)
	require.False(t, c.Livemode())

	other, err := config.Load(nil, jobs)
	require.NoError(t, err)
	require.NotEmpty(t, c.InstanceID)
	require.NotEqual(t, c.InstanceID, other.InstanceID, "two processes of one host need two names")
}

func TestEverythingSet(t *testing.T) {
	t.Parallel()
	c, err := config.Load([]string{
		"DATABASE_URL=" + databaseURL, "TERMKEEPER_ENV=production", "TERMKEEPER_HTTP_ADDR=[::1]:0", "TERMKEEPER_OPS_ADDR=:9191",
		"TERMKEEPER_ACCESS_MODE=cached", "TERMKEEPER_RENEWAL_LEEWAY=90m", "TERMKEEPER_INSTANCE_ID=api-1",
		"STRIPE_API_KEY=rk_live_canary", "STRIPE_WEBHOOK_SECRETS=" + secretA + ", " + secretB, "SMTP_URL=smtps://u:canary-pass@mail:465",
		"TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s", "TERMKEEPER_JOB_WEBHOOK_APPLY_EVERY=1m", "UNRELATED=1",
	}, jobs, config.NeedDatabase, config.NeedWebhookSecrets)
	require.NoError(t, err)
	require.Equal(t, databaseURL, c.DatabaseURL.Reveal())
	require.Equal(t, []string{secretA, secretB}, c.WebhookKeys(), "spaces around an entry are no part of it")
	require.Equal(t, "smtps://u:canary-pass@mail:465", c.SMTPURL.Reveal())
	require.Equal(t, 90*time.Minute, c.RenewalLeeway)
	require.Equal(t, config.AccessCached, c.AccessMode)
	require.Equal(t, "api-1", c.InstanceID)
	require.True(t, c.Livemode())
	require.Equal(t, map[string]time.Duration{"subscription-expiry": 2 * time.Second, "webhook-apply": time.Minute}, c.JobEvery)
	require.NotContains(t, fmt.Sprintf("%+v %#v", c, c), "canary")
}

func TestWrongValuesAreAllReportedByNameAndWithoutSecrets(t *testing.T) {
	t.Parallel()
	_, err := config.Load([]string{
		"DATABASE_URL=mysql://user:canary@host/db", "TERMKEEPER_ENV=prod", "TERMKEEPER_HTTP_ADDR=8080", "TERMKEEPER_OPS_ADDR=127.0.0.1:99999",
		"TERMKEEPER_ACCESS_MODE=lax", "TERMKEEPER_RENEWAL_LEEWAY=soon", "TERMKEEPER_INSTANCE_ID=two words",
		"STRIPE_API_KEY=sk_live_canary x", "STRIPE_WEBHOOK_SECRETS=short_canary, ," + secretA, "SMTP_URL=http://u:canary@mail",
		"TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=1500ms", "TERMKEEPER_JOB_NOTHING_EVERY=2s",
	}, jobs, config.NeedDatabase)
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	for _, want := range []string{
		"DATABASE_URL is not a PostgreSQL URL", "TERMKEEPER_ENV must be", "TERMKEEPER_HTTP_ADDR must be", "TERMKEEPER_OPS_ADDR must have a port",
		`TERMKEEPER_ACCESS_MODE must be strict or cached, not "lax"`, "TERMKEEPER_RENEWAL_LEEWAY must be a duration",
		"TERMKEEPER_INSTANCE_ID must have", "STRIPE_API_KEY must not contain spaces",
		"STRIPE_WEBHOOK_SECRETS has an entry with fewer than 24 characters (number 1)", "STRIPE_WEBHOOK_SECRETS has a blank entry (number 2)",
		"SMTP_URL must look like", "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY must be whole seconds", "TERMKEEPER_JOB_NOTHING_EVERY names no job",
	} {
		require.True(t, slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }), "%q is missing in\n%s", want, err)
	}
	require.Len(t, lines, 13)
	require.NotContains(t, err.Error(), "canary")
}

func TestNeedsAreDemandedOnlyByThoseThatNeedThem(t *testing.T) {
	t.Parallel()
	for _, empty := range []string{"", "STRIPE_WEBHOOK_SECRETS="} {
		_, err := config.Load([]string{empty}, jobs)
		require.NoError(t, err)
		_, err = config.Load([]string{empty}, jobs, config.NeedWebhookSecrets, config.NeedDatabase)
		require.ErrorContains(t, err, "STRIPE_WEBHOOK_SECRETS is not set")
		require.ErrorContains(t, err, "DATABASE_URL is not set")
	}
	for _, blank := range []string{" ", "\t,", ","} {
		_, err := config.Load([]string{"STRIPE_WEBHOOK_SECRETS=" + blank}, jobs)
		require.ErrorContains(t, err, "blank entry", "%q is set, and to nothing usable", blank)
	}
}

func TestLivemodeFollowsTheKey(t *testing.T) {
	t.Parallel()
	for key, live := range map[string]bool{"sk_live_1": true, "rk_live_1": true, "sk_test_1": false, "rk_test_1": false, "": false} {
		c, err := config.Load([]string{"STRIPE_API_KEY=" + key}, nil)
		require.NoError(t, err)
		require.Equal(t, live, c.Livemode(), key)
	}
}

func TestBaseOfTheProvider(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "https://api.stripe.com", "http://127.0.0.1:12111"} {
		_, err := config.Load([]string{"STRIPE_API_KEY=sk_test_1", "STRIPE_API_BASE=" + good}, nil)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"api.stripe.com", "ftp://host", "https://", "https://user:canary@host", "https://host?x=1"} {
		_, err := config.Load([]string{"STRIPE_API_KEY=sk_test_1", "STRIPE_API_BASE=" + bad}, nil)
		require.ErrorContains(t, err, "STRIPE_API_BASE", bad)
		require.NotContains(t, err.Error(), "canary")
	}
	_, err := config.Load([]string{"STRIPE_API_KEY=sk_live_1", "STRIPE_API_BASE=http://127.0.0.1:12111"}, nil)
	require.ErrorContains(t, err, "must be https", "a live key must not travel in the clear")
}

// TestExampleListsEveryVariable holds .env.example to the struct: each variable once, under a line that explains it.
func TestExampleListsEveryVariable(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../../.env.example")
	require.NoError(t, err)
	var named, environ []string
	explained := false
	for line := range strings.SplitSeq(string(example), "\n") {
		if name, _, isVariable := strings.Cut(line, "="); isVariable && !strings.HasPrefix(line, "#") {
			require.True(t, explained, "%s has no line that explains it", name)
			named, environ = append(named, name), append(environ, line)
		}
		explained = strings.HasPrefix(line, "# ")
	}
	want := append(config.Variables(), config.JobVariable("subscription-expiry"),
		"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY", "TEMPORAL_TLS", "TEMPORAL_PROFILE")
	require.ElementsMatch(t, want, named)

	_, err = config.Load(environ, jobs, config.NeedDatabase)
	require.NoError(t, err, "the example must be a working one")
}
