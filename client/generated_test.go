package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheClientIsOfTheDocument generates the client once more: it must be what is checked in.
func TestTheClientIsOfTheDocument(t *testing.T) {
	t.Parallel()
	config, err := os.ReadFile("codegen/config.yaml")
	require.NoError(t, err)
	const output = "output: client/client.gen.go\n"
	require.Contains(t, string(config), output)
	fresh := filepath.Join(t.TempDir(), "client.gen.go")
	elsewhere := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(elsewhere, []byte(strings.Replace(string(config), output, "output: "+fresh+"\n", 1)), 0o600))
	generate := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/go.mod", "oapi-codegen", "-config", elsewhere, "api/openapi.yaml")
	generate.Dir = ".."
	said, err := generate.CombinedOutput()
	require.NoError(t, err, string(said))
	want, err := os.ReadFile(fresh)
	require.NoError(t, err)
	got, err := os.ReadFile("client.gen.go")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run `make generate`")
}
