package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"termkeeper/internal/subscription"
	"termkeeper/internal/telemetry"
)

func ask(t *testing.T, handler http.Handler, method, path, body string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return recorder.Code, recorder.Body.String()
}

func TestLogIsOneJSONObjectPerLineAndItsLevelMoves(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, level := telemetry.NewLogger(&out, zapcore.InfoLevel)
	handler := telemetry.OpsHandler(telemetry.NewMetrics(), level, func(context.Context) error { return nil })

	log.Debug("hidden")
	code, _ := ask(t, handler, http.MethodPut, "/log/level", `{"level":"debug"}`)
	require.Equal(t, http.StatusOK, code)
	log.Debug("seen", zap.String("job", "subscription-expiry"))

	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), "exactly one line was written")
	require.Equal(t, "seen", line["msg"])
	require.Equal(t, "subscription-expiry", line["job"])
	require.Contains(t, line, "time")
}

func TestHealth(t *testing.T) {
	t.Parallel()
	_, level := telemetry.NewLogger(io.Discard, zapcore.InfoLevel)
	var trouble error
	handler := telemetry.OpsHandler(telemetry.NewMetrics(), level, func(ctx context.Context) error {
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		return trouble
	})
	code, body := ask(t, handler, http.MethodGet, "/healthz/ready", "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ready\n", body)

	trouble = errors.New("the database does not answer")
	code, body = ask(t, handler, http.MethodGet, "/healthz/ready", "")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "not ready: the database does not answer\n", body)
	code, _ = ask(t, handler, http.MethodGet, "/healthz/live", "")
	require.Equal(t, http.StatusOK, code, "a process that is not ready still lives")
	code, _ = ask(t, handler, http.MethodPost, "/healthz/live", "")
	require.Equal(t, http.StatusMethodNotAllowed, code)
	code, _ = ask(t, handler, http.MethodGet, "/debug/pprof/", "")
	require.Equal(t, http.StatusNotFound, code)
}

