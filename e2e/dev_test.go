package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// devFile is dev.json, by the contract.
type devFile map[string]string

var devFields = []string{
	"api_url", "ops_url", "console_url", "api_key", "webhook_secret", "database_url", "temporal_address", "temporal_namespace", "temporal_ui_url",
	"temporal_binary", "stripe_url", "mail_url",
}

// devHouse is where one user runs `termkeeper dev`.
type devHouse struct {
	program
	data string
}

// newDevHouse makes a folder for the user; nil is the test's own. Not t.TempDir: the folders above that one are closed
// to other users.
func newDevHouse(t *testing.T, as *syscall.Credential) devHouse {
	t.Helper()
	temporal := temporalBinary(t)
	folder, err := os.MkdirTemp("", "termkeeper-e2e-dev-") //nolint:usetesting // See above.
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	if as != nil {
		require.NoError(t, os.Chown(folder, int(as.Uid), int(as.Gid)))
		// The CLI may be where this user has no way to, for instance under /root.
		program, err := os.ReadFile(temporal)
		require.NoError(t, err)
		temporal = filepath.Join(programs, "temporal")
		require.NoError(t, os.WriteFile(temporal, program, 0o755))
	}
	return devHouse{
		program: program{as: as, folder: folder, environ: []string{"TERMKEEPER_TEMPORAL_BINARY=" + temporal}},
		data:    filepath.Join(folder, "data"),
	}
}

// dev starts the whole system on free ports.
func (h devHouse) dev(t *testing.T, args ...string) *process {
	t.Helper()
	return h.start(t, append([]string{"dev", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--temporal-ui", "127.0.0.1:0"}, args...)...)
}

// awaitReady waits for dev.json and checks it.
func (p *process) awaitReady(t *testing.T, data string) devFile {
	t.Helper()
	path := filepath.Join(data, "dev.json")
	var file devFile
	await(t, path, func() error {
		if !p.running() {
			require.FailNow(t, "it has ended", "%s\n%s", p.cmd.ProcessState, p.tail())
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			require.NoError(t, json.Unmarshal(raw, &file), "it is there as a whole or not at all")
		}
		return err
	})
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), "it holds keys")
	require.Len(t, file, len(devFields))
	for _, field := range devFields {
		require.Contains(t, file, field)
		if field != "console_url" { // empty while there is no console
			require.NotEmpty(t, file[field], field)
		}
	}
	require.NoError(t, ready(strings.TrimPrefix(file["ops_url"], "http://")), "what is told of is ready")
	return file
}

func (f devFile) caller() caller {
	return caller{url: f["api_url"], key: f["api_key"], secret: f["webhook_secret"], http: &http.Client{Transport: &http.Transport{}, Timeout: patience}}
}

// demo plays the main walk and demands that every step is right.
func (h devHouse) demo(t *testing.T, data string) {
	t.Helper()
	out := h.done(t, "demo", "--data-dir", data)
	t.Log("\n" + out)
	for _, step := range []string{"access: yes", "access: no, at the instant", "marked expired by the scan", "the mail is in the sink", "every step was right"} {
		require.Contains(t, out, step)
	}
}

// stopsCleanly presses Ctrl-C and demands that all ends well and nothing stays: no process, no dev.json.
func (p *process) stopsCleanly(t *testing.T, data string) {
	t.Helper()
	p.interrupt(t)
	require.Zero(t, p.awaitEnd(t).ExitCode(), p.tail())
	require.NoFileExists(t, filepath.Join(data, "dev.json"))
	require.Empty(t, processesIn(t, data))
	p.asked = true
}

// processesIn lists the processes that work in a folder or name it on their command line. Only Linux can tell; elsewhere
// nothing is found.
func processesIn(t *testing.T, folder string) []string {
	t.Helper()
	require.True(t, filepath.IsAbs(folder), folder)
	if real, err := filepath.EvalSymlinks(folder); err == nil { // gone after --ephemeral
		folder = real
	}
	var found []string
	entries, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, entry := range entries {
		command, err := os.ReadFile(filepath.Join(entry, "cmdline"))
		if err != nil || len(command) == 0 { // it has ended
			continue
		}
		cwd, err := os.Readlink(filepath.Join(entry, "cwd"))
		if err != nil {
			cwd = ""
		}
		if line := strings.ReplaceAll(string(command), "\x00", " "); strings.HasPrefix(cwd, folder) || strings.Contains(line, folder) {
			found = append(found, fmt.Sprintf("%s %s in %s", filepath.Base(entry), line, cwd))
		}
	}
	return found
}

// A newcomer's first minutes: one command, the demonstration, Ctrl-C, and nothing is left.
func TestDevEphemeral(t *testing.T) {
	t.Parallel()
	h := newDevHouse(t, nil)
	dev := h.dev(t, "--ephemeral")
	var data string
	await(t, "the banner", func() error {
		said, err := os.ReadFile(dev.log)
		if err != nil || !strings.Contains(string(said), "plays the main walk") {
			return fmt.Errorf("%w %s", err, said)
		}
		for line := range strings.Lines(string(said)) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "all of this"); ok {
				data = filepath.Dir(strings.TrimSpace(rest))
			}
		}
		return nil
	})
	file := dev.awaitReady(t, data)
	said, err := os.ReadFile(dev.log)
	require.NoError(t, err)
	for _, field := range devFields {
		if field != "temporal_binary" {
			require.Contains(t, string(said), file[field], "the banner tells of %s", field)
		}
	}
	response, err := http.Get(file["temporal_ui_url"]) //nolint:noctx // A person's browser.
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.NotEmpty(t, processesIn(t, data), "PostgreSQL and Temporal are its children")
	h.demo(t, data)
	requireInvariantsOf(t, file)

	dev.stopsCleanly(t, data)
	require.NoDirExists(t, data)
}

