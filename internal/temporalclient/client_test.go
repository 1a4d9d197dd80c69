package temporalclient_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"termkeeper/internal/temporalclient"
)

func config(t *testing.T, environ ...string) (hostPort, namespace string, err error) {
	t.Helper()
	// A file of the user's own must not decide what this test sees.
	environ = append([]string{"TEMPORAL_CONFIG_FILE=" + t.TempDir() + "/none.toml"}, environ...)
	c, err := temporalclient.Options{Environ: environ, Identity: "me", Logger: zap.NewNop()}.Config()
	if err == nil {
		require.Equal(t, "me", c.Identity)
	}
	return c.HostPort, c.Namespace, err
}

func TestConfigOfTheEnvironment(t *testing.T) {
	t.Parallel()
	host, namespace, err := config(t)
	require.NoError(t, err)
	require.Equal(t, "localhost:7233", host)
	require.Equal(t, "default", namespace, "on loopback nobody has to choose")

	for _, loopback := range []string{"127.0.0.1:7000", "[::1]:7000", "localhost:7000"} {
		_, namespace, err = config(t, "TEMPORAL_ADDRESS="+loopback, "TEMPORAL_NAMESPACE=")
		require.NoError(t, err, loopback)
		require.Equal(t, "default", namespace, loopback)
	}
	_, _, err = config(t, "TEMPORAL_ADDRESS=temporal.example.com:7233")
	require.ErrorContains(t, err, "TEMPORAL_NAMESPACE is not set")
	_, namespace, err = config(t, "TEMPORAL_ADDRESS=temporal.example.com:7233", "TEMPORAL_NAMESPACE=first", "TEMPORAL_NAMESPACE=terms")
	require.NoError(t, err)
	require.Equal(t, "terms", namespace, "the last entry counts, as in a shell")
	_, namespace, err = config(t, "TEMPORAL_ADDRESS=temporal.example.com:7233", "TEMPORAL_NAMESPACE=default")
	require.NoError(t, err)
	require.Equal(t, "default", namespace, "somebody chose it")
	_, _, err = config(t, "TEMPORAL_PROFILE=missing")
	require.ErrorContains(t, err, "reading the TEMPORAL_ variables")
}

func TestLazyClientNeedsNoServer(t *testing.T) {
	t.Parallel()
	tc, err := temporalclient.Lazy(temporalclient.Options{Environ: []string{"TEMPORAL_ADDRESS=127.0.0.1:1", "TEMPORAL_NAMESPACE=terms"}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer tc.Close()
	require.Equal(t, "terms", tc.Namespace)
}

func TestLoggerSpellsKeysAsWeDo(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.DebugLevel)
	logger := temporalclient.NewLogger(zap.New(core))
	logger.Warn("slow", "WorkflowType", "ExpireSubscriptions", "RunID", "r", "TaskQueue", "q", "attempt", 2)
	require.Equal(t, map[string]any{"workflow_type": "ExpireSubscriptions", "run_id": "r", "task_queue": "q", "attempt": int64(2)}, seen.All()[0].ContextMap())
}

func TestMetricsOfTheSDKComeToTheRegistry(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	handler, err := temporalclient.NewMetrics(registry, zap.NewNop())
	require.NoError(t, err)
	handler.WithTags(map[string]string{"task_queue": "q"}).Counter("temporal_request").Inc(3)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "temporal_request_total", families[0].GetName())
	require.InDelta(t, 3, families[0].GetMetric()[0].GetCounter().GetValue(), 0)
}
