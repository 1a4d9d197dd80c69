package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// devFile is what a running `termkeeper dev` tells other programs, in <data-dir>/dev.json. It is there only while the
// system is ready.
type devFile struct {
	APIURL            string `json:"api_url"`
	OpsURL            string `json:"ops_url"`
	ConsoleURL        string `json:"console_url"` // empty while there is no console
	APIKey            string `json:"api_key"`
	WebhookSecret     string `json:"webhook_secret"`
	DatabaseURL       string `json:"database_url"`
	TemporalAddress   string `json:"temporal_address"`
	TemporalNamespace string `json:"temporal_namespace"`
	TemporalUIURL     string `json:"temporal_ui_url"`
	TemporalBinary    string `json:"temporal_binary"`
	StripeURL         string `json:"stripe_url"`
	MailURL           string `json:"mail_url"`
}

const defaultDataDir = ".termkeeper"

func devFilePath(dataDir string) string { return filepath.Join(dataDir, "dev.json") }

// readDevFile finds a running system by its folder.
func readDevFile(dataDir string) (devFile, error) {
	var f devFile
	raw, err := os.ReadFile(devFilePath(dataDir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, unreachable(fmt.Errorf("no running system in %s: start one with `termkeeper dev`, or name its folder with --data-dir", dataDir))
	case err != nil:
		return f, fmt.Errorf("reading what the running system says of itself: %w", err)
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return f, fmt.Errorf("reading %s: %w", devFilePath(dataDir), err)
	}
	return f, nil
}

// write puts the file in place as a whole, readable by its owner only: it holds keys.
func (f devFile) write(dataDir string) error {
	raw, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	unfinished := devFilePath(dataDir) + ".new"
	if err := os.WriteFile(unfinished, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("telling where the system runs: %w", err)
	}
	return os.Rename(unfinished, devFilePath(dataDir))
}

func removeDevFile(dataDir string) error {
	if err := os.Remove(devFilePath(dataDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the old %s: %w", devFilePath(dataDir), err)
	}
	return nil
}
