package e2e

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
)

// A worker is stopped in the middle of a drain, without a word, for longer than its silence is borne. Another one does the
// rest, then the first one wakes up and goes on where it was. The other one has a namespace of its own: a server goes on
// handing tasks to a worker that sleeps with its questions open, which would take the test minutes.
func TestWorkerSleepsInTheMiddleOfADrain(t *testing.T) {
	t.Parallel()
	const n = 40_000
	s := newSystem(t)
	s.environ = append(s.environ, "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=1s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=1s")
	other := &system{pool: s.pool, environ: append([]string{}, s.environ...), key: s.key}
	temporal := s.useTemporal(t)
	other.useTemporal(t)
	s.plan(t)
	s.dueAt(t, n, now())
	sleeper := s.startWorker(t)
	s.awaitExpired(t, n/20)
	sleeper.signal(t, syscall.SIGSTOP)
	asleep := s.expired(t)
	require.Less(t, asleep, n)

	rest := other.startWorker(t)
	awaitEvery(t, lookSeldom, "the other one does the rest", func() error {
		// What the sleeper holds in an open transaction is its own until it wakes up.
		if s.count(t, `SELECT count(*) FROM (SELECT FROM subscriptions WHERE status <> 'expired' LIMIT 1 FOR UPDATE SKIP LOCKED) x`) > 0 {
			return errors.New("there is more")
		}
		return nil
	})
	awaitEvery(t, lookSeldom, "the sleeper counts as gone", func() error { return givenUp(t, temporal) })
	held := n - s.expired(t)
	sleeper.signal(t, syscall.SIGCONT)
	s.awaitExpired(t, n)
	s.awaitWholeRun(t, "subscription-expiry")
	s.awaitDispatched(t)
	t.Logf("it fell asleep after %d, holding %d, of %d", asleep, held, n)
	s.requireExpired(t, n)
	rest.stops(t, syscall.SIGTERM)
	sleeper.stops(t, syscall.SIGTERM)
	log, err := os.ReadFile(sleeper.log)
	require.NoError(t, err)
	require.Less(t, bytes.Count(log, []byte(`"level":"error"`)), 10, "no storm: at most the runs that were interrupted\n%s", log)
}

// givenUp says whether the server waits no more for the attempt of the scan that was running: another one is due.
func givenUp(t *testing.T, temporal client.Client) error {
	t.Helper()
	schedule, err := temporal.ScheduleClient().GetHandle(t.Context(), "subscription-expiry").Describe(t.Context())
	if err != nil {
		return err
	}
	for _, running := range schedule.Info.RunningWorkflows {
		described, err := temporal.DescribeWorkflow(t.Context(), running.WorkflowID, running.FirstExecutionRunID)
		if err != nil {
			return err
		}
		for _, activity := range described.RawResponse.PendingActivities {
			if activity.LastFailure.GetTimeoutFailureInfo() != nil {
				return nil
			}
		}
	}
	return errors.New("it does not")
}
