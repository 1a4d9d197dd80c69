package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	// patience is how long a test waits for something that comes within a second or two on an idle machine. It only
	// bounds a test that fails.
	patience = 90 * time.Second
	// lookEvery is how often it looks; lookSeldom is for a look that costs the database some of its time.
	lookEvery  = 20 * time.Millisecond
	lookSeldom = 250 * time.Millisecond
)

// await looks until ask returns nil, and fails with its last error when that takes too long.
func await(t *testing.T, what string, ask func() error) {
	t.Helper()
	awaitEvery(t, lookEvery, what, ask)
}

func awaitEvery(t *testing.T, pause time.Duration, what string, ask func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.FailNow(t, "it did not come: "+what, "at last: %v", err)
		}
	}
}

// program says how to run the program. The environment of the test is kept out, but for what every process needs.
type program struct {
	build   string // plain if empty
	environ []string
	as      *syscall.Credential // nil is the test's own user
	folder  string              // the program's copy and home for another user
}

func (p program) command(ctx context.Context, args ...string) *exec.Cmd {
	name, home, temporary := filepath.Join(programs, p.build), os.Getenv("HOME"), os.TempDir()
	if p.build == "" {
		name = filepath.Join(programs, plain)
	}
	if p.folder != "" {
		home, temporary = p.folder, p.folder
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + temporary}, p.environ...)
	// A group of its own, so that a test can send it what a terminal sends: the signal goes to the whole group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as, Setpgid: true}
	return cmd
}

// said is what a finished command has said.
type said struct {
	code           int
	stdout, stderr string
}

// try runs a command to its end. The error says that it could not be run; a command that failed has an exit code.
func (p program) try(ctx context.Context, args ...string) (said, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := p.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		return said{}, fmt.Errorf("running %v: %w: %s", args, err, stderr.String())
	}
	return said{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, nil
}

// run runs a command to its end, whatever its exit code.
func (p program) run(t *testing.T, args ...string) said {
	t.Helper()
	s, err := p.try(t.Context(), args...)
	require.NoError(t, err)
	return s
}

// atOnce runs the same command in n processes at the same time.
func (p program) atOnce(t *testing.T, n int, args ...string) []said {
	t.Helper()
	all := make([]said, n)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range all {
		group.Go(func() (err error) {
			all[i], err = p.try(ctx, args...)
			return err
		})
	}
	require.NoError(t, group.Wait())
	return all
}

// done runs a command that must succeed, and returns its output.
func (p program) done(t *testing.T, args ...string) string {
	t.Helper()
	s := p.run(t, args...)
	require.Zero(t, s.code, "%v: %s%s", args, s.stdout, s.stderr)
	return s.stdout
}

// process is a running program. It does not outlive the test.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string        // the file with all that it says
	ended chan struct{} // closed when it has ended
	asked bool          // it was told to end
}

// start starts a command that runs until it is told to stop. What it said is shown when the test fails.
func (p program) start(t *testing.T, args ...string) *process {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), args[0]+"-*.log")
	require.NoError(t, err)
	defer log.Close()
	cmd := p.command(context.Background(), args...)
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd.SysProcAttr)
	c := &process{name: strings.Join(args, " "), cmd: cmd, log: log.Name(), ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel's "parent" is the thread that forked; this goroutine keeps its thread while the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the state tells all
			close(c.ended)
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended already in most tests
		<-c.ended
		if t.Failed() && !c.asked {
			t.Logf("the end of what `%s` said:\n%s", c.name, c.tail())
		}
	})
	return c
}

func (p *process) tail() string {
	const most = 40
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// running reports whether it has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// entry waits for a line of its log with this message.
func (p *process) entry(t *testing.T, message string) map[string]any {
	t.Helper()
	var found map[string]any
	await(t, fmt.Sprintf("`%s` says %q", p.name, message), func() error {
		if found = p.find(message); found != nil {
			return nil
		}
		if !p.running() {
			require.FailNow(t, "it has ended", "`%s`: %s\n%s", p.name, p.cmd.ProcessState, p.tail())
		}
		return errors.New("not yet")
	})
	return found
}

func (p *process) find(message string) map[string]any {
	file, err := os.Open(p.log)
	if err != nil {
		return nil
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var entry map[string]any
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry["msg"] == message {
			return entry
		}
	}
	return nil
}

// signal sends a signal to the process alone.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

// interrupt does what Ctrl-C in a terminal does: the whole group gets the signal.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT))
}

// awaitEnd waits until it has ended.
func (p *process) awaitEnd(t *testing.T) *os.ProcessState {
	t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState
	case <-time.After(patience):
		require.FailNow(t, "it did not end", "`%s`\n%s", p.name, p.tail())
		return nil
	}
}

// stops sends a signal and demands exit code 0.
func (p *process) stops(t *testing.T, s syscall.Signal) {
	t.Helper()
	p.signal(t, s)
	require.Zero(t, p.awaitEnd(t).ExitCode(), "`%s`\n%s", p.name, p.tail())
	p.asked = true
}

// kill ends it with SIGKILL and waits until it is gone.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	p.awaitEnd(t)
	p.asked = true
}
