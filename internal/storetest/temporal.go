package storetest

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"termkeeper/internal/devstack"
)

// Temporal returns the address of the test run's Temporal server and a namespace of the test's own on it, made in some
// ten milliseconds. Without a server the test fails.
func Temporal(tb testing.TB) (address, namespace string) {
	tb.Helper()
	address = os.Getenv("TERMKEEPER_TEST_TEMPORAL_ADDRESS")
	if address == "" {
		tb.Fatal("this test needs Temporal: run the tests with `make test`, or set TERMKEEPER_TEST_TEMPORAL_ADDRESS to a development server's host:port")
	}
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	namespace = "test-" + strings.ToLower(rand.Text())
	if err := devstack.EnsureNamespace(ctx, workflowservice.NewWorkflowServiceClient(conn), namespace); err != nil {
		tb.Fatal(err)
	}
	return address, namespace
}
