package devstack_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/devstack"
)

// limit bounds every wait of these tests.
const limit = time.Minute

func startPostgres(t *testing.T, o devstack.PostgresOptions) *devstack.Postgres {
	t.Helper()
	p, err := devstack.StartPostgres(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop(context.WithoutCancel(t.Context()))) })
	return p
}

// query runs one statement and returns its single value.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var value string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

// keep leaves something to be found after a restart.
func keep(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'one' AS v")
	require.NoError(t, err)
}

func TestPostgresKeepsItsState(t *testing.T) {
	t.Parallel()
	options := devstack.PostgresOptions{
		DataDir: filepath.Join(t.TempDir(), "postgres"), Database: "termkeeper", Durable: true,
		Settings: map[string]string{"work_mem": "5MB"},
	}
	first := startPostgres(t, options)
	url := first.URL("termkeeper")
	keep(t, url)
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "work_mem": "5MB", "max_connections": "200", "timezone": "UTC",
		"server_encoding": "UTF8", "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
	} {
		require.Equal(t, want, query(t, url, "SELECT current_setting('"+setting+"')"), setting)
	}

	_, err := devstack.StartPostgres(t.Context(), options)
	require.ErrorContains(t, err, "another process is using")

	require.NoError(t, first.Stop(t.Context()))
	require.NoError(t, first.Err())
	<-first.Done()

	options.Port = first.Port()
	second := startPostgres(t, options)
	require.Equal(t, url, second.URL("termkeeper"))
	require.Equal(t, "one", query(t, url, "SELECT v FROM kept"))

	info, err := os.Stat(filepath.Join(options.DataDir, "password"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = pgx.Connect(t.Context(), strings.Replace(url, "@", "x@", 1))
	require.ErrorContains(t, err, "password authentication failed")

	taken := options
	taken.DataDir = filepath.Join(t.TempDir(), "postgres")
	_, err = devstack.StartPostgres(t.Context(), taken)
	require.ErrorContains(t, err, "is taken by another program")
}

func TestPostgresRecoversFromKill(t *testing.T) {
	t.Parallel()
	options := devstack.PostgresOptions{DataDir: filepath.Join(t.TempDir(), "postgres")}
	first := startPostgres(t, options)
	keep(t, first.URL("postgres"))
	// A backend that is busy does not notice that the server is gone.
	busy, err := pgx.Connect(t.Context(), first.URL("postgres"))
	require.NoError(t, err)
	gone := make(chan error)
	go func() {
		_, err := busy.Exec(context.WithoutCancel(t.Context()), "SELECT count(*) FROM generate_series(1, 1e15::bigint)")
		gone <- err
	}()
	require.Eventually(t, func() bool {
		return query(t, first.URL("postgres"), "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE '%1e15%' AND pid <> pg_backend_pid()") == "1"
	}, limit, time.Millisecond)
	first.Kill()
	require.Error(t, first.Err())

	second := startPostgres(t, options)
	require.Equal(t, "one", query(t, second.URL("postgres"), "SELECT v FROM kept"))
	require.Error(t, <-gone)
}

func TestPostgresReplacesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "postgres")
	// initdb was killed half-way.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data.new", "PG_VERSION"), nil, 0o600))
	first := startPostgres(t, devstack.PostgresOptions{DataDir: dir})
	require.NoDirExists(t, filepath.Join(dir, "data.new"))
	require.NoError(t, first.Stop(t.Context()))

	// The number in postmaster.pid belongs to some other living program by now.
	stale := filepath.Join(dir, "data", "postmaster.pid")
	require.NoError(t, os.WriteFile(stale, []byte("1\n"), 0o600))
	startPostgres(t, devstack.PostgresOptions{DataDir: dir})
}

func TestPostgresSaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "postgres")
	_, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{DataDir: dir, Settings: map[string]string{"shared_buffers": "much"}})
	require.ErrorContains(t, err, `invalid value for parameter "shared_buffers"`)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9\n"), 0o600))
	_, err = devstack.StartPostgres(t.Context(), devstack.PostgresOptions{DataDir: dir})
	require.ErrorContains(t, err, "the data was made by PostgreSQL 9, which was not found on this machine")
}

// As root, PostgreSQL runs under another user. The folders above its own may be closed to that user, as /root is.
func TestPostgresUnderClosedFolders(t *testing.T) {
	t.Parallel()
	closed := t.TempDir()
	require.NoError(t, os.Chmod(closed, 0o700))
	dir := filepath.Join(closed, "postgres")
	p := startPostgres(t, devstack.PostgresOptions{DataDir: dir})
	require.Equal(t, "on", query(t, p.URL("postgres"), "SELECT current_setting('is_superuser')"))
	info, err := os.Stat(filepath.Join(dir, "data"))
	require.NoError(t, err)
	stat, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	require.NotZero(t, stat.Uid, "PostgreSQL never runs as root")
}
