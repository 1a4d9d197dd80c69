//go:build failpoints

// Package failpoint lets tests kill a real process at a named place. This build does so: TERMKEEPER_FAILPOINT is
// "name" or "name:n", and the process kills itself with SIGKILL when it comes to that place for the n-th time.
package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var hits atomic.Int64

// Hit kills the process when this is the place and the time.
func Hit(name string) {
	want, times, _ := strings.Cut(os.Getenv("TERMKEEPER_FAILPOINT"), ":")
	if want != name {
		return
	}
	n, err := strconv.ParseInt(times, 10, 64)
	if err != nil {
		n = 1
	}
	if hits.Add(1) == n {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
