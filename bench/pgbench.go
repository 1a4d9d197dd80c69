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

var (
	tpsLine   = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)
	countLine = regexp.MustCompile(`(?m)^number of transactions actually processed: ([0-9]+)`)
)

// pgbench runs a script over and over in prepared mode. Variables are strings that the script uses as parameters.
func (s *stack) pgbench(ctx context.Context, database, script string, variables map[string]string, lasts time.Duration) (speed, error) {
	file := filepath.Join(s.dir, "script.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return speed{}, err
	}
	args := []string{
		"--no-vacuum", "--protocol=prepared", "--client=" + strconv.Itoa(pgbenchConnections), "--jobs=2",
		"--time=" + strconv.Itoa(int(lasts.Seconds())), "--file=" + file,
	}
	for name, value := range variables {
		args = append(args, "--define="+name+"="+value)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.postgres.BinDir(), "pgbench"), append(args, s.postgres.URL(database))...)
	before, err := s.cpu.used()
	if err != nil {
		return speed{}, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return speed{}, fmt.Errorf("running pgbench: %w: %s", err, out)
	}
	after, err := s.cpu.used()
	if err != nil {
		return speed{}, err
	}
	tps, count := tpsLine.FindSubmatch(out), countLine.FindSubmatch(out)
	if tps == nil || count == nil || !strings.Contains(string(out), "number of failed transactions: 0 ") {
		return speed{}, fmt.Errorf("pgbench did not measure: %s", out)
	}
	perSecond, err := strconv.ParseFloat(string(tps[1]), 64)
	if err != nil {
		return speed{}, err
	}
	transactions, err := strconv.ParseFloat(string(count[1]), 64)
	if err != nil {
		return speed{}, err
	}
	cpu := after - before + cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return speed{perSecond: perSecond, perCPUSecond: transactions / cpu.Seconds()}, nil
}
