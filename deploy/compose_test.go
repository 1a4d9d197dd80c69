package deploy

import (
	"bufio"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/graph"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
)

// given are the variables that have no default: passwords and secrets.
var given = map[string]string{
	"TERMKEEPER_DB_PASSWORD": "a", "TEMPORAL_DB_PASSWORD": "b", "POSTGRES_PASSWORD": "c", "STRIPE_WEBHOOK_SECRETS": "whsec_of_the_compose_file_test",
	"TERMKEEPER_SECRET_KEY": "b2YgdGhlIHRlc3Qgb2YgdGhlIGNvbXBvc2UgZmlsZS4=",
}

// ours are the services that run the program, with what they wait for.
func ours() []string { return []string{"api", "migrate", "worker"} }

func load(t *testing.T, environ map[string]string) (*types.Project, error) {
	t.Helper()
	var list []string
	for name, value := range environ {
		list = append(list, name+"="+value)
	}
	options, err := cli.NewProjectOptions([]string{filepath.Join(repository, "docker-compose.yml")},
		cli.WithWorkingDirectory(repository), cli.WithEnv(list), cli.WithResolvedPaths(true), cli.WithConsistency(true))
	require.NoError(t, err)
	return options.LoadProject(t.Context())
}

func loaded(t *testing.T) *types.Project {
	t.Helper()
	project, err := load(t, given)
	require.NoError(t, err)
	return project
}

func TestComposeNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name := range given {
		for _, value := range []string{"", "absent"} {
			environ := maps.Clone(given)
			if environ[name] = value; value == "absent" {
				delete(environ, name)
			}
			_, err := load(t, environ)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "set ", "it says what to do")
		}
	}
}

func TestComposeServices(t *testing.T) {
	t.Parallel()
	project := loaded(t)
	require.Equal(t, []string{"api", "mailpit", "migrate", "postgres", "temporal", "temporal-namespace", "temporal-schema", "temporal-ui", "worker"},
		slices.Sorted(maps.Keys(project.Services)))
	require.NoError(t, graph.CheckCycle(project))
	for name, condition := range map[[2]string]string{
		{"temporal-schema", "postgres"}:    types.ServiceConditionHealthy,
		{"temporal", "temporal-schema"}:    types.ServiceConditionCompletedSuccessfully,
		{"temporal-namespace", "temporal"}: types.ServiceConditionHealthy,
		{"temporal-ui", "temporal"}:        types.ServiceConditionHealthy,
		{"migrate", "postgres"}:            types.ServiceConditionHealthy,
		{"api", "migrate"}:                 types.ServiceConditionCompletedSuccessfully,
		{"worker", "migrate"}:              types.ServiceConditionCompletedSuccessfully,
		{"worker", "temporal-namespace"}:   types.ServiceConditionCompletedSuccessfully,
	} {
		require.Equal(t, condition, project.Services[name[0]].DependsOn[name[1]].Condition, name)
	}
	require.Len(t, project.Services["api"].DependsOn, 1, "the API does without Temporal")
	for name, service := range project.Services {
		for on, dependency := range service.DependsOn {
			healthy := dependency.Condition == types.ServiceConditionHealthy
			check := project.Services[on].HealthCheck
			require.Equal(t, healthy, check != nil && !check.Disable, "%s waits for %s", name, on)
		}
	}
	require.Equal(t, 2, *project.Services["worker"].Deploy.Replicas)
	require.Empty(t, project.Services["worker"].Ports, "two cannot have the same port")
	require.Empty(t, project.Services["worker"].ContainerName, "two cannot have the same name")
}

func TestComposeHoldsItsServicesDown(t *testing.T) {
	t.Parallel()
	version := regexp.MustCompile(`^v?[0-9]+\.[0-9]+(\.[0-9]+)?$`)
	for name, service := range loaded(t).Services {
		require.Contains(t, service.SecurityOpt, "no-new-privileges:true", name)
		require.False(t, service.Privileged, name)
		require.NotNil(t, service.Deploy.Resources.Limits, name)
		require.Positive(t, service.Deploy.Resources.Limits.MemoryBytes, name)
		require.NotEmpty(t, service.Restart, name)
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s publishes %s to others", name, port.Published)
		}
		for _, volume := range service.Volumes {
			if volume.Type == types.VolumeTypeBind {
				require.True(t, volume.ReadOnly, "%s can write %s", name, volume.Source)
				info, err := os.Stat(volume.Source)
				require.NoError(t, err, name)
				require.True(t, info.Mode().IsRegular(), volume.Source)
			}
		}
		if slices.Contains(ours(), name) {
			require.True(t, service.ReadOnly, name)
			require.Empty(t, service.User, "the image's own")
			require.NotNil(t, service.Build, name)
		} else {
			_, tag, _ := strings.Cut(service.Image, ":")
			require.Regexp(t, version, tag, service.Image)
		}
		if name != "postgres" { // its start as root hands the volume to the user of the server
			require.Equal(t, []string{"ALL"}, service.CapDrop, name)
		}
	}
}

