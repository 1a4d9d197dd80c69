package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// pgbenchConnections is how many connections pgbench works with, as the targets say.
const pgbenchConnections = 16

var tpsLine = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// pgbench runs a script over and over in prepared mode and returns how often a second. Variables are strings that the
// script uses as parameters.
func (s *stack) pgbench(ctx context.Context, database, script string, variables map[string]string, lasts time.Duration) (float64, error) {
	file := filepath.Join(s.dir, "script.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return 0, err
	}
	args := []string{
		"--no-vacuum", "--protocol=prepared", "--client=" + strconv.Itoa(pgbenchConnections), "--jobs=2",
		"--time=" + strconv.Itoa(int(lasts.Seconds())), "--file=" + file,
	}
	for name, value := range variables {
		args = append(args, "--define="+name+"="+value)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.postgres.BinDir(), "pgbench"), append(args, s.postgres.URL(database))...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("running pgbench: %w: %s", err, out)
	}
	found := tpsLine.FindSubmatch(out)
	if found == nil || !strings.Contains(string(out), "number of failed transactions: 0 ") {
		return 0, fmt.Errorf("pgbench did not measure: %s", out)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}
