package workflows_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"

	"termkeeper/activities"
	"termkeeper/internal/reconcile"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

var record = flag.Bool("record", false, "write new histories to testdata/histories") //nolint:gochecknoglobals // a flag of the test binary

// TestReplay runs every recorded history with today's code. A change of what a workflow asks for, without a version
// marker, fails here and would block the runs under way at a release.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, job := range workflows.Catalog() {
		files, err := filepath.Glob(filepath.Join("testdata", "histories", job.ID, "*.json"))
		require.NoError(t, err)
		require.NotEmpty(t, files, job.ID)
		for _, file := range files {
			t.Run(strings.TrimPrefix(file, "testdata/histories/"), func(t *testing.T) {
				t.Parallel()
				require.NoError(t, replay(job, file))
			})
		}
	}
}

func replay(job workflows.Job, file string) error {
	replayer := worker.NewWorkflowReplayer()
	replayer.RegisterWorkflowWithOptions(job.Run, workflow.RegisterOptions{Name: job.Workflow})
	return replayer.ReplayWorkflowHistoryFromJSONFile(temporalclient.NewLogger(zap.NewNop()), file)
}

// TestReplayNoticesAChange holds the replay test to what it is for.
func TestReplayNoticesAChange(t *testing.T) {
	t.Parallel()
	changed := expiry()
	files, err := filepath.Glob(filepath.Join("testdata", "histories", changed.ID, "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	changed.Run = func(ctx workflow.Context, in workflows.Scan) (workflows.Tally, error) {
		if err := workflow.Sleep(ctx, time.Second); err != nil {
			return workflows.Tally{}, err
		}
		return workflows.ExpireSubscriptions(ctx, in)
	}
	require.ErrorContains(t, replay(changed, files[0]), "TMPRL1100", "the SDK's code for nondeterminism")
}

// TestRecordHistories runs each job on a real server as its schedule would, and in two parts, and keeps the histories. Run it
// when a workflow changes on purpose: `go test ./workflows -run TestRecordHistories -record`. Without the flag it only
// makes sure that what it would record can be replayed.
func TestRecordHistories(t *testing.T) {
	t.Parallel()
	address, namespace := storetest.Temporal(t)
	tc, err := temporalclient.Lazy(temporalclient.Options{
		Environ: []string{"TEMPORAL_ADDRESS=" + address, "TEMPORAL_NAMESPACE=" + namespace}, Identity: "recorder", Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	t.Cleanup(tc.Close)
	for _, job := range workflows.Catalog() {
		t.Run(job.ID, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			if *record {
				folder = filepath.Join("testdata", "histories", job.ID)
				require.NoError(t, os.MkdirAll(folder, 0o750))
			}
			for name, parts := range map[string]int{"one_part": 1, "two_parts": 2} {
				file := filepath.Join(folder, fmt.Sprintf("%s_%s.json", time.Now().UTC().Format("2006-01-02"), name))
				history := recorded(t, tc, job, name, parts)
				body, err := temporalproto.CustomJSONMarshalOptions{Indent: "  "}.Marshal(history)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(file, append(body, '\n'), 0o600))
				require.NoError(t, replay(job, file))
			}
		})
	}
}

// partial answers like the job's activity, that many times with more to do.
type partial struct {
	parts int
	done  int
}

func (p *partial) run(context.Context, activities.Run) (activities.Tally, error) {
	p.done++
	return activities.Tally{Scanned: 1, Changed: 1, More: p.done < p.parts}, nil
}

func recorded(t *testing.T, tc temporalclient.Client, job workflows.Job, name string, parts int) *historypb.History {
	t.Helper()
	queue := job.Queue + "-" + name
	one := worker.New(tc.Client, queue, worker.Options{})
	one.RegisterWorkflowWithOptions(job.Run, workflow.RegisterOptions{Name: job.Workflow})
	if parts == 1 { // the real activities, on an empty database
		s := store.New(storetest.New(t))
		runs := &activities.Runs{Store: s, Metrics: telemetry.NewMetrics(), Describe: temporalclient.NewSchedules(tc, workflows.JobIDs()).Describe}
		one.RegisterActivity(&activities.Subscriptions{Store: s, Runs: runs})
		one.RegisterActivity(&activities.Outbox{Store: s, Runs: runs})
		one.RegisterActivity(&activities.Idempotency{Store: s, Runs: runs})
		one.RegisterActivity(&activities.Reconciliation{Reconciler: &reconcile.Reconciler{Store: s}, Runs: runs})
		one.RegisterActivity(&activities.Orders{Settler: &settlement.Settler{Store: s, Owner: "recorder", Log: zap.NewNop()}, Runs: runs})
	}
	if name := activityName[job.ID]; parts > 1 || job.ID == workflows.JobWebhookApply {
		one.RegisterActivityWithOptions((&partial{parts: parts}).run, activityOptions(name))
	}
	require.NoError(t, one.Start())
	defer one.Stop()
	run, err := tc.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: job.ID + "-" + name, TaskQueue: queue, WorkflowExecutionTimeout: job.Timeout,
	}, job.Workflow, job.Scan())
	require.NoError(t, err)
	require.NoError(t, run.Get(t.Context(), nil))
	history := &historypb.History{}
	events := tc.GetWorkflowHistory(t.Context(), run.GetID(), run.GetRunID(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		require.NoError(t, err)
		history.Events = append(history.Events, event)
	}
	return history
}
