package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// folder is what StartPostgres keeps on disk: data (the cluster), password, postgres.log and lock.
type folder struct {
	path string
	// as is the user PostgreSQL runs under; nil is this process's own. PostgreSQL refuses to run as root.
	as *syscall.Credential
}

// openFolder makes the folder and decides whose it is. As root it belongs to the user who already owns it, else to
// postgres, else to nobody. Any other user can only use a folder of their own.
func openFolder(path string) (folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return folder{}, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return folder{}, fmt.Errorf("make the folder of PostgreSQL: %w", err)
	}
	// The kernel reports working folders without symbolic links; orphans are found by comparing with them.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return folder{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return folder{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return folder{}, fmt.Errorf("read the owner of %s: not supported on this system", path)
	}
	f := folder{path: path}
	me := os.Geteuid()
	if me != 0 {
		if int(stat.Uid) != me {
			return folder{}, fmt.Errorf("%s belongs to the user with id %d; start as that user or as root, or use another data folder", path, stat.Uid)
		}
		return f, nil
	}
	if stat.Uid != 0 {
		f.as = &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}
	} else if f.as, err = unprivileged(); err != nil {
		return folder{}, err
	}
	return f, f.give(path)
}

// unprivileged returns the user PostgreSQL runs under when this process is root.
func unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the id of the user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(account.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the group of the user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it under")
}

// give makes a file of the folder belong to the user PostgreSQL runs under.
func (f folder) give(path string) error {
	if f.as == nil {
		return nil
	}
	if err := os.Lchown(path, int(f.as.Uid), int(f.as.Gid)); err != nil {
		return fmt.Errorf("give %s to the user PostgreSQL runs under: %w", path, err)
	}
	return nil
}

// file returns the path of a file in the folder as this process sees it.
func (f folder) file(name string) string { return filepath.Join(f.path, name) }

// inner returns the path of a file in the folder as a program started by command sees it.
func (f folder) inner(name string) string {
	if f.as != nil && throughFD {
		return filepath.Join("/proc/self/fd/3", name)
	}
	return f.file(name)
}

// command prepares a program of PostgreSQL. Under another user the program gets the folder as descriptor 3 and works
// through it (see inner), because that user may have no way through the folders above: /root is closed to it.
// The environment is emptied: PGPORT, PGDATA and their kin would change what the program does.
func (f folder) command(log *os.File, program string, args ...string) (*exec.Cmd, func(), error) {
	// Not CommandContext: stopping is ours to do, in order, and not by SIGKILL.
	cmd := exec.Command(program, args...) //nolint:noctx // See above.
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: f.as}
	if f.as == nil || !throughFD {
		return cmd, func() {}, nil
	}
	dir, err := os.Open(f.path)
	if err != nil {
		return nil, nil, err
	}
	cmd.ExtraFiles = []*os.File{dir}
	return cmd, func() { _ = dir.Close() }, nil
}

// password returns the superuser's password, made up at the first call and kept in a file only its owner can read.
func (f folder) password() (string, error) {
	path := f.file("password")
	text, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the password of PostgreSQL: %w", err)
	}
	password := rand.Text()
	// Under another name first: a crash never leaves an empty password.
	if err := os.WriteFile(path+".new", []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("keep the password of PostgreSQL: %w", err)
	}
	if err := f.give(path + ".new"); err != nil {
		return "", err
	}
	return password, os.Rename(path+".new", path)
}

// version returns the major version of PostgreSQL that made the data, 0 when there is none yet.
func (f folder) version() (int, error) {
	text, err := os.ReadFile(f.file("data/PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// initialise makes the cluster: in data.new, which becomes data only when complete. A crash in between leaves
// nothing that the next start does not replace.
func (f folder) initialise(ctx context.Context, install postgresInstall, durable bool) error {
	if _, err := f.password(); err != nil {
		return err
	}
	logFile, from, err := openLog(f.file("postgres.log"))
	if err != nil {
		return fmt.Errorf("open the log of PostgreSQL: %w", err)
	}
	defer logFile.Close()
	// C.UTF-8 sorts by code point and knows letters beyond ASCII; macOS does not have it.
	for _, locale := range []string{"C.UTF-8", "C"} {
		if err = os.RemoveAll(f.file("data.new")); err != nil {
			return fmt.Errorf("remove an unfinished data folder: %w", err)
		}
		args := []string{
			"-D", f.inner("data.new"), "--username=" + superuser, "--pwfile=" + f.inner("password"),
			"--auth=scram-sha-256", "--encoding=UTF8", "--locale=" + locale, "--no-instructions",
		}
		if !durable {
			args = append(args, "--no-sync")
		}
		if err = f.runInitdb(ctx, logFile, filepath.Join(install.bin, "initdb"), args); err == nil {
			return os.Rename(f.file("data.new"), f.file("data"))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("initialise PostgreSQL in %s: %w: %s", f.path, err, lastLines(logFile.Name(), from))
}

func (f folder) runInitdb(ctx context.Context, log *os.File, program string, args []string) error {
	cmd, release, err := f.command(log, program, args...)
	if err != nil {
		return err
	}
	defer release()
	run, err := startChild(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-run.done:
		return run.err
	case <-ctx.Done():
		run.kill()
		return context.Cause(ctx)
	}
}

// stopOrphans ends what a killed run left working on the data, and clears a stale postmaster.pid.
func (f folder) stopOrphans(ctx context.Context) error {
	if err := stopProcesses(ctx, f.isPostgresHere); err != nil {
		return err
	}
	// PostgreSQL itself sees that the pid in the file is dead, and then checks the shared memory named there, so the
	// file stays. But it takes any living process with that number for a postmaster, and numbers come round again.
	path := f.file("data/postmaster.pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read a left-over postmaster.pid: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return nil
	}
	// Empty, half-written, or the number of some other program: no postgres works here, that was just made sure.
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove a stale postmaster.pid: %w", err)
	}
	return nil
}

// isPostgresHere reports whether p is a PostgreSQL process of this folder: by its working folder, which is the data
// folder in every one of them, or by the command line of the first one.
func (f folder) isPostgresHere(p process) bool {
	program, _, _ := strings.Cut(p.command, " ")
	if name := strings.TrimSuffix(filepath.Base(program), ":"); name != "postgres" && name != "initdb" {
		return false
	}
	for _, data := range []string{f.file("data"), f.file("data.new")} {
		if p.dir == data || strings.Contains(p.command+" ", "-D "+data+" ") {
			return true
		}
	}
	return false
}
