//go:build !linux

package devstack

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// throughFD: only Linux lets a process reach a folder through its own open descriptor.
const throughFD = false

// dieWithParent does nothing: only Linux tells a child of its parent's death. The next start stops what was left.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// processes asks ps, which every Unix but a small Linux container has.
func processes(ctx context.Context) ([]process, error) {
	out, err := exec.CommandContext(ctx, "ps", "-axww", "-o", "pid=,command=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var table []process
	for line := range strings.Lines(string(out)) {
		number, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		if pid, err := strconv.Atoi(number); err == nil {
			table = append(table, process{pid: pid, command: strings.TrimSpace(command)})
		}
	}
	return table, nil
}
