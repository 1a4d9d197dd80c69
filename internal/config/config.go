// Package config reads the environment into one struct and says everything that is wrong with it at once, by name and
// without repeating a secret.
package config

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"
	_ "time/tzdata" // the names of time zones are known on a machine without them too

	"github.com/caarlos0/env/v11"

	"termkeeper/internal/secret"
)

// The environments that a database can belong to.
const (
	Development = "development"
	Staging     = "staging"
	Production  = "production"
)

// How access checks are answered: by reading the database at each, or from memory that a feed of changes keeps fresh.
const (
	AccessStrict = "strict"
	AccessCached = "cached"
)

// Config is what the environment says. An empty variable counts as one that is not set.
type Config struct {
	DatabaseURL    secret.Text   `env:"DATABASE_URL"`
	Environment    string        `env:"TERMKEEPER_ENV" envDefault:"development"`
	HTTPAddr       string        `env:"TERMKEEPER_HTTP_ADDR" envDefault:"127.0.0.1:8080"`
	OpsAddr        string        `env:"TERMKEEPER_OPS_ADDR" envDefault:"127.0.0.1:9090"`
	AccessMode     string        `env:"TERMKEEPER_ACCESS_MODE" envDefault:"strict"`
	RenewalLeeway  time.Duration `env:"TERMKEEPER_RENEWAL_LEEWAY" envDefault:"1h"`
	TimeZone       string        `env:"TERMKEEPER_TIME_ZONE" envDefault:"UTC"` // of the calendars of daily jobs and reports
	InstanceID     string        `env:"TERMKEEPER_INSTANCE_ID"`                // host and random where it is not set
	StripeAPIKey   secret.Text   `env:"STRIPE_API_KEY"`
	StripeAPIBase  string        `env:"STRIPE_API_BASE"` // "" is Stripe's own
	WebhookSecrets []secret.Text `env:"STRIPE_WEBHOOK_SECRETS" envSeparator:","`
	SMTPURL        secret.Text   `env:"SMTP_URL"` // may hold a password
	// SecretKey seals stored credentials: base64 of 32 bytes. Empty where nothing is stored that needs it.
	SecretKey secret.Text `env:"TERMKEEPER_SECRET_KEY"`
	// AllowPrivateTargets is empty where it is not set; PrivateTargets says what holds.
	AllowPrivateTargets string `env:"TERMKEEPER_ALLOW_PRIVATE_TARGETS"`

	// JobEvery is the overridden cadence by schedule id, from TERMKEEPER_JOB_<SCHEDULE_ID>_EVERY.
	JobEvery map[string]time.Duration `env:"-"`
}

// Need is a variable that a process cannot do without, though others can.
type Need string

// The needs of single processes.
const (
	NeedDatabase       Need = "DATABASE_URL"
	NeedWebhookSecrets Need = "STRIPE_WEBHOOK_SECRETS"
)

// Load reads environ, a list of NAME=value as os.Environ gives it. jobs are the schedule ids whose cadence may be
// overridden. The error joins one sentence per wrong or missing variable; none repeats the value of a secret.
func Load(environ, jobs []string, needs ...Need) (Config, error) {
	values := env.ToMap(environ)
	c, problems := parse(values)
	problems = append(problems, c.check(needs)...)
	every, wrong := jobCadences(values, jobs)
	c.JobEvery = every
	problems = append(problems, wrong...)
	if len(problems) > 0 {
		return Config{}, errors.Join(problems...)
	}
	if c.InstanceID == "" {
		c.InstanceID = newInstanceID()
	}
	return c, nil
}

// Livemode is the livemode that events must have: true where the Stripe key is a live one.
func (c Config) Livemode() bool {
	key := c.StripeAPIKey.Reveal()
	return strings.HasPrefix(key, "sk_live") || strings.HasPrefix(key, "rk_live")
}

// Zone is the time zone of the calendars. Load has checked that it is known.
func (c Config) Zone() *time.Location {
	zone, err := time.LoadLocation(c.TimeZone)
	if err != nil {
		return time.UTC
	}
	return zone
}

// PrivateTargets reports whether outgoing calls may reach loopback and private addresses: in development unless it is
// switched off, in staging where it is switched on, in production never.
func (c Config) PrivateTargets() bool {
	if c.AllowPrivateTargets == "" {
		return c.Environment == Development
	}
	return c.AllowPrivateTargets == allowed
}

// WebhookKeys are the webhook secrets in the clear, for the verifier.
func (c Config) WebhookKeys() []string {
	keys := make([]string, len(c.WebhookSecrets))
	for i, s := range c.WebhookSecrets {
		keys[i] = s.Reveal()
	}
	return keys
}

// Variables lists the names of all variables of the struct, in its order.
func Variables() []string {
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if name := field.Tag.Get("env"); name != "-" {
			names = append(names, name)
		}
	}
	return names
}

func parse(values map[string]string) (Config, []error) {
	var c Config
	err := env.ParseWithOptions(&c, env.Options{Environment: values})
	var all env.AggregateError
	if err == nil {
		return c, nil
	}
	if !errors.As(err, &all) {
		return c, []error{err}
	}
	var problems []error
	for _, one := range all.Errors {
		var wrong env.ParseError
		if !errors.As(one, &wrong) {
			problems = append(problems, one)
			continue
		}
		// The library names the field and may repeat the value; a person knows the variable.
		field, _ := reflect.TypeFor[Config]().FieldByName(wrong.Name)
		problems = append(problems, fmt.Errorf("%s must be %s", field.Tag.Get("env"), wanted(wrong.Type)))
	}
	return c, problems
}

func wanted(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a duration like 10s or 72h"
	}
	return "a value of the kind " + t.String()
}

func newInstanceID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unnamed"
	}
	suffix := make([]byte, 4)
	_, _ = rand.Read(suffix) // never returns an error since Go 1.24
	return host + "-" + hex.EncodeToString(suffix)
}
