package devstack_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"termkeeper/internal/devstack"
)

// temporalBinary does not fetch the program by itself: that may take ten minutes.
func temporalBinary(t *testing.T) string {
	t.Helper()
	require.NotEmpty(t, os.Getenv("TERMKEEPER_TEMPORAL_BINARY"), "run the tests with `make test`, or name the Temporal CLI in TERMKEEPER_TEMPORAL_BINARY")
	path, err := devstack.FindTemporal(t.Context(), t.Output())
	require.NoError(t, err)
	return path
}

func startTemporal(t *testing.T, o devstack.TemporalOptions) *devstack.Temporal {
	t.Helper()
	o.Binary = temporalBinary(t)
	server, err := devstack.StartTemporal(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })
	return server
}

func dial(t *testing.T, address string) workflowservice.WorkflowServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return workflowservice.NewWorkflowServiceClient(conn)
}

func retention(t *testing.T, service workflowservice.WorkflowServiceClient, namespace string) float64 {
	t.Helper()
	described, err := service.DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: namespace})
	require.NoError(t, err)
	return described.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration().Hours()
}

func TestTemporalKeepsItsState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	options := devstack.TemporalOptions{
		DBFile: filepath.Join(dir, "temporal.db"), Namespace: "kept", UIAddress: "127.0.0.1:0", LogFile: filepath.Join(dir, "temporal.log"),
	}
	first := startTemporal(t, options)
	require.NotEmpty(t, first.UIURL())
	require.Equal(t, "kept", first.Namespace())
	service := dial(t, first.Address())
	require.InDelta(t, devstack.Retention.Hours(), retention(t, service, "kept"), 0)
	_, err := service.RegisterNamespace(t.Context(), &workflowservice.RegisterNamespaceRequest{
		Namespace: "long", WorkflowExecutionRetentionPeriod: durationpb.New(24 * devstack.Retention),
	})
	require.NoError(t, err)

	options.Binary = os.Args[0]
	_, err = devstack.StartTemporal(t.Context(), options)
	require.ErrorContains(t, err, "another process is using")

	first.Kill()
	require.Error(t, first.Err())
	<-first.Done()

	options.Port, options.Namespace = first.Port(), "long"
	second := startTemporal(t, options)
	require.Equal(t, first.Address(), second.Address())
	require.InDelta(t, devstack.Retention.Hours(), retention(t, service, "long"), 0, "a namespace that exists gets the short retention")
	require.InDelta(t, devstack.Retention.Hours(), retention(t, service, "kept"), 0)
}

func TestTemporalInMemory(t *testing.T) {
	t.Parallel()
	server := startTemporal(t, devstack.TemporalOptions{Namespace: "memory"})
	require.Empty(t, server.UIURL())
	require.InDelta(t, devstack.Retention.Hours(), retention(t, dial(t, server.Address()), "memory"), 0)
}

func TestTemporalSaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "temporal")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho no such luck\nexit 4\n"), 0o700))
	_, err := devstack.StartTemporal(t.Context(), devstack.TemporalOptions{Binary: program, Namespace: "n", LogFile: filepath.Join(dir, "log")})
	require.ErrorContains(t, err, "exit status 4: no such luck")

	_, err = devstack.StartTemporal(t.Context(), devstack.TemporalOptions{Binary: program, Namespace: "n", UIAddress: "nowhere"})
	require.ErrorContains(t, err, "the address of the Temporal Web UI")
}
