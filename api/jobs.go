package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/store"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

type jobRoutes struct {
	store     *store.Store
	schedules *temporalclient.Schedules
}

// jobJSON: what only Temporal knows is null while it cannot be reached.
type jobJSON struct {
	Job             string   `json:"job"`
	Workflow        string   `json:"workflow"`
	Queue           string   `json:"queue"`
	Every           string   `json:"every"`
	Paused          *bool    `json:"paused"`
	PauseReason     *string  `json:"pause_reason"`
	NextRunAt       stamp    `json:"next_run_at"`
	LastRun         *runJSON `json:"last_run"`
	Health          string   `json:"health"`
	SkippedOverlaps *int64   `json:"skipped_overlaps"`
	MissedCatchups  *int64   `json:"missed_catchups"`
}

type runJSON struct {
	RunID       string  `json:"run_id"`
	Trigger     string  `json:"trigger"`
	ScheduledAt stamp   `json:"scheduled_at"`
	PublishedAt stamp   `json:"published_at"`
	StartedAt   stamp   `json:"started_at"`
	FinishedAt  stamp   `json:"finished_at"`
	Outcome     *string `json:"outcome"`
	Scanned     int64   `json:"scanned"`
	Changed     int64   `json:"changed"`
	Skipped     int64   `json:"skipped"`
	Failed      int64   `json:"failed"`
	Error       *string `json:"error"`
}

func showRun(r store.Run) runJSON {
	return runJSON{
		RunID: r.RunID, Trigger: r.Trigger, ScheduledAt: stamp(r.ScheduledAt), PublishedAt: stamp(r.PublishedAt), StartedAt: stamp(r.StartedAt),
		FinishedAt: stamp(r.FinishedAt), Outcome: optional(r.Outcome), Scanned: r.Counts.Scanned, Changed: r.Counts.Changed,
		Skipped: r.Counts.Skipped, Failed: r.Counts.Failed, Error: optional(r.Error),
	}
}

// The states of health of a job.
const (
	healthOK      = "ok"
	healthLate    = "late"    // silent for longer than its cadence allows
	healthFailing = "failing" // its last run that ended did not end well
	healthStuck   = "stuck"   // its last run never ended
	healthPaused  = "paused"
	healthWaiting = "waiting" // it has not run yet
	healthUnknown = "unknown" // Temporal cannot be reached
)

// health judges a job by its last runs. now is the database's clock.
func health(job workflows.Job, paused bool, last store.LastRun, now time.Time) string {
	running := last.Latest.FinishedAt.IsZero()
	switch {
	case paused:
		return healthPaused
	case last.Latest.RunID == "":
		return healthWaiting
	case running && now.After(last.Latest.DeadlineAt):
		return healthStuck
	case !running && now.Sub(last.Latest.FinishedAt) > job.Silence:
		return healthLate
	case last.Finished.Outcome == store.OutcomeFailed, last.Finished.Outcome == store.OutcomeTimedOut:
		return healthFailing
	default:
		return healthOK
	}
}

// all shows every job of the catalog: runs from the database, the state of the schedules from Temporal where it answers.
func (j jobRoutes) all(ctx context.Context) ([]jobJSON, error) {
	last, err := j.store.LastRuns(ctx, workflows.JobIDs())
	if err != nil {
		return nil, err
	}
	now, err := j.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	schedules, err := j.schedules.List(ctx) // answers within three seconds
	known := err == nil
	if err != nil && !errors.Is(err, temporalclient.ErrUnavailable) {
		return nil, err
	}
	cadences := map[string]time.Duration{}
	for id, s := range schedules {
		cadences[id] = s.Every
	}
	catalog, err := workflows.CatalogEvery(cadences)
	if err != nil { // a schedule that somebody made by hand
		catalog = workflows.Catalog()
	}
	jobs := make([]jobJSON, 0, len(catalog))
	for _, job := range catalog {
		shown := jobJSON{Job: job.ID, Workflow: job.Workflow, Queue: job.Queue, Every: shortDuration(job.Every), Health: healthUnknown}
		if run := last[job.ID].Latest; run.RunID != "" {
			latest := showRun(run)
			shown.LastRun = &latest
		}
		if s := schedules[job.ID]; known {
			shown.Paused, shown.NextRunAt = &s.Paused, stamp(s.NextRunAt)
			shown.SkippedOverlaps, shown.MissedCatchups = &s.SkippedOverlaps, &s.MissedCatchups
			if s.Paused {
				shown.PauseReason = &s.Note
			}
			shown.Health = health(job, s.Paused, last[job.ID], now)
		}
		jobs = append(jobs, shown)
	}
	return jobs, nil
}

func (j jobRoutes) list(c echo.Context) error {
	jobs, err := j.all(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, page{Data: jobs})
}

// job is the job of the path.
func (j jobRoutes) job(c echo.Context) (workflows.Job, error) {
	for _, job := range workflows.Catalog() {
		if job.ID == pathText(c, "job") {
			return job, nil
		}
	}
	return workflows.Job{}, notFound("job")
}

type runPosition struct {
	StartedAt time.Time `json:"t"`
	RunID     string    `json:"r"`
}

// runs is newest first.
func (j jobRoutes) runs(c echo.Context) error {
	job, err := j.job(c)
	if err != nil {
		return err
	}
	list := filtered("runs", job.ID)
	var position runPosition
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	runs, err := j.store.RecentRuns(c.Request().Context(), job.ID, store.RunCursor(position), limit+1)
	if err != nil {
		return err
	}
	return answerPage(c, list, runs, limit, func(r store.Run) any { return runPosition{r.StartedAt, r.RunID} }, func(r store.Run) any { return showRun(r) })
}

func (j jobRoutes) trigger(c echo.Context) error {
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	return j.steer(c, func(ctx context.Context, id string) error { return j.schedules.Trigger(ctx, id) }, func(*jobJSON) {})
}

func (j jobRoutes) pause(c echo.Context) error {
	reason, err := bindReason(c)
	if err != nil {
		return err
	}
	if reason == "" {
		reason = "paused by " + who(c).actor()
	}
	return j.steer(c, func(ctx context.Context, id string) error { return j.schedules.Pause(ctx, id, reason) }, func(shown *jobJSON) {
		paused := true
		shown.Paused, shown.PauseReason, shown.NextRunAt, shown.Health = &paused, &reason, stamp{}, healthPaused
	})
}

func (j jobRoutes) unpause(c echo.Context) error {
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	return j.steer(c, func(ctx context.Context, id string) error { return j.schedules.Unpause(ctx, id) }, func(shown *jobJSON) {
		paused := false
		shown.Paused, shown.PauseReason = &paused, nil
	})
}

// steer does something to the job's schedule and answers with the job. Temporal shows a change a moment after it took it, so
// what is known about the change is put over what it shows.
func (j jobRoutes) steer(c echo.Context, do func(context.Context, string) error, known func(*jobJSON)) error {
	job, err := j.job(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if err := do(ctx, job.ID); err != nil {
		return err
	}
	jobs, err := j.all(ctx)
	if err != nil {
		return err
	}
	for i := range jobs {
		if jobs[i].Job == job.ID {
			known(&jobs[i])
			return c.JSON(http.StatusOK, jobs[i])
		}
	}
	return notFound("job")
}
