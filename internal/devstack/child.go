package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// child is a server process that ends when this process ends.
type child struct {
	process *os.Process
	done    chan struct{}
	err     error // why it ended; to be read after done is closed
}

// startChild starts cmd in a process group of its own, so that a terminal's Ctrl-C reaches it only through stop.
// On Linux the kernel sends it deathSignal when this process dies.
func startChild(cmd *exec.Cmd, deathSignal syscall.Signal) (*child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr, deathSignal)
	c := &child{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel's "parent" is the thread that forked, and Go ends idle threads. This goroutine keeps its
		// thread for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// step is a signal and the time the process gets to end after it.
type step struct {
	signal syscall.Signal
	wait   time.Duration
}

// stop sends the signals one after another until the process has ended, and SIGKILL at last or when ctx ends.
// A process that had to be killed is an error, because it may have lost what it was writing.
func (c *child) stop(ctx context.Context, steps ...step) error {
	for _, s := range steps {
		if err := c.process.Signal(s.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("send %s: %w", s.signal, err)
		}
		timer := time.NewTimer(s.wait)
		select {
		case <-c.done:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			c.kill()
			return fmt.Errorf("killed, because it was still running: %w", context.Cause(ctx))
		case <-timer.C:
		}
	}
	c.kill()
	return errors.New("killed, because it was still running after every polite signal")
}

// kill ends the process at once and waits for it.
func (c *child) kill() {
	// The only error is that it has ended already.
	_ = c.process.Kill()
	<-c.done
}

// process is one entry of the system's process table.
type process struct {
	pid     int
	command string // the command line, arguments joined by spaces
	dir     string // the working directory; known on Linux only, and only for processes one may look into
}

// stopProcesses ends the processes that match: what an earlier, killed run of this program left behind.
func stopProcesses(ctx context.Context, match func(process) bool) error {
	const each = 5 * time.Second
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		sent := map[int]bool{}
		for deadline := time.Now().Add(each); time.Now().Before(deadline); {
			table, err := processes(ctx)
			if err != nil {
				return err
			}
			found := false
			for _, p := range table {
				if p.pid == os.Getpid() || !match(p) {
					continue
				}
				found = true
				if !sent[p.pid] {
					sent[p.pid] = true
					if err := syscall.Kill(p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
						return fmt.Errorf("stop the left-over process %d (%s): %w", p.pid, p.command, err)
					}
				}
			}
			if !found {
				return nil
			}
			if !pause(ctx, pollEvery) {
				return fmt.Errorf("stop left-over processes: %w", context.Cause(ctx))
			}
		}
	}
	return errors.New("left-over processes did not end after SIGKILL")
}

// openLog opens a log for appending and returns where the new part begins. A log over 10 MiB is moved aside first,
// so that two files bound what a long-lived folder holds.
func openLog(path string) (*os.File, int64, error) {
	const limit = 10 << 20
	if info, err := os.Stat(path); err == nil && info.Size() > limit {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, 0, err
		}
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	size, err := file.Seek(0, io.SeekEnd)
	return file, size, err
}

// lastLines returns the last few lines of a log after offset, on one line, for an error message.
func lastLines(path string, offset int64) string {
	const lines, bytes = 6, 4096
	file, err := os.Open(path)
	if err != nil {
		return "no output"
	}
	defer file.Close()
	if size, err := file.Seek(0, io.SeekEnd); err == nil {
		offset = max(offset, size-bytes)
	}
	text, err := io.ReadAll(io.NewSectionReader(file, offset, bytes))
	if err != nil || len(strings.TrimSpace(string(text))) == 0 {
		return "no output"
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], " | ")
}
