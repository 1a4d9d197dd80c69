package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// tick is what /proc counts CPU time in: USER_HZ, 100 a second on every Linux of today.
const tick = time.Second / 100

// cpuMeter reads the CPU time of a PostgreSQL server: of its postmaster, of all processes that it has running and of
// those that have ended.
type cpuMeter struct {
	postmaster int
}

func newCPUMeter(ctx context.Context, conn *pgx.Conn) (cpuMeter, error) {
	var backend int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return cpuMeter{}, err
	}
	stat, err := readStat(backend)
	return cpuMeter{postmaster: stat.parent}, err
}

// used is the CPU time so far, to a hundredth of a second.
func (m cpuMeter) used() (time.Duration, error) {
	stat, err := readStat(m.postmaster)
	if err != nil {
		return 0, err
	}
	total := stat.own + stat.ended
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		if child, err := readStat(pid); err == nil && child.parent == m.postmaster { // one that ends meanwhile is no error
			total += child.own
		}
	}
	return total, nil
}

// processStat is what is wanted of /proc/<pid>/stat.
type processStat struct {
	parent     int
	own, ended time.Duration // of the process, and of its children that it has waited for
}

func readStat(pid int) (processStat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return processStat{}, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	// The name, in parentheses, may hold anything; what follows it is counted from the state, field 3 of proc(5).
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	number := func(field int) int {
		n, fieldErr := strconv.Atoi(string(fields[field-3]))
		if fieldErr != nil {
			err = fieldErr
		}
		return n
	}
	stat := processStat{parent: number(4)}
	stat.own = time.Duration(number(14)+number(15)) * tick
	stat.ended = time.Duration(number(16)+number(17)) * tick
	return stat, err
}

// speed is how often something was done in a second, and in a second of CPU time of all processes that took part. Wall
// time swings with what else the machine does; CPU time does much less.
type speed struct{ perSecond, perCPUSecond float64 }

// parties are the processes that take part in a load: PostgreSQL, the server and this one.
type parties struct{ database, server, self time.Duration }

// cpuOf is the CPU time of all parties so far.
func (s *stack) cpuOf(server *process) (parties, error) {
	database, err := s.cpu.used()
	if err != nil {
		return parties{}, err
	}
	program, err := readStat(server.cmd.Process.Pid)
	if err != nil {
		return parties{}, err
	}
	self, err := readStat(os.Getpid())
	return parties{database, program.own, self.own}, err
}

// since is what was used after before.
func (p parties) since(before parties) parties {
	return parties{p.database - before.database, p.server - before.server, p.self - before.self}
}

func (p parties) all() time.Duration { return p.database + p.server + p.self }

// each tells what one of n took.
func (p parties) each(n int) string {
	per := func(d time.Duration) int64 { return d.Microseconds() / int64(n) }
	return fmt.Sprintf("CPU µs each: PostgreSQL %d, server %d, load generator %d", per(p.database), per(p.server), per(p.self))
}
