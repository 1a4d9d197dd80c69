package devstack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// throughFD says that a child can be given a folder as an open descriptor, and reach it by innerPath although the
// folders above it are closed to the child's user (a clone under /root, which is 0700).
const throughFD = true

// dieWithParent makes the kernel send signal when the thread that starts the process ends.
func dieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// processes reads /proc, because a small container has no ps. A process that ends meanwhile is left out.
func processes(_ context.Context) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var table []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		folder := filepath.Join("/proc", entry.Name())
		command, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		if err != nil || len(command) == 0 { // ended, a zombie or a kernel thread
			continue
		}
		dir, err := os.Readlink(filepath.Join(folder, "cwd"))
		if err != nil { // another user's
			dir = ""
		}
		table = append(table, process{
			pid:     pid,
			command: strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")),
			dir:     dir,
		})
	}
	return table, nil
}
