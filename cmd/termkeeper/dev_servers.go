package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"termkeeper/internal/config"
	"termkeeper/internal/devstack"
	"termkeeper/internal/secret"
	"termkeeper/internal/store"
	"termkeeper/internal/temporalclient"
	"termkeeper/migrations"
	"termkeeper/workflows"
)

const (
	devDatabase  = "termkeeper"
	devNamespace = "termkeeper-dev"
)

// startServers starts PostgreSQL and Temporal side by side, unless the environment names servers that run already.
func (d *dev) startServers(ctx context.Context, fail context.CancelCauseFunc) error {
	postgres := make(chan error, 1)
	go func() { postgres <- d.startPostgres(ctx) }()
	binary, temporal := d.startTemporal(ctx)
	if err := errors.Join(<-postgres, temporal); err != nil {
		d.stopServers()
		return unreachable(err)
	}
	d.file.TemporalBinary = binary
	if d.postgres != nil {
		d.onStop(d.postgres.Stop)
		go watch(ctx, fail, "PostgreSQL", d.postgres.Done(), d.postgres.Err)
	}
	if d.temporal != nil {
		d.onStop(d.temporal.Stop)
		go watch(ctx, fail, "Temporal", d.temporal.Done(), d.temporal.Err)
	}
	return nil
}

// stopServers ends a server whose companion could not be started.
func (d *dev) stopServers() {
	ctx, cancel := context.WithTimeout(context.Background(), devStop)
	defer cancel()
	if d.postgres != nil {
		_ = d.postgres.Stop(ctx) // the error that is told is why the other did not start
	}
	if d.temporal != nil {
		_ = d.temporal.Stop(ctx)
	}
}

func watch(ctx context.Context, fail context.CancelCauseFunc, name string, done <-chan struct{}, why func() error) {
	select {
	case <-done:
		fail(fmt.Errorf("%s ended by itself: %w", name, why()))
	case <-ctx.Done():
	}
}

func (d *dev) startPostgres(ctx context.Context) error {
	if !d.config.DatabaseURL.Empty() {
		d.file.DatabaseURL = d.config.DatabaseURL.Reveal()
		return nil
	}
	running, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{
		DataDir: filepath.Join(d.dataDir, "postgres"), Database: devDatabase, Durable: true,
	})
	if err != nil {
		return err
	}
	d.postgres = running
	d.file.DatabaseURL = running.URL(devDatabase)
	return nil
}

// startTemporal returns the CLI that belongs to the server, "" where there is none.
func (d *dev) startTemporal(ctx context.Context) (string, error) {
	if d.program.getenv("TEMPORAL_ADDRESS") != "" {
		options, err := temporalclient.Options{Environ: d.program.environ, Logger: d.log}.Config()
		d.file.TemporalAddress, d.file.TemporalNamespace = options.HostPort, options.Namespace
		return "", err
	}
	binary, err := devstack.FindTemporal(ctx, d.program.stderr)
	if err != nil {
		return "", err
	}
	options := devstack.TemporalOptions{
		Binary: binary, DBFile: filepath.Join(d.dataDir, "temporal.db"), LogFile: filepath.Join(d.dataDir, "temporal.log"),
		UIAddress: d.uiAddress, Namespace: devNamespace, Port: d.previousTemporalPort(),
	}
	running, err := devstack.StartTemporal(ctx, options)
	if err != nil && options.Port != 0 && ctx.Err() == nil {
		options.Port = 0 // somebody else has the port of last time
		running, err = devstack.StartTemporal(ctx, options)
	}
	if err != nil {
		return "", err
	}
	d.temporal = running
	d.file.TemporalAddress, d.file.TemporalNamespace, d.file.TemporalUIURL = running.Address(), running.Namespace(), running.UIURL()
	return binary, nil
}

// devSecrets are made once for a data folder, so that a restart changes no key.
type devSecrets struct {
	APIKey        string `json:"api_key"`
	WebhookSecret string `json:"webhook_secret"`
	TemporalPort  int    `json:"temporal_port"`
	SecretKey     string `json:"secret_key"`
}

func (d *dev) secretsPath() string { return filepath.Join(d.dataDir, "secrets.json") }

func (d *dev) readSecrets() (devSecrets, error) {
	var kept devSecrets
	raw, err := os.ReadFile(d.secretsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &kept)
	}
	if err != nil {
		return kept, fmt.Errorf("reading the keys of this data folder: %w; remove %s to have new ones made", err, d.secretsPath())
	}
	return kept, nil
}

