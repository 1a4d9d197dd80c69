package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
)

// oldestPostgres is the oldest major version Termkeeper runs on.
const oldestPostgres = 14

// ErrNoPostgres says that no PostgreSQL server program was found on this machine, and how to get one.
var ErrNoPostgres = errors.New("PostgreSQL 14 or newer was not found; install it " +
	"(Debian, Ubuntu: sudo apt-get install postgresql; macOS: brew install postgresql@17) and start again")

// postgresInstall is one installed PostgreSQL.
type postgresInstall struct {
	bin   string
	major int
}

// FindPostgres returns the folder with the programs of PostgreSQL (postgres, initdb, pg_dump, psql): the one on PATH,
// else the newest of at least version 14 where Debian and Homebrew put them. It returns ErrNoPostgres when there is none.
func FindPostgres(ctx context.Context) (string, error) {
	install, err := findPostgres(ctx, 0)
	return install.bin, err
}

// findPostgres finds PostgreSQL; major 0 takes any version that is new enough, another one exactly that version.
func findPostgres(ctx context.Context, major int) (postgresInstall, error) {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	onPath := len(folders)
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return postgresInstall{}, err
		}
		folders = append(folders, found...)
	}
	var installs []postgresInstall
	for i, folder := range folders {
		version, err := postgresVersion(ctx, folder)
		if err != nil || version < oldestPostgres {
			continue
		}
		install := postgresInstall{bin: folder, major: version}
		if major == version || major == 0 && i < onPath {
			return install, nil
		}
		installs = append(installs, install)
	}
	if len(installs) == 0 {
		return postgresInstall{}, ErrNoPostgres
	}
	newest := slices.MaxFunc(installs, func(a, b postgresInstall) int { return a.major - b.major })
	if major != 0 {
		return newest, fmt.Errorf("the data was made by PostgreSQL %d, which was not found on this machine (PostgreSQL %d was); "+
			"install version %d or use another data folder", major, newest.major, major)
	}
	return newest, nil
}

// postgresVersion returns the major version of the programs in bin; a folder without initdb is not a server's.
func postgresVersion(ctx context.Context, bin string) (int, error) {
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return 0, err
	}
	match := regexp.MustCompile(`\(PostgreSQL\) (\d+)`).FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("no version in %q", out)
	}
	return strconv.Atoi(string(match[1]))
}

// EnsurePostgres is FindPostgres that installs PostgreSQL where it may: as root on Debian and its kin, with apt-get,
// whose output goes to out. Elsewhere it returns ErrNoPostgres.
func EnsurePostgres(ctx context.Context, out io.Writer) (string, error) {
	bin, err := FindPostgres(ctx)
	if !errors.Is(err, ErrNoPostgres) {
		return bin, err
	}
	apt, lookErr := exec.LookPath("apt-get")
	if runtime.GOOS != "linux" || os.Geteuid() != 0 || lookErr != nil {
		return "", err
	}
	fmt.Fprintln(out, "PostgreSQL is missing; installing it with apt-get.")
	for _, args := range [][]string{
		{"update", "-qq"},
		{"install", "-y", "-qq", "--no-install-recommends", "postgresql"},
	} {
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("install PostgreSQL (apt-get %s): %w", args[0], err)
		}
	}
	return FindPostgres(ctx)
}
