package activities_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/reconcile"
	"termkeeper/internal/secret"
	"termkeeper/internal/store"
)

func TestReconcileWithoutAnAnswerFailsTheRunOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"error":{"type":"api_error","message":"no"}}`))
	}))
	t.Cleanup(server.Close)
	client := payment.NewClient(secret.NewText("sk_test_canary"), server.URL)
	t.Cleanup(client.Close)
	in := intake.New(b.store, intake.Settings{Owner: "test", Leeway: time.Hour}, zap.NewNop())
	t.Cleanup(func() { require.NoError(t, in.Drain(context.WithoutCancel(t.Context()))) })
	reconciliation := &activities.Reconciliation{Runs: b.runs, Reconciler: &reconcile.Reconciler{
		Store: b.store, Intake: in, Provider: client, Log: zap.NewNop(), Settings: reconcile.Settings{Leeway: time.Hour, Zone: time.UTC},
	}}
	_, err := b.run(b.environment(), reconciliation.Reconcile, manual("subscription-reconcile"))
	var failed *temporal.ApplicationError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, activities.FailureProvider, failed.Type())
	require.True(t, failed.NonRetryable(), "the provider may be down for long")
	require.Equal(t, 1, asked)
	require.Equal(t, store.OutcomeFailed, b.text(`SELECT outcome FROM job_runs`))
	require.Equal(t, "the payment provider gave no answer: it answered with status 500", b.text(`SELECT error FROM job_runs`))

	b.exec(`DELETE FROM job_runs`)
	reconciliation.Reconciler.Provider = nil
	tally, err := b.run(b.environment(), reconciliation.Reconcile, manual("subscription-reconcile"))
	require.NoError(t, err)
	require.Zero(t, tally)
	require.Equal(t, store.OutcomeEmpty, b.text(`SELECT outcome FROM job_runs`))
}
