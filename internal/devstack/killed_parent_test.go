package devstack_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/devstack"
)

// parentFolder in the environment makes the test binary a parent of both servers, to be killed.
const parentFolder = "DEVSTACK_TEST_PARENT_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentFolder); dir != "" {
		if err := beParent(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// stack is what the parent starts, and what the tests start after its death.
func stack(ctx context.Context, dir string) (*devstack.Postgres, *devstack.Temporal, error) {
	binary, err := devstack.FindTemporal(ctx, os.Stderr)
	if err != nil {
		return nil, nil, err
	}
	postgres, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{DataDir: filepath.Join(dir, "postgres"), Database: "termkeeper"})
	if err != nil {
		return nil, nil, err
	}
	temporal, err := devstack.StartTemporal(ctx, devstack.TemporalOptions{
		Binary: binary, DBFile: filepath.Join(dir, "temporal.db"), Namespace: "n", LogFile: filepath.Join(dir, "temporal.log"),
	})
	return postgres, temporal, err
}

// beParent starts both servers, tells their addresses, and waits to be killed. The end of its standard input says that
// the test is gone.
func beParent(dir string) error {
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(1)
	}()
	postgres, temporal, err := stack(context.Background(), dir)
	if err != nil {
		return err
	}
	fmt.Println(postgres.URL("termkeeper"), postgres.Port(), temporal.Port()) //nolint:forbidigo // It is how this process talks to the test.
	select {}
}

// A parent that is killed leaves no server behind, and the next start on the same folder finds all that was kept.
func TestKilledParent(t *testing.T) {
	t.Parallel()
	t.Run("same user", func(t *testing.T) {
		t.Parallel()
		killParent(t, nil)
	})
	if os.Geteuid() == 0 { // only root can become somebody else
		t.Run("ordinary user", func(t *testing.T) {
			t.Parallel()
			nobody, err := user.Lookup("nobody")
			require.NoError(t, err)
			uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
			require.NoError(t, err)
			gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
			require.NoError(t, err)
			killParent(t, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)})
		})
	}
}

func killParent(t *testing.T, as *syscall.Credential) {
	t.Helper()
	// Not t.TempDir: the folders above that one are closed to other users, and so is the one the test binary is in.
	dir, err := os.MkdirTemp("", "devstack-test-") //nolint:usetesting // See above.
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	if as != nil {
		require.NoError(t, os.Chown(dir, int(as.Uid), int(as.Gid)))
	}
	for name, path := range map[string]string{"parent": os.Args[0], "temporal": temporalBinary(t)} {
		program, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), program, 0o755))
	}

	first := startParent(t, dir, as)
	keep(t, first.url)
	first.kill(t)
	for _, port := range []string{first.postgresPort, first.temporalPort} {
		require.Eventually(t, func() bool { return !listening(t, port) }, limit, 20*time.Millisecond, "port %s is still served", port)
	}
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "postgres", "data", "postmaster.pid"))
		return os.IsNotExist(err)
	}, limit, 20*time.Millisecond, "PostgreSQL shuts down in order when its parent dies")

	// Once more, with no time for the servers to end before the next start.
	startParent(t, dir, as).kill(t)
	postgres, server, err := stack(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, "one", query(t, postgres.URL("termkeeper"), "SELECT v FROM kept"))
	require.NoError(t, server.Stop(t.Context()))
	require.NoError(t, postgres.Stop(t.Context()))
}

// parent is a running process that has started both servers.
type parent struct {
	command                         *exec.Cmd
	url, postgresPort, temporalPort string
}

func startParent(t *testing.T, dir string, as *syscall.Credential) parent {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "parent"))
	cmd.Env = append(os.Environ(), parentFolder+"="+dir, "TERMKEEPER_TEMPORAL_BINARY="+filepath.Join(dir, "temporal"), "HOME="+dir, "TMPDIR="+dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe() // kept open: its end would end the parent
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	fields := strings.Fields(line)
	require.Len(t, fields, 3)
	return parent{command: cmd, url: fields[0], postgresPort: fields[1], temporalPort: fields[2]}
}

func (p parent) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.command.Process.Kill())
	require.Error(t, p.command.Wait())
}

func listening(t *testing.T, port string) bool {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return false
	}
	require.NoError(t, conn.Close())
	return true
}