// previousTemporalPort keeps the address of Temporal over restarts, for the CLI's settings. 0 takes a free one.
func (d *dev) previousTemporalPort() int {
	kept, err := d.readSecrets()
	if err != nil {
		return 0 // prepareDatabase tells of the error
	}
	return kept.TemporalPort
}

// prepareDatabase brings the schema up and sees to the keys.
func (d *dev) prepareDatabase(ctx context.Context) error {
	kept, err := d.readSecrets()
	if err != nil {
		return err
	}
	d.set("DATABASE_URL", d.file.DatabaseURL)
	d.set("TEMPORAL_ADDRESS", d.file.TemporalAddress)
	d.set("TEMPORAL_NAMESPACE", d.file.TemporalNamespace)
	if _, err := migrations.Up(ctx, d.file.DatabaseURL); err != nil {
		return databaseError(err)
	}
	c, err := config.Load(d.program.environ, workflows.JobIDs(), config.NeedDatabase)
	if err != nil {
		return usage(err)
	}
	s, pool, err := openStore(ctx, c, "dev")
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := s.ClaimEnvironment(ctx, c.Environment); err != nil {
		return err
	}
	if kept.APIKey == "" || !keyWorks(ctx, s, kept.APIKey) {
		key := secret.NewAPIKey()
		if _, err := s.CreateAPIKey(ctx, store.APIKey{Name: "dev", Role: "admin", Hash: key.Hash[:], Prefix: key.Prefix}); err != nil {
			return databaseError(err)
		}
		kept.APIKey = key.Text.Reveal()
	}
	if given := c.WebhookKeys(); len(given) > 0 {
		d.file.WebhookSecret = given[0]
	} else {
		if kept.WebhookSecret == "" {
			kept.WebhookSecret = newWebhookSecret()
		}
		d.file.WebhookSecret = kept.WebhookSecret
		d.set("STRIPE_WEBHOOK_SECRETS", kept.WebhookSecret)
	}
	if c.SecretKey.Empty() {
		if kept.SecretKey == "" {
			kept.SecretKey = secret.NewKey().Reveal()
		}
		d.set("TERMKEEPER_SECRET_KEY", kept.SecretKey)
	}
	d.file.APIKey = kept.APIKey
	if d.temporal != nil {
		kept.TemporalPort = d.temporal.Port()
	}
	raw, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.secretsPath(), raw, 0o600); err != nil {
		return fmt.Errorf("keeping the keys: %w", err)
	}
	return nil
}

// keyWorks: the database may be another one than last time, or the key was revoked.
func keyWorks(ctx context.Context, s *store.Store, key string) bool {
	hash := secret.HashAPIKey(key)
	_, err := s.APIKeyByHash(ctx, hash[:])
	return err == nil
}

func newWebhookSecret() string {
	raw := make([]byte, 24)
	_, _ = rand.Read(raw) // never returns an error since Go 1.24
	return "whsec_" + hex.EncodeToString(raw)
}

// banner tells a person where everything is.
func (d *dev) banner(out io.Writer) {
	f := d.file
	lines := []struct{ name, value string }{
		{"API", f.APIURL},
		{"API key", f.APIKey},
		{"webhook endpoint", f.APIURL + "/v1/webhooks/stripe"},
		{"webhook secret", f.WebhookSecret},
		{"health, metrics", f.OpsURL + "/healthz/ready  " + f.OpsURL + "/metrics"},
		{"Temporal Web UI", f.TemporalUIURL},
		{"Temporal CLI", "export TEMPORAL_ADDRESS=" + f.TemporalAddress + " TEMPORAL_NAMESPACE=" + f.TemporalNamespace},
		{"PostgreSQL", f.DatabaseURL},
		{"offline Stripe", f.StripeURL},
		{"mail sink", f.MailURL},
		{"all of this", devFilePath(d.dataDir)},
		{"log", filepath.Join(d.dataDir, "termkeeper.log")},
	}
	b := strings.Builder{}
	b.WriteString("\nTermkeeper is running. Ctrl-C stops it.\n\n")
	for _, l := range lines {
		if l.value == "" {
			continue
		}
		if l.name == "mail sink" {
			l.value += "/messages"
		}
		fmt.Fprintf(&b, "  %-17s %s\n", l.name, l.value)
	}
	b.WriteString("\n`termkeeper demo` in a second terminal plays the main walk.\n")
	_, _ = io.WriteString(out, b.String()) // a closed terminal stops nothing
}
