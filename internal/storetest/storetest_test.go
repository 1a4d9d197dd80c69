package storetest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"termkeeper/internal/storetest"
	"termkeeper/migrations"
)

func TestNewIsPrivateAndMigrated(t *testing.T) {
	t.Parallel()
	var databases sync.Map
	t.Run("at once", func(t *testing.T) {
		for range 4 {
			t.Run("user", func(t *testing.T) {
				t.Parallel()
				var name string
				require.NoError(t, storetest.New(t).QueryRow(t.Context(), "SELECT current_database()").Scan(&name))
				_, seen := databases.LoadOrStore(name, true)
				require.False(t, seen, name)
			})
		}
	})

	states, err := migrations.Status(t.Context(), storetest.NewURL(t))
	require.NoError(t, err)
	require.NotEmpty(t, states)
	for _, state := range states {
		require.True(t, state.Applied, state.File)
	}
}

func TestNewDropsItsDatabase(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("user", func(t *testing.T) {
		url = storetest.NewURL(t)
		// Left open: the drop does not wait for it.
		_, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
	})
	_, err := pgx.Connect(t.Context(), url)
	require.ErrorContains(t, err, "does not exist")
}

// A namespace can be worked in as soon as it is made.
func TestTemporalNamespaceWorksAtOnce(t *testing.T) {
	t.Parallel()
	address, namespace := storetest.Temporal(t)
	_, other := storetest.Temporal(t)
	require.NotEqual(t, namespace, other)
	c, err := client.Dial(client.Options{HostPort: address, Namespace: namespace})
	require.NoError(t, err)
	defer c.Close()
	w := worker.New(c, "q", worker.Options{})
	w.RegisterWorkflowWithOptions(func(workflow.Context) (string, error) { return "done", nil }, workflow.RegisterOptions{Name: "W"})
	require.NoError(t, w.Start())
	defer w.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: "q"}, "W")
	require.NoError(t, err)
	var result string
	require.NoError(t, run.Get(ctx, &result))
	require.Equal(t, "done", result)
}

// Without servers the tests fail, in a sentence that says what to do. They are not skipped.
func TestWithoutServers(t *testing.T) {
	t.Parallel()
	for _, test := range []string{"TestNewIsPrivateAndMigrated", "TestTemporalNamespaceWorksAtOnce"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$")
		for _, variable := range os.Environ() {
			if !strings.HasPrefix(variable, "TERMKEEPER_TEST_") {
				cmd.Env = append(cmd.Env, variable)
			}
		}
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "run the tests with `make test`")
	}
}