// budget is how long a process takes to stop in order at most: docs/operations.md, "Health".
const budget = 30 * time.Second

func TestComposeLetsTheProgramStop(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "docs", "operations.md"))
	require.NoError(t, err)
	require.Contains(t, strings.Join(strings.Fields(string(text)), " "), "the API within 20 seconds, a worker within 30")
	for _, name := range ours() {
		grace := loaded(t).Services[name].StopGracePeriod
		require.NotNil(t, grace, name)
		require.Greater(t, time.Duration(*grace), budget, name)
	}
}

// The program takes the commands and the environment that the compose file gives it: it gets as far as the database, which
// is not there.
func TestProgramTakesWhatComposeGives(t *testing.T) {
	t.Parallel()
	known := variables(t)
	project := loaded(t)
	for _, name := range ours() {
		service := project.Services[name]
		var environ []string
		for variable, value := range service.Environment {
			require.Contains(t, known, variable, "%s is not in .env.example", variable)
			require.NotNil(t, value, variable)
			environ = append(environ, variable+"="+strings.ReplaceAll(*value, "@postgres:5432", "@127.0.0.1:9"))
		}
		require.Contains(t, *service.Environment["DATABASE_URL"], "@postgres:5432/termkeeper")
		const unreachable = 3
		out := run(t, environ, service.Command...)
		require.Equal(t, unreachable, out.code, "%s: %s", name, out.stderr)
		require.Contains(t, out.stderr, "PostgreSQL cannot be reached")

		if check := service.HealthCheck; !check.Disable {
			require.Equal(t, []string{"CMD", "/termkeeper"}, []string(check.Test[:2]))
			out = run(t, []string{"TERMKEEPER_OPS_ADDR=127.0.0.1:9"}, check.Test[2:]...)
			require.Equal(t, unreachable, out.code, out.stderr)
		}
	}
}

// variables are the names in .env.example, which a test of internal/config holds to those that the program reads.
func variables(t *testing.T) []string {
	t.Helper()
	return names(t, filepath.Join(repository, ".env.example"))
}

func names(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.Open(file)
	require.NoError(t, err)
	defer text.Close()
	var list []string
	for lines := bufio.NewScanner(text); lines.Scan(); {
		if name, _, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(name, "#") {
			list = append(list, name)
		}
	}
	return list
}

// Whoever copies the example has every variable, and the defaults of the compose file.
func TestExampleOfTheComposeVariables(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "docker-compose.yml"))
	require.NoError(t, err)
	used := map[string]string{}
	for _, m := range regexp.MustCompile(`\$\{([A-Z_]+)(?::-([^}]*))?`).FindAllStringSubmatch(string(text), -1) {
		used[m[1]] = m[2]
	}
	file := filepath.Join(repository, "deploy", "compose.env.example")
	require.ElementsMatch(t, slices.Collect(maps.Keys(used)), names(t, file))
	example, err := os.ReadFile(file)
	require.NoError(t, err)
	for name, value := range used {
		require.Contains(t, string(example), "\n"+name+"="+value+"\n")
	}
}

// The server of the compose file is set as the one that all tests run with.
func TestDynamicConfig(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "deploy", "temporal", "dynamicconfig.yaml"))
	require.NoError(t, err)
	tested, err := os.ReadFile(filepath.Join(repository, "internal", "devstack", "temporal.go"))
	require.NoError(t, err)
	settings := regexp.MustCompile(`(?m)^([a-zA-Z.]+):\n  - value: (.+)$`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, settings, 4)
	for _, s := range settings {
		require.Contains(t, string(tested), `"`+s[1]+"="+s[2]+`"`)
	}
}
