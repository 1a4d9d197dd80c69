// Package devstack runs the two servers Termkeeper needs, PostgreSQL and Temporal's development server, as private
// children on loopback: for `termkeeper dev` and for the tests. It is not for production.
//
// Both are found or fetched (FindPostgres, EnsurePostgres, FindTemporal), started (StartPostgres, StartTemporal) and
// stopped by the process that started them. A child never outlives its parent on Linux: the kernel signals it when
// the parent dies. Elsewhere, and in the short time a child still needs to end, the next start on the same folder
// stops what it finds there. One folder serves one process at a time, held by a lock on a file in it.
package devstack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	loopback = "127.0.0.1"
	// pollEvery is how often something outside this process (a port, a process, a server's health) is looked at.
	pollEvery = 25 * time.Millisecond
)

// freePort returns a TCP port nobody listens on. It is taken from below the range the kernel hands out to outgoing
// connections (32768 and up on Linux), so that a server can come back to the same port after it was stopped.
func freePort(ctx context.Context) (int, error) {
	var last error
	for range 100 {
		port := 15000 + rand.IntN(17000) //nolint:gosec // G404: a port needs no secrecy.
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		return port, listener.Close()
	}
	return 0, fmt.Errorf("find a free port on %s: %w", loopback, last)
}

// lockFile takes an exclusive lock that ends with this process, however it ends. The second result is false when
// another process, or another caller in this one, has it.
func lockFile(path string) (*os.File, bool, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, true, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false, file.Close()
	}
	return nil, false, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
}

// HoldFolder takes a folder for this process until release is called or the process ends, however it ends. An error says
// in one sentence that another process has it, or that it cannot be written to.
func HoldFolder(folder string) (release func(), err error) {
	lock, ok, err := lockFile(filepath.Join(folder, "lock"))
	switch {
	case err != nil:
		return nil, fmt.Errorf("taking the folder %s: %w", folder, err)
	case !ok:
		return nil, fmt.Errorf("another process is using %s; stop it first, or use another data folder", folder)
	}
	return func() { _ = lock.Close() }, nil // closing is what frees it; there is nothing to do about an error
}

// pause waits for d and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
