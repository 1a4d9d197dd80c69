package api

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/workflows"
)

func TestJobHealth(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	job := workflows.Job{ID: "j", Silence: 50 * time.Second}
	ran := func(ago time.Duration, outcome string) store.Run {
		return store.Run{RunID: "r", StartedAt: now.Add(-ago - time.Second), FinishedAt: now.Add(-ago), DeadlineAt: now.Add(-ago + time.Minute), Outcome: outcome}
	}
	runs := func(deadline time.Duration) store.Run {
		return store.Run{RunID: "r2", StartedAt: now.Add(-10 * time.Minute), DeadlineAt: now.Add(deadline)}
	}
	both := func(r store.Run) store.LastRun { return store.LastRun{Latest: r, Finished: r} }
	for name, c := range map[string]struct {
		paused bool
		last   store.LastRun
		want   string
	}{
		"never ran":                      {false, store.LastRun{}, healthWaiting},
		"never ran and paused":           {true, store.LastRun{}, healthPaused},
		"ran well":                       {false, both(ran(10*time.Second, store.OutcomeOK)), healthOK},
		"ran and found nothing":          {false, both(ran(10*time.Second, store.OutcomeEmpty)), healthOK},
		"as silent as it may be":         {false, both(ran(50*time.Second, store.OutcomeOK)), healthOK},
		"silent for longer":              {false, both(ran(50*time.Second+1, store.OutcomeOK)), healthLate},
		"failed":                         {false, both(ran(10*time.Second, store.OutcomeFailed)), healthFailing},
		"was closed by the next":         {false, both(ran(10*time.Second, store.OutcomeTimedOut)), healthFailing},
		"failed and is silent":           {false, both(ran(time.Hour, store.OutcomeFailed)), healthLate},
		"paused after a failure":         {true, both(ran(time.Hour, store.OutcomeFailed)), healthPaused},
		"runs for the first time":        {false, store.LastRun{Latest: runs(time.Minute)}, healthOK},
		"runs long, as a lingering does": {false, store.LastRun{Latest: runs(time.Minute), Finished: ran(10*time.Minute, store.OutcomeOK)}, healthOK},
		"runs after a failure":           {false, store.LastRun{Latest: runs(time.Minute), Finished: ran(10*time.Minute, store.OutcomeFailed)}, healthFailing},
		"never ended":                    {false, store.LastRun{Latest: runs(-time.Second), Finished: ran(10*time.Minute, store.OutcomeOK)}, healthStuck},
	} {
		require.Equal(t, c.want, health(job, c.paused, c.last, now), name)
	}
}

// TestJobsWithoutTemporal: what the database knows is still told, and steering says why it cannot be done.
func TestJobsWithoutTemporal(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO job_runs (job, run_id, trigger, scheduled_at, published_at, started_at, deadline_at, finished_at, outcome, scanned, changed)
		VALUES ('subscription-expiry', 'run_1', 'scheduled', '2026-01-01', '2026-01-01T00:00:01Z', '2026-01-01T00:00:02Z', '2026-01-01T01:00:00Z', '2026-01-01T00:00:03Z', 'ok', 3, 2)`)
	list := s.must(t, http.StatusOK, http.MethodGet, "/v1/jobs", "")["data"].([]any)
	require.Len(t, list, len(workflows.Catalog()))
	expiry := list[0].(map[string]any)
	run := map[string]any{
		"run_id": "run_1", "trigger": "scheduled", "scheduled_at": "2026-01-01T00:00:00Z", "published_at": "2026-01-01T00:00:01Z", "started_at": "2026-01-01T00:00:02Z",
		"finished_at": "2026-01-01T00:00:03Z", "outcome": "ok", "scanned": 3.0, "changed": 2.0, "skipped": 0.0, "failed": 0.0, "error": nil,
	}
	require.Equal(t, map[string]any{
		"job": "subscription-expiry", "workflow": "ExpireSubscriptions", "queue": "subscriptions", "every": "10s", "paused": nil, "pause_reason": nil,
		"next_run_at": nil, "last_run": run, "health": "unknown", "skipped_overlaps": nil, "missed_catchups": nil,
	}, expiry)
	require.Equal(t, []any{run}, s.must(t, http.StatusOK, http.MethodGet, "/v1/jobs/subscription-expiry/runs", "")["data"])
	require.Empty(t, s.must(t, http.StatusOK, http.MethodGet, "/v1/jobs/webhook-apply/runs", "")["data"])
	s.do(t, roleOperator, http.MethodGet, "/v1/jobs/nothing/runs", "").requireProblem(t, http.StatusNotFound, "not_found")
	var answers [3]answer
	var wait sync.WaitGroup
	for i, action := range []string{"trigger", "pause", "unpause"} {
		wait.Go(func() {
			answers[i] = s.do(t, roleOperator, http.MethodPost, "/v1/jobs/subscription-expiry/"+action, "")
		})
	}
	wait.Wait()
	for _, a := range answers {
		a.requireProblem(t, http.StatusServiceUnavailable, "temporal_unavailable")
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	a := s.do(t, roleOperator, http.MethodPost, "/v1/jobs/subscription-expiry/pause", `{"reason":"a\nb"}`)
	require.Equal(t, []string{"/reason"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"))
}