// requireInvariantsOf holds the invariants against the database of a running dev.
func requireInvariantsOf(t *testing.T, file devFile) {
	t.Helper()
	s := openSystem(t, file["database_url"])
	defer s.pool.Close()
	s.awaitEventsDone(t)
	s.requireInvariants(t)
}

// The state stays over a restart and over a kill, for root, whose PostgreSQL must run as somebody else, and for an
// ordinary user.
func TestDevKeepsItsState(t *testing.T) {
	t.Parallel()
	t.Run("the test's user", func(t *testing.T) {
		t.Parallel()
		keepState(t, newDevHouse(t, nil))
	})
	if os.Geteuid() == 0 { // only root can become somebody else
		t.Run("an ordinary user", func(t *testing.T) {
			t.Parallel()
			keepState(t, newDevHouse(t, nobody(t)))
		})
	}
}

func nobody(t *testing.T) *syscall.Credential {
	t.Helper()
	account, err := user.Lookup("nobody")
	require.NoError(t, err)
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	require.NoError(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// keepState stops and kills a system on one folder and demands that what was kept is there each time.
func keepState(t *testing.T, h devHouse) {
	t.Helper()
	first := h.dev(t, "--data-dir", h.data)
	before := first.awaitReady(t, h.data)
	before.caller().want(t, http.StatusCreated, http.MethodPut, "/v1/users/u_kept", map[string]any{"email": "kept@example.com"})
	// The folder is taken: a second one says so and does no harm.
	rival := h.run(t, "dev", "--data-dir", h.data, "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--temporal-ui", "127.0.0.1:0")
	require.NotZero(t, rival.code)
	require.Contains(t, rival.stderr, "another process is using")
	require.Len(t, strings.Split(strings.TrimSpace(rival.stderr), "\n"), 1, "in one sentence")
	require.FileExists(t, filepath.Join(h.data, "dev.json"), "the first one can still be found")
	first.stopsCleanly(t, h.data)

	second := h.dev(t, "--data-dir", h.data)
	after := second.awaitReady(t, h.data)
	requireKept(t, before, after)
	second.kill(t)
	require.FileExists(t, filepath.Join(h.data, "dev.json"), "nobody could remove it")

	// The file of the dead one is gone before the new one is ready: nobody finds a system that is not there.
	third := h.dev(t, "--data-dir", h.data)
	await(t, "the old dev.json is removed", func() error {
		_, err := os.Stat(filepath.Join(h.data, "dev.json"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
	recovered := third.awaitReady(t, h.data)
	requireKept(t, before, recovered)
	h.demo(t, h.data)
	requireInvariantsOf(t, recovered)
	third.stopsCleanly(t, h.data)
}

func requireKept(t *testing.T, before, after devFile) {
	t.Helper()
	for _, field := range []string{"api_key", "webhook_secret", "temporal_address", "temporal_namespace"} {
		require.Equal(t, before[field], after[field], field)
	}
	var kept struct{ Email string }
	after.caller().want(t, http.StatusOK, http.MethodGet, "/v1/users/u_kept", nil).decode(t, &kept)
	require.Equal(t, "kept@example.com", kept.Email)
}
