// Package activities holds the side effects of the jobs. Every method can be run twice, at the same time or after a
// crash, with the effect of once; its comment says by what.
package activities

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"termkeeper/internal/temporalclient"
)

// Scan is what a schedule hands to its workflow: the job and its limits. It is seen and can be edited in the Web UI.
type Scan struct {
	Job string `json:"job"`
	// Every and Offset are those of the schedule; a run tells by them whether the clock asked for it.
	Every  Duration `json:"every"`
	Offset Duration `json:"offset"`
	// Calendar is the time of day of a schedule that has one instead of an interval.
	Calendar *temporalclient.Calendar `json:"calendar,omitempty"`
	// CatchUp is the schedule's catch-up window: what starts later than that was asked for afterwards.
	CatchUp Duration `json:"catch_up"`
	// Budget is how long a run goes on; what is left then is the next run's.
	Budget Duration `json:"budget"`
	// Lingers lets a scheduled run wait for the next due row until shortly before the next tick.
	Lingers bool `json:"lingers,omitempty"`
	// Batch rows are taken by one statement at first, MaxBatch when there are more than that.
	Batch    int `json:"batch"`
	MaxBatch int `json:"max_batch"`
}

// Run is what a workflow hands to its activity: the scan and the instants that only a workflow knows.
type Run struct {
	Scan
	// ScheduledAt is the instant that the schedule wrote on the run, to the second; zero when no schedule started it.
	ScheduledAt time.Time `json:"scheduled_at"`
	PublishedAt time.Time `json:"published_at"` // start of the workflow
	DeadlineAt  time.Time `json:"deadline_at"`  // the server ends the run then
	Part        int       `json:"part,omitempty"`
}

// Tally counts what a run did. More says that it left although rows were due.
type Tally struct {
	Scanned int64 `json:"scanned"`
	Changed int64 `json:"changed"`
	Skipped int64 `json:"skipped,omitempty"`
	Failed  int64 `json:"failed,omitempty"`
	More    bool  `json:"more,omitempty"`
}

// Plus adds the counts; More is that of the later one.
func (t Tally) Plus(later Tally) Tally {
	return Tally{
		Scanned: t.Scanned + later.Scanned, Changed: t.Changed + later.Changed, Skipped: t.Skipped + later.Skipped,
		Failed: t.Failed + later.Failed, More: later.More,
	}
}

// The limits of a scan that somebody edited. A batch of 10,000 takes a quarter of a second and holds its locks as long.
const (
	maxBatch  = 10_000
	maxBudget = 5 * time.Minute
	// maxDailyBudget is for a job that comes once a day or less: one piece of work that no next tick goes on with.
	maxDailyBudget = 6 * time.Hour
)

func (r Run) longest() time.Duration {
	if r.Every.Std() >= 24*time.Hour || r.Calendar != nil {
		return maxDailyBudget
	}
	return maxBudget
}

func (r Run) check() error {
	switch {
	case r.Job == "":
		return errors.New("job is empty")
	case r.Batch < 1 || r.MaxBatch < r.Batch || r.MaxBatch > maxBatch:
		return fmt.Errorf("batch and max_batch must be between 1 and %d, the first not above the second", maxBatch)
	case r.Budget.Std() < time.Second || r.Budget.Std() > r.longest():
		return fmt.Errorf("budget must be between 1s and %s", r.longest())
	case r.PublishedAt.IsZero() || r.DeadlineAt.IsZero():
		return errors.New("published_at or deadline_at is missing")
	}
	return nil
}

// Duration reads and writes itself as Go does ("10s"), so that a person can read a run's input.
type Duration time.Duration

// Std is the same as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// MarshalJSON writes "10s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.Std().String()) }

// UnmarshalJSON reads "10s".
func (d *Duration) UnmarshalJSON(body []byte) error {
	var s string
	if err := json.Unmarshal(body, &s); err != nil {
		return err
	}
	parsed, err := time.ParseDuration(s)
	*d = Duration(parsed)
	return err
}
