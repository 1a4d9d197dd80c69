package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a child that logs one JSON object per line.
type process struct {
	cmd  *exec.Cmd
	done chan error
}

// startLimit is how long a child may take to be ready.
const startLimit = 30 * time.Second

// startProcess starts a child and waits until it logs the message; it returns the fields of that line.
func startProcess(ctx context.Context, message string, environ []string, program string, args ...string) (*process, map[string]any, error) {
	cmd := exec.Command(program, args...) //nolint:noctx // Stopping is ours to do, by SIGTERM.
	cmd.Env = environ
	// It has its own group, so that a Ctrl-C reaches it through stop only, and dies with this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("starting %v: %w", args, err)
	}
	p := &process{cmd: cmd, done: make(chan error, 1)}
	ready := make(chan map[string]any, 1)
	go func() {
		last := ""
		lines := bufio.NewScanner(stderr)
		for waiting := true; lines.Scan(); {
			if !waiting {
				continue
			}
			last = lines.Text()
			var fields map[string]any
			if json.Unmarshal(lines.Bytes(), &fields) == nil && fields["msg"] == message {
				ready <- fields
				waiting = false
			}
		}
		_, _ = io.Copy(io.Discard, stderr) // what is behind a line that is too long
		if err := cmd.Wait(); err != nil {
			p.done <- fmt.Errorf("%v ended: %w: %s", args, err, last)
		}
		close(p.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case fields := <-ready:
		return p, fields, nil
	case err := <-p.done:
		return nil, nil, errors.Join(fmt.Errorf("%v ended before it was ready", args), err)
	case <-ctx.Done():
		return nil, nil, errors.Join(fmt.Errorf("waiting for %v: %w", args, ctx.Err()), p.stop())
	}
}

// stop ends the child in order, by SIGKILL when it does not.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-p.done:
		return err
	case <-time.After(startLimit):
		return errors.Join(errors.New("a child had to be killed"), p.cmd.Process.Kill())
	}
}

// api starts the API on a database, with more variables where a measurement gives them, and returns its address.
func (s *stack) api(ctx context.Context, database string, more ...string) (*process, string, error) {
	environ := append(environment(), "DATABASE_URL="+s.postgres.URL(database), "STRIPE_WEBHOOK_SECRETS="+webhookSecret,
		"TERMKEEPER_HTTP_ADDR=127.0.0.1:0", "TERMKEEPER_OPS_ADDR=127.0.0.1:0")
	environ = append(environ, more...)
	p, fields, err := startProcess(ctx, "serving", environ, s.program, "api")
	if err != nil {
		return nil, "", err
	}
	addr, _ := fields["http_addr"].(string)
	return p, addr, nil
}

// environment is what a child needs of this process's own; no setting of the developer's leaks in.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
}
