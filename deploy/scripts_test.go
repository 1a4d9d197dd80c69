package deploy

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fromStack is what `make test` says about its servers.
func fromStack(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	require.NotEmpty(t, value, "run the tests with `make test`, or with internal/devstack/withstack before `go test`")
	return value
}

// script runs a script of the compose file, with folder before all others in its PATH.
func script(t *testing.T, folder, name string, environ ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", filepath.Join(repository, "deploy", name))
	cmd.Env = append([]string{"PATH=" + folder + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// The script that the PostgreSQL image runs makes users who own their databases, and nobody else's.
func TestDatabases(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(fromStack(t, "TERMKEEPER_TEST_DATABASE_URL"))
	require.NoError(t, err)
	bin := fromStack(t, "TERMKEEPER_TEST_POSTGRES_BIN")
	as := func(user, password string) []string {
		return []string{"PGHOST=" + server.Hostname(), "PGPORT=" + server.Port(), "PGUSER=" + user, "PGPASSWORD=" + password}
	}
	password, _ := server.User.Password()
	superuser := append(as(server.User.Username(), password), "POSTGRES_USER="+server.User.Username())
	psql := func(environ []string, database, statement string) (string, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "psql"), "-XtAqc", statement, "-v", "ON_ERROR_STOP=1", database)
		cmd.Env = environ
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() { // the server is that of all tests
		for _, statement := range []string{
			"DROP DATABASE termkeeper", "DROP DATABASE temporal", "DROP DATABASE temporal_visibility", "DROP ROLE IF EXISTS termkeeper_b", "DROP ROLE termkeeper", "DROP ROLE temporal",
		} {
			if out, err := psql(superuser, "postgres", statement); err != nil {
				t.Logf("%s: %s", statement, out)
			}
		}
	})
	script(t, bin, "postgres/databases.sh", append(superuser, "TERMKEEPER_DB_PASSWORD=it's one", "TEMPORAL_DB_PASSWORD=two")...)

	for database, user := range map[string]string{"termkeeper": "termkeeper", "temporal": "temporal", "temporal_visibility": "temporal"} {
		out, err := psql(as(user, map[string]string{"termkeeper": "it's one", "temporal": "two"}[user]), database, "CREATE TABLE mine (n int); SELECT count(*) FROM mine")
		require.NoError(t, err, out)
		require.Equal(t, "0\n", out)
	}
	out, err := psql(as("temporal", "two"), "termkeeper", "SELECT 1")
	require.Error(t, err)
	require.Contains(t, out, "permission denied")

	// The password changes by a second user, as docs/operations.md says.
	text, err := os.ReadFile(filepath.Join(repository, "docs", "operations.md"))
	require.NoError(t, err)
	_, statements, found := strings.Cut(string(text), "```sql\nCREATE ROLE termkeeper_b ")
	require.True(t, found)
	statements, _, _ = strings.Cut(statements, "```")
	out, err = psql(superuser, "postgres", "CREATE ROLE termkeeper_b "+statements)
	require.NoError(t, err, out)
	second := as("termkeeper_b", "the new one")
	out, err = psql(second, "termkeeper", "ALTER TABLE mine ADD COLUMN m int; CREATE TABLE more (n int); SELECT tableowner FROM pg_tables WHERE tablename = 'more'")
	require.NoError(t, err, out)
	require.Equal(t, "termkeeper\n", out)
	out, err = psql(superuser, "postgres", "ALTER ROLE termkeeper NOLOGIN")
	require.NoError(t, err, out)
	out, err = psql(second, "termkeeper", "SELECT count(*) FROM more")
	require.NoError(t, err, out)
	_, err = psql(as("termkeeper", "it's one"), "termkeeper", "SELECT 1")
	require.Error(t, err)
}

// The script that makes the namespace can be run again, with another retention too.
func TestNamespace(t *testing.T) {
	t.Parallel()
	binary, address := fromStack(t, "TERMKEEPER_TEMPORAL_BINARY"), fromStack(t, "TERMKEEPER_TEST_TEMPORAL_ADDRESS")
	folder := t.TempDir()
	require.NoError(t, os.Symlink(binary, filepath.Join(folder, "temporal")))
	const namespace = "made-by-compose"
	for _, retention := range []time.Duration{72 * time.Hour, 72 * time.Hour, 96 * time.Hour} {
		script(t, folder, "temporal/namespace.sh", "TEMPORAL_ADDRESS="+address, "TEMPORAL_NAMESPACE="+namespace, "NAMESPACE_RETENTION="+retention.String())
		cmd := exec.CommandContext(t.Context(), binary, "operator", "namespace", "describe", "--namespace", namespace, "--address", address, "--output", "json", "--disable-config-file")
		cmd.Env = []string{"HOME=" + folder}
		out, err := cmd.Output()
		require.NoError(t, err)
		var described struct {
			Config struct {
				Retention string `json:"workflowExecutionRetentionTtl"`
			} `json:"config"`
		}
		require.NoError(t, json.Unmarshal(out, &described))
		got, err := time.ParseDuration(described.Config.Retention)
		require.NoError(t, err)
		require.Equal(t, retention, got)
	}
}