func TestMetricsHaveTheirNames(t *testing.T) {
	t.Parallel()
	_, level := telemetry.NewLogger(io.Discard, zapcore.InfoLevel)
	m := telemetry.NewMetrics()
	m.Access(subscription.ReasonActive)
	m.AccessFailed()
	m.AccessCheckDuration.Observe(0.001)
	m.WebhookReceived.WithLabelValues("stripe", telemetry.EventType("made.up"), telemetry.WebhookStored).Inc()
	m.WatchSecrets([]string{"0a1b2c3d", "99887766"})
	m.SecretUsed("0a1b2c3d", time.Unix(1764547200, 0))
	m.APIVersion("2023-10-16")
	m.APIVersion("2025-03-31.basil")
	m.APIVersion("")
	m.APIVersion("2025-03-31.basil; drop table")
	m.WebhookApplied.WithLabelValues("customer.subscription.updated", "processed").Inc()
	m.JobRuns.WithLabelValues("subscription-expiry", "ok").Inc()
	m.JobRows.WithLabelValues("subscription-expiry", "changed").Add(3)
	m.JobLastSuccess.WithLabelValues("subscription-expiry").SetToCurrentTime()
	m.JobScheduleDelay.WithLabelValues("subscription-expiry").Observe(0.1)
	m.JobQueueDelay.WithLabelValues("subscription-expiry").Observe(0.1)
	m.ExpiryLag.Observe(0.1)
	m.WatchSkippedOverlaps(func(context.Context) (map[string]int64, error) {
		return map[string]int64{"subscription-expiry": 2}, nil
	})
	backlog := telemetry.Backlog{WebhookOldestUnprocessed: 1500 * time.Millisecond, OutboxPending: 4, OutboxOldest: 2 * time.Second}
	var trouble error
	m.WatchBacklog(func(context.Context) (telemetry.Backlog, error) { return backlog, trouble })
	for _, name := range []string{"access", "rest"} { // two pools share the names and differ by label
		pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		m.WatchPool(name, pool)
	}
	handler := telemetry.OpsHandler(m, level, func(context.Context) error { return nil })

	_, body := ask(t, handler, http.MethodGet, "/metrics", "")
	for _, want := range []string{
		`termkeeper_access_checks_total{reason="active",result="allowed"} 1`,
		`termkeeper_access_checks_total{reason="extended",result="allowed"} 0`,
		`termkeeper_access_checks_total{reason="feature_not_in_plan",result="denied"} 0`,
		`termkeeper_access_checks_total{reason="unavailable",result="error"} 1`,
		`termkeeper_access_check_duration_seconds_count 1`,
		`termkeeper_webhook_received_total{outcome="stored",provider="stripe",type="other"} 1`,
		`termkeeper_webhook_secret_used_total{secret="0a1b2c3d"} 1`,
		`termkeeper_webhook_secret_used_total{secret="99887766"} 0`,
		`termkeeper_webhook_secret_last_used_timestamp_seconds{secret="0a1b2c3d"} 1.7645472e+09`,
		`termkeeper_webhook_secret_last_used_timestamp_seconds{secret="99887766"} 0`,
		`termkeeper_webhook_api_version_total{version="2023-10-16"} 1`,
		`termkeeper_webhook_api_version_total{version="2025-03-31.basil"} 1`,
		`termkeeper_webhook_api_version_total{version="none"} 1`,
		`termkeeper_webhook_api_version_total{version="other"} 1`,
		`termkeeper_webhook_applied_total{outcome="processed",type="customer.subscription.updated"} 1`,
		`termkeeper_webhook_oldest_unprocessed_seconds 1.5`,
		`termkeeper_outbox_pending 4`,
		`termkeeper_outbox_oldest_seconds 2`,
		`termkeeper_job_runs_total{job="subscription-expiry",outcome="ok"} 1`,
		`termkeeper_job_rows_total{action="changed",job="subscription-expiry"} 3`,
		`termkeeper_job_last_success_timestamp_seconds{job="subscription-expiry"}`,
		`termkeeper_job_schedule_delay_seconds_count{job="subscription-expiry"} 1`,
		`termkeeper_job_queue_delay_seconds_count{job="subscription-expiry"} 1`,
		`termkeeper_job_overlaps_skipped_total{job="subscription-expiry"} 2`,
		`termkeeper_expiry_lag_seconds_count 1`,
		`termkeeper_db_pool_connections{pool="access",state="idle"} 0`,
		`termkeeper_db_pool_connections{pool="rest",state="in_use"} 0`,
		`termkeeper_db_pool_max_connections{pool="access"}`,
		`go_goroutines`, `process_open_fds`,
	} {
		require.Contains(t, body, "\n"+want)
	}

	trouble = errors.New("no database")
	code, body := ask(t, handler, http.MethodGet, "/metrics", "")
	require.Equal(t, http.StatusOK, code, "the other metrics stay readable")
	require.NotContains(t, body, "termkeeper_outbox_pending", "unknown is not zero")
}

func TestOpsServerListensAndStops(t *testing.T) {
	t.Parallel()
	_, level := telemetry.NewLogger(io.Discard, zapcore.InfoLevel)
	ops, err := telemetry.OpenOps("127.0.0.1:0", telemetry.NewMetrics(), level, func(context.Context) error { return nil })
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- ops.Serve() }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ops.Addr()+"/healthz/live", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	_, err = telemetry.OpenOps(ops.Addr(), telemetry.NewMetrics(), level, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "listening for health and metrics on "+ops.Addr())
	require.NoError(t, ops.Shutdown(t.Context()))
	require.NoError(t, <-done)
}

func TestVersionsOfTheProviderAreBounded(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics()
	for day := 1; day <= 28; day++ {
		m.APIVersion(fmt.Sprintf("2025-02-%02d", day))
	}
	families, err := m.Registry().Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "termkeeper_webhook_api_version_total" {
			require.Len(t, f.GetMetric(), 21, "twenty and other")
			return
		}
	}
	require.Fail(t, "the metric is not there")
}
