package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/secret"
)

// minWebhookSecret is in bytes. Stripe's own have 38; a short one can be guessed, an empty one accepts forged events.
const minWebhookSecret = 24

// allowed switches something on.
const allowed = "true"

// minCadence is the shortest interval of a schedule. The scheduler counts in whole seconds.
const minCadence = time.Second

func (c *Config) check(needs []Need) []error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	if c.DatabaseURL.Empty() {
		if slices.Contains(needs, NeedDatabase) {
			wrong("DATABASE_URL is not set; give it a PostgreSQL URL like postgres://user@host:5432/termkeeper")
		}
	} else if _, err := pgx.ParseConfig(c.DatabaseURL.Reveal()); err != nil {
		wrong("DATABASE_URL is not a PostgreSQL URL like postgres://user@host:5432/termkeeper")
	}
	if !slices.Contains([]string{Development, Staging, Production}, c.Environment) {
		wrong("TERMKEEPER_ENV must be development, staging or production, not %q", c.Environment)
	}
	if err := address(c.HTTPAddr); err != nil {
		wrong("TERMKEEPER_HTTP_ADDR %w", err)
	}
	if err := address(c.OpsAddr); err != nil {
		wrong("TERMKEEPER_OPS_ADDR %w", err)
	}
	if c.AccessMode != AccessStrict && c.AccessMode != AccessCached {
		wrong("TERMKEEPER_ACCESS_MODE must be strict or cached, not %q", c.AccessMode)
	}
	if c.RenewalLeeway < 0 {
		wrong("TERMKEEPER_RENEWAL_LEEWAY must not be negative")
	}
	if _, err := time.LoadLocation(c.TimeZone); err != nil || c.TimeZone == "Local" {
		wrong("TERMKEEPER_TIME_ZONE must be the name of a time zone like UTC or Europe/Berlin, not %q", c.TimeZone)
	}
	if len(c.InstanceID) > 100 || strings.ContainsFunc(c.InstanceID, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		wrong("TERMKEEPER_INSTANCE_ID must have at most 100 printable characters without spaces")
	}
	if key := c.StripeAPIKey.Reveal(); strings.ContainsFunc(key, unicode.IsSpace) {
		wrong("STRIPE_API_KEY must not contain spaces")
	}
	if c.StripeAPIBase != "" {
		if u, err := url.Parse(c.StripeAPIBase); err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.User != nil || u.RawQuery != "" {
			wrong("STRIPE_API_BASE must look like https://api.stripe.com")
		} else if c.Livemode() && u.Scheme != "https" {
			wrong("STRIPE_API_BASE must be https with a live STRIPE_API_KEY")
		}
	}
	problems = append(problems, c.checkWebhookSecrets(needs)...)
	if !c.SMTPURL.Empty() {
		if u, err := url.Parse(c.SMTPURL.Reveal()); err != nil || (u.Scheme != "smtp" && u.Scheme != "smtps") || u.Hostname() == "" {
			wrong("SMTP_URL must look like smtp://user:password@host:587 or smtps://user:password@host:465")
		}
	}
	if !c.SecretKey.Empty() {
		if _, err := secret.NewSealer(c.SecretKey); err != nil {
			wrong("TERMKEEPER_SECRET_KEY %w", err)
		}
	}
	switch {
	case !slices.Contains([]string{"", allowed, "false"}, c.AllowPrivateTargets):
		wrong("TERMKEEPER_ALLOW_PRIVATE_TARGETS must be true or false, not %q", c.AllowPrivateTargets)
	case c.AllowPrivateTargets == allowed && c.Environment == Production:
		wrong("TERMKEEPER_ALLOW_PRIVATE_TARGETS must not be true in production: whoever can name an endpoint could reach what is inside")
	}
	return problems
}

func (c *Config) checkWebhookSecrets(needs []Need) []error {
	if len(c.WebhookSecrets) == 0 || (len(c.WebhookSecrets) == 1 && c.WebhookSecrets[0].Empty()) {
		c.WebhookSecrets = nil
		if slices.Contains(needs, NeedWebhookSecrets) {
			return []error{errors.New("STRIPE_WEBHOOK_SECRETS is not set; give it the signing secret of the webhook endpoint, several separated by commas")}
		}
		return nil
	}
	var problems []error
	for i := range c.WebhookSecrets {
		trimmed := strings.TrimSpace(c.WebhookSecrets[i].Reveal())
		switch {
		case trimmed == "":
			problems = append(problems, fmt.Errorf("STRIPE_WEBHOOK_SECRETS has a blank entry (number %d)", i+1))
		case len(trimmed) < minWebhookSecret:
			problems = append(problems, fmt.Errorf("STRIPE_WEBHOOK_SECRETS has an entry with fewer than %d characters (number %d)", minWebhookSecret, i+1))
		case strings.ContainsFunc(trimmed, unicode.IsSpace):
			problems = append(problems, fmt.Errorf("STRIPE_WEBHOOK_SECRETS has an entry with spaces (number %d)", i+1))
		}
		c.WebhookSecrets[i] = secret.NewText(trimmed)
	}
	return problems
}

func address(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("must be host:port, not %q", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil { // 0 takes any free port
		return fmt.Errorf("must have a port from 0 to 65535, not %q", port)
	}
	return nil
}

// JobVariable is the variable that overrides the cadence of a schedule.
func JobVariable(job string) string {
	return "TERMKEEPER_JOB_" + strings.ToUpper(strings.ReplaceAll(job, "-", "_")) + "_EVERY"
}

func jobCadences(values map[string]string, jobs []string) (map[string]time.Duration, []error) {
	byVariable := make(map[string]string, len(jobs))
	for _, job := range jobs {
		byVariable[JobVariable(job)] = job
	}
	every := map[string]time.Duration{}
	var problems []error
	for name, value := range values {
		if !strings.HasPrefix(name, "TERMKEEPER_JOB_") || value == "" {
			continue
		}
		job, known := byVariable[name]
		if !known {
			problems = append(problems, fmt.Errorf("%s names no job; the names are like %s", name, JobVariable("subscription-expiry")))
			continue
		}
		d, err := time.ParseDuration(value)
		if err != nil || d < minCadence || d%minCadence != 0 {
			problems = append(problems, fmt.Errorf("%s must be whole seconds, at least 1s, like 2s or 5m, not %q", name, value))
			continue
		}
		every[job] = d
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return every, problems
}
