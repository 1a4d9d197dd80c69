package workflows_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"termkeeper/internal/store"
	"termkeeper/workflows"
)

// TestCatalog names what is missing for a job: a limit, a recorded history, its row in the documentation.
func TestCatalog(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../docs/jobs.md")
	require.NoError(t, err)
	ids, types, ticks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, job := range workflows.Catalog() {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, job.ID)
		require.False(t, ids[job.ID], "%s is there twice", job.ID)
		require.False(t, types[job.Workflow], "%s is there twice", job.Workflow)
		ids[job.ID], types[job.Workflow] = true, true
		require.NotNil(t, job.Run, job.ID)
		require.Contains(t, workflows.Queues(), job.Queue, job.ID)
		require.NotEmpty(t, job.Summary, job.ID)
		require.True(t, strings.HasSuffix(job.Summary, "."), job.ID)

		tick := job.Every.String() + job.Offset.String()
		if job.Calendar != nil {
			tick = fmt.Sprint(*job.Calendar)
		}
		require.False(t, ticks[tick], "%s starts in the same second as another job of its cadence", job.ID)
		ticks[tick] = true
		require.Less(t, job.Offset, job.Every, job.ID)
		require.GreaterOrEqual(t, job.CatchUp, 10*time.Second, "%s: the server knows no shorter window", job.ID)
		require.Positive(t, job.Budget, job.ID)
		if job.Every < 24*time.Hour { // what comes once a day does one piece of work, which no next tick goes on with
			require.LessOrEqual(t, job.Budget, 5*time.Minute, job.ID)
		}
		require.GreaterOrEqual(t, job.Timeout, 2*job.Budget, "%s: a run must be able to finish what its budget let it begin", job.ID)
		require.Greater(t, job.Silence, 2*job.Every, job.ID)
		wanted := enumspb.SCHEDULE_OVERLAP_POLICY_SKIP
		if job.Lingers {
			wanted = enumspb.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE
		}
		require.Equal(t, wanted, job.Overlap, job.ID)

		histories, err := filepath.Glob(filepath.Join("testdata", "histories", job.ID, "*.json"))
		require.NoError(t, err)
		require.NotEmpty(t, histories, "%s has no recorded history; see replay_test.go", job.ID)
		row := fmt.Sprintf("| `%s` | `%s` | `%s` | %s | %s |", job.ID, job.Workflow, job.Queue, job.Every, job.Budget)
		require.Contains(t, string(docs), row, "docs/jobs.md")
		require.Contains(t, string(docs), "## "+job.ID, "docs/jobs.md has no section")
	}
	require.Equal(t, store.JobExpiry, workflows.JobSubscriptionExpiry)
	require.Equal(t, store.JobReminders, workflows.JobReminders)
}

func TestInputOfARunCanBeReadByAPerson(t *testing.T) {
	t.Parallel()
	input, err := json.Marshal(workflows.Catalog()[0].Scan())
	require.NoError(t, err)
	require.JSONEq(t, `{"job":"subscription-expiry","every":"10s","offset":"0s","catch_up":"10s","budget":"2m0s","lingers":true,"batch":1000,"max_batch":5000}`, string(input))
	var again workflows.Scan
	require.NoError(t, json.Unmarshal(input, &again))
	require.Equal(t, workflows.Catalog()[0].Scan(), again)
}

func TestCadencesCanBeOverridden(t *testing.T) {
	t.Parallel()
	jobs, err := workflows.CatalogEvery(map[string]time.Duration{workflows.JobSubscriptionExpiry: 2 * time.Second, workflows.JobOutboxDelivery: 5 * time.Second})
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, jobs[0].Every)
	require.Equal(t, 34*time.Second, jobs[0].Silence)
	require.Equal(t, time.Second, jobs[2].Offset, "an offset stays below its cadence")
	require.Equal(t, 10*time.Second, jobs[1].Every)
	_, err = workflows.CatalogEvery(map[string]time.Duration{workflows.JobSubscriptionExpiry: 1500 * time.Millisecond, workflows.JobWebhookApply: 0})
	require.ErrorContains(t, err, "subscription-expiry")
	require.ErrorContains(t, err, "webhook-apply")
}
