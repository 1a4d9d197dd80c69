package temporalclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	schedulepb "go.temporal.io/api/schedule/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// callTimeout bounds a call on behalf of a waiting person or run: a server that takes longer counts as unavailable.
const callTimeout = 3 * time.Second

// MemoSummary is the key in a schedule's memo with the sentence that says what the job does.
const MemoSummary = "summary"

// Schedule is what the server knows about the schedule of a job.
type Schedule struct {
	ID     string
	Paused bool
	// Note is the reason of a pause, else what the job does.
	Note string
	// NextRunAt is zero when there is no next run, for instance while it is paused.
	NextRunAt time.Time
	// Kept are starts that wait for the end of the run under way.
	Kept            int64
	SkippedOverlaps int64
	MissedCatchups  int64
	Every           time.Duration
	Offset          time.Duration
	// Starts are the latest starts, at most ten, oldest first.
	Starts []Start
}

// Start is one start of a run by the schedule.
type Start struct {
	RunID string
	// ScheduledAt has whole seconds when the clock asked for the run (or a backfill), and a fraction when a person did.
	ScheduledAt time.Time
	StartedAt   time.Time
}

// Schedules reads and steers the schedules of the jobs. Its methods answer within three seconds; ErrUnavailable says
// that the server could not be reached, ErrNoSchedule that the schedule is not there.
type Schedules struct {
	client client.Client
	// namespace is needed because the SDK's own trigger cannot choose the instant that names the run.
	namespace string
	ids       []string

	mu        sync.Mutex
	triggered map[string]time.Time // the second that the latest trigger of a job took
}

// NewSchedules serves the schedules with these ids, which are the ids of the jobs. It makes no call.
func NewSchedules(c Client, ids []string) *Schedules {
	return &Schedules{client: c.Client, namespace: c.Namespace, ids: slices.Clone(ids), triggered: map[string]time.Time{}}
}

// List describes all schedules by id. One that was never applied is absent.
func (s *Schedules) List(ctx context.Context) (map[string]Schedule, error) {
	list := make([]Schedule, len(s.ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i, id := range s.ids {
		group.Go(func() error {
			described, err := s.Describe(ctx, id)
			if errors.Is(err, ErrNoSchedule) {
				return nil
			}
			list[i] = described
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	byID := make(map[string]Schedule, len(list))
	for _, described := range list {
		if described.ID != "" {
			byID[described.ID] = described
		}
	}
	return byID, nil
}

// Describe is the state of one schedule.
func (s *Schedules) Describe(ctx context.Context, id string) (Schedule, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Not the SDK's own call, which leaves out what is kept behind a run.
	found, err := s.client.WorkflowService().DescribeSchedule(ctx, &workflowservice.DescribeScheduleRequest{Namespace: s.namespace, ScheduleId: id})
	if err != nil {
		return Schedule{}, classified("describing", id, err)
	}
	state, info := found.GetSchedule().GetState(), found.GetInfo()
	described := Schedule{
		ID: id, Paused: state.GetPaused(), Note: state.GetNotes(), Kept: info.GetBufferSize(),
		SkippedOverlaps: info.GetOverlapSkipped(), MissedCatchups: info.GetMissedCatchupWindow(),
	}
	if next := info.GetFutureActionTimes(); len(next) > 0 && !described.Paused {
		described.NextRunAt = next[0].AsTime()
	}
	if intervals := found.GetSchedule().GetSpec().GetInterval(); len(intervals) > 0 {
		described.Every, described.Offset = intervals[0].GetInterval().AsDuration(), intervals[0].GetPhase().AsDuration()
	} else {
		described.Every = cadence(found.GetSchedule().GetSpec())
	}
	for _, action := range info.GetRecentActions() {
		described.Starts = append(described.Starts, Start{
			RunID: action.GetStartWorkflowResult().GetRunId(), ScheduledAt: action.GetScheduleTime().AsTime(), StartedAt: action.GetActualTime().AsTime(),
		})
	}
	return described, nil
}

// Trigger starts a run at once, beside one that is running.
func (s *Schedules) Trigger(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	described, err := s.Describe(ctx, id)
	if err != nil {
		return err
	}
	_, err = s.client.WorkflowService().PatchSchedule(ctx, &workflowservice.PatchScheduleRequest{
		Namespace: s.namespace, ScheduleId: id, RequestId: uuid.NewString(),
		Patch: &schedulepb.SchedulePatch{TriggerImmediately: &schedulepb.TriggerImmediatelyRequest{
			OverlapPolicy: enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL,
			ScheduledTime: timestamppb.New(s.instantOfTrigger(id, time.Now(), described.Every, described.Offset)),
		}},
	})
	return classified("triggering", id, err)
}

// instantOfTrigger chooses the instant that names a run by hand. The server names runs by their second and refuses a
// name that is still running, so each trigger takes a second of its own, and none that belongs to a tick.
func (s *Schedules) instantOfTrigger(id string, now time.Time, every, offset time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	const fraction = 500 * time.Millisecond // marks the run as one by hand, see Start.ScheduledAt
	second := now.Truncate(time.Second)
	if last := s.triggered[id]; !second.After(last) {
		second = last.Add(time.Second)
	}
	if every > time.Second && Aligned(second, every, offset) {
		second = second.Add(time.Second)
	}
	s.triggered[id] = second
	return second.Add(fraction)
}

// Aligned reports whether the instant is one of epoch + n × every + offset, to the second, as the server computes
// the instants of a schedule.
func Aligned(at time.Time, every, offset time.Duration) bool {
	if at.Nanosecond() != 0 || every < time.Second {
		return false
	}
	interval, phase := int64(every/time.Second), int64(offset/time.Second)
	return (at.Unix()-phase)%interval == 0
}

// Pause stops the ticks of a job until Unpause. The reason is kept as the schedule's note.
func (s *Schedules) Pause(ctx context.Context, id, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return classified("pausing", id, s.client.ScheduleClient().GetHandle(ctx, id).Pause(ctx, client.SchedulePauseOptions{Note: reason}))
}

// Unpause lets the job tick again and puts back the note that says what it does.
func (s *Schedules) Unpause(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	handle := s.client.ScheduleClient().GetHandle(ctx, id)
	description, err := handle.Describe(ctx)
	if err != nil {
		return classified("unpausing", id, err)
	}
	return classified("unpausing", id, handle.Unpause(ctx, client.ScheduleUnpauseOptions{Note: MemoText(description.Memo, MemoSummary)}))
}

// MemoText is a text in a memo, or "" when there is none.
func MemoText(memo *commonpb.Memo, key string) string {
	var value string
	if payload := memo.GetFields()[key]; payload != nil {
		if err := converter.GetDefaultDataConverter().FromPayload(payload, &value); err != nil {
			return ""
		}
	}
	return value
}

func classified(doing, id string, err error) error {
	var notFound *serviceerror.NotFound
	switch {
	case err == nil:
		return nil
	case errors.As(err, &notFound):
		return fmt.Errorf("%s the schedule %s: %w", doing, id, ErrNoSchedule)
	case Unavailable(err):
		return fmt.Errorf("%s the schedule %s: %w", doing, id, ErrUnavailable)
	default:
		return fmt.Errorf("%s the schedule %s: %w", doing, id, err)
	}
}
