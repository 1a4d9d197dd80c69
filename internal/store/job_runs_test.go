package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

func aRun(id string, at time.Time) store.Run {
	at = at.UTC().Truncate(time.Microsecond)
	return store.Run{
		Job: "job", RunID: id, Trigger: store.TriggerScheduled, ScheduledAt: at, PublishedAt: at.Add(50 * time.Millisecond),
		StartedAt: at.Add(80 * time.Millisecond), DeadlineAt: at.Add(time.Minute),
	}
}

func begin(t *testing.T, s *store.Store, r store.Run) int64 {
	t.Helper()
	timedOut, err := s.BeginRun(t.Context(), r)
	require.NoError(t, err)
	return timedOut
}

func finish(t *testing.T, s *store.Store, id string, c store.Counts, failure string) string {
	t.Helper()
	outcome, err := s.FinishRun(t.Context(), "job", id, c, failure)
	require.NoError(t, err)
	return outcome
}

func TestRunIsOneRowOverItsAttempts(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	r := aRun("r1", time.Now())
	begin(t, s, r)
	last, err := s.LastRuns(t.Context(), []string{"job", "other"})
	require.NoError(t, err)
	require.Equal(t, map[string]store.LastRun{"job": {Latest: r}}, last)

	require.Equal(t, store.OutcomeFailed, finish(t, s, "r1", store.Counts{Scanned: 2, Changed: 2}, "the database cannot be reached"))
	again := r
	again.StartedAt = r.StartedAt.Add(time.Second)
	begin(t, s, again)
	require.Equal(t, store.OutcomeOK, finish(t, s, "r1", store.Counts{Scanned: 1, Failed: 1}, ""))
	list, err := s.RecentRuns(t.Context(), "job", store.RunCursor{}, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, store.Counts{Scanned: 3, Changed: 2, Failed: 1}, list[0].Counts)
	require.Equal(t, r.StartedAt, list[0].StartedAt, "the first attempt's: that is what the queue's delay is about")
	require.Empty(t, list[0].Error)
	require.False(t, list[0].FinishedAt.IsZero())

	begin(t, s, aRun("r2", time.Now()))
	require.Equal(t, store.OutcomeEmpty, finish(t, s, "r2", store.Counts{}, ""))
	_, err = s.FinishRun(t.Context(), "job", "never", store.Counts{}, "")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func TestRunThatNeverFinishedIsClosedByTheNext(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	begin(t, s, aRun("hung", time.Now().Add(-2*time.Minute)))
	begin(t, s, aRun("young", time.Now()))
	other := aRun("other job", time.Now().Add(-2*time.Minute))
	other.Job = "other"
	begin(t, s, other)
	require.EqualValues(t, 0, begin(t, s, aRun("hung", time.Now())), "its own row is its own business: it was begun again")
	require.EqualValues(t, 1, begin(t, s, aRun("next", time.Now())))
	list, err := s.RecentRuns(t.Context(), "job", store.RunCursor{}, 10)
	require.NoError(t, err)
	outcomes := map[string]string{}
	for _, r := range list {
		outcomes[r.RunID] = r.Outcome
	}
	require.Equal(t, map[string]string{"hung": store.OutcomeTimedOut, "young": "", "next": ""}, outcomes)
	require.Equal(t, store.OutcomeEmpty, finish(t, s, "hung", store.Counts{}, ""), "a late end overwrites the guess")
}

func TestRunsTrimThemselves(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	add := func(id, outcome string, age time.Duration) {
		_, err := pool.Exec(t.Context(), `INSERT INTO job_runs (job, run_id, trigger, scheduled_at, published_at, started_at, deadline_at, finished_at, outcome)
			SELECT 'job', $1, 'scheduled', at, at, at, at, at, $2 FROM (SELECT now() - $3::interval) n(at)`, id, outcome, age)
		require.NoError(t, err)
	}
	const day = 24 * time.Hour
	add("empty, old", "empty", 3*day+time.Minute)
	add("empty, young", "empty", 3*day-time.Minute)
	add("ok, young", "ok", 30*day-time.Minute)
	add("ok, old", "ok", 30*day+time.Minute)
	add("failed, old", "failed", 31*day)
	begin(t, s, aRun("now", time.Now()))
	require.Equal(t, 3, count(t, pool, `SELECT count(*) FROM job_runs`))
	require.Equal(t, 3, count(t, pool, `SELECT count(*) FROM job_runs WHERE run_id IN ('empty, young', 'ok, young', 'now')`))

	_, err := pool.Exec(t.Context(), `INSERT INTO job_runs (job, run_id, trigger, scheduled_at, published_at, started_at, deadline_at, finished_at, outcome)
		SELECT 'job', i::text, 'scheduled', at, at, at, at, at, 'empty' FROM (SELECT now() - interval '4 days') n(at), generate_series(1, 700) i`)
	require.NoError(t, err)
	begin(t, s, aRun("then", time.Now()))
	require.Equal(t, 204, count(t, pool, `SELECT count(*) FROM job_runs`), "a run removes 500 at most")
}

func TestRecentRunsPageByPage(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	at := time.Now()
	for _, id := range []string{"a", "b", "c", "d", "e"} { // all of one instant
		begin(t, s, aRun(id, at))
	}
	var seen []string
	var cursor store.RunCursor
	for {
		page, err := s.RecentRuns(t.Context(), "job", cursor, 2)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			seen = append(seen, r.RunID)
			cursor = store.RunCursor{StartedAt: r.StartedAt, RunID: r.RunID}
		}
	}
	require.Equal(t, []string{"e", "d", "c", "b", "a"}, seen)
}

func TestDatabaseBelongsToOneEnvironment(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	claimed := make(chan error, 8)
	for range cap(claimed) {
		go func() { claimed <- s.ClaimEnvironment(t.Context(), "staging") }()
	}
	for range cap(claimed) {
		require.NoError(t, <-claimed)
	}
	require.ErrorContains(t, s.ClaimEnvironment(t.Context(), "production"), "belongs to the environment staging")
}
