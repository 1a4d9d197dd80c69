package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	schedulepb "go.temporal.io/api/schedule/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/types/known/durationpb"

	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

const (
	// memoOwner and memoEnvironment tell whose a schedule is.
	memoOwner       = "owner"
	memoEnvironment = "environment"
	owner           = "termkeeper"

	// applyTries bounds the attempts to write one schedule while others write it too. The server drops a write that lost
	// without an error, so each is read back; it also refuses to be asked about one schedule by several at once.
	applyTries = 30
	// applyPause is the longest wait between two attempts: the server takes a write in the background.
	applyPause = 200 * time.Millisecond
	// namespaceWait bounds the waiting for a namespace that somebody is making.
	namespaceWait = 30 * time.Second
	// namespacePause is between two looks for it.
	namespacePause = 500 * time.Millisecond
)

// Schedules are the schedules of the table of jobs in one environment.
type Schedules struct {
	Client      temporalclient.Client
	Environment string
	Jobs        []workflows.Job
	Out         io.Writer // takes one line per change
}

// ErrForeign is a schedule of ours by its id that belongs to somebody else.
var ErrForeign = errors.New("the schedule belongs to somebody else")

// Apply creates the schedules that are missing and updates those that differ, and touches no other one. A paused one
// stays paused and keeps its note. Any number of processes may apply at the same time. A namespace that somebody is
// making is waited for, half a minute at most.
func (s *Schedules) Apply(ctx context.Context) error {
	giveUp := time.Now().Add(namespaceWait)
	for {
		err := s.applyAll(ctx)
		var missing *serviceerror.NamespaceNotFound
		switch {
		case !errors.As(err, &missing):
			return err
		case time.Now().After(giveUp):
			return fmt.Errorf("the namespace %s does not exist; make it with `temporal operator namespace create %s`, or set TEMPORAL_NAMESPACE right",
				s.Client.Namespace, s.Client.Namespace)
		}
		if err := pause(ctx, namespacePause); err != nil {
			return err
		}
	}
}

func (s *Schedules) applyAll(ctx context.Context) error {
	for _, job := range s.Jobs {
		if err := s.apply(ctx, job); err != nil {
			return fmt.Errorf("applying the schedule %s: %w", job.ID, err)
		}
	}
	return nil
}

func (s *Schedules) apply(ctx context.Context, job workflows.Job) error {
	wanted, err := s.wanted(job)
	if err != nil {
		return err
	}
	var written []string
	for try := range applyTries {
		if try > 0 {
			if err := pause(ctx, applyPause/2+rand.N(applyPause/2)); err != nil { //nolint:gosec // G404: jitter needs no secrecy.
				return err
			}
		}
		found, err := s.Client.WorkflowService().DescribeSchedule(ctx, &workflowservice.DescribeScheduleRequest{
			Namespace: s.Client.Namespace, ScheduleId: job.ID,
		})
		var notFound *serviceerror.NotFound
		var busy *serviceerror.ResourceExhausted
		switch {
		case errors.As(err, &notFound):
			if err := s.create(ctx, job, wanted); err != nil {
				return err
			}
			continue // somebody else may have been first, with other values
		case errors.As(err, &busy):
			continue
		case err != nil:
			return err
		}
		if err := s.refuseForeign(found); err != nil {
			return err
		}
		changes := diff(found.Schedule, wanted)
		if len(changes) == 0 {
			for _, change := range written {
				s.say("changed %s: %s", job.ID, change)
			}
			return nil
		}
		if err := s.update(ctx, job, found, wanted); err != nil {
			return err
		}
		written = changes
	}
	return fmt.Errorf("it was changed by others %d times in a row; apply again when they are done", applyTries)
}

func (s *Schedules) create(ctx context.Context, job workflows.Job, wanted *schedulepb.Schedule) error {
	memo, err := memoOf(map[string]string{memoOwner: owner, memoEnvironment: s.Environment, temporalclient.MemoSummary: job.Summary})
	if err != nil {
		return err
	}
	_, err = s.Client.WorkflowService().CreateSchedule(ctx, &workflowservice.CreateScheduleRequest{
		Namespace: s.Client.Namespace, ScheduleId: job.ID, Schedule: wanted, Memo: memo, RequestId: uuid.NewString(),
	})
	var exists *serviceerror.AlreadyExists
	var started *serviceerror.WorkflowExecutionAlreadyStarted
	var busy *serviceerror.ResourceExhausted
	if errors.As(err, &exists) || errors.As(err, &started) || errors.As(err, &busy) {
		return nil // another process was first; the next look decides
	}
	if err == nil {
		s.say("created %s: every %s, queue %s", job.ID, job.Every, job.Queue)
	}
	return err
}

// update replaces all but the state, which is the operator's: pause, note and the actions left. The token makes the server
// drop the write when anything was changed since the reading, for instance when somebody paused.
func (s *Schedules) update(ctx context.Context, job workflows.Job, found *workflowservice.DescribeScheduleResponse, wanted *schedulepb.Schedule) error {
	wanted.State = found.Schedule.State
	_, err := s.Client.WorkflowService().UpdateSchedule(ctx, &workflowservice.UpdateScheduleRequest{
		Namespace: s.Client.Namespace, ScheduleId: job.ID, Schedule: wanted, ConflictToken: found.ConflictToken, RequestId: uuid.NewString(),
	})
	var conflict *serviceerror.FailedPrecondition
	var busy *serviceerror.ResourceExhausted
	if errors.As(err, &conflict) || errors.As(err, &busy) {
		return nil // the next look decides
	}
	return err
}

func (s *Schedules) refuseForeign(found *workflowservice.DescribeScheduleResponse) error {
	who, where := temporalclient.MemoText(found.Memo, memoOwner), temporalclient.MemoText(found.Memo, memoEnvironment)
	switch {
	case who != owner:
		return fmt.Errorf("%w: its memo names the owner %q; rename or delete it, or use another namespace", ErrForeign, who)
	case where != s.Environment:
		return fmt.Errorf("%w: the namespace %s holds the schedules of the environment %s, this process is %s; set TEMPORAL_NAMESPACE or TERMKEEPER_ENV right",
			ErrForeign, s.Client.Namespace, where, s.Environment)
	}
	return nil
}

func (s *Schedules) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Out, format+"\n", args...) // what was done is done, told or not
}

// wanted is the schedule of a job. Its note says what the job does, until an operator writes a reason over it.
func (s *Schedules) wanted(job workflows.Job) (*schedulepb.Schedule, error) {
	data := converter.GetDefaultDataConverter()
	input, err := data.ToPayloads(job.Scan())
	if err != nil {
		return nil, fmt.Errorf("writing its input: %w", err)
	}
	summary, err := data.ToPayload(job.Summary)
	if err != nil {
		return nil, fmt.Errorf("writing its summary: %w", err)
	}
	spec := &schedulepb.ScheduleSpec{Interval: []*schedulepb.IntervalSpec{{Interval: durationpb.New(job.Every), Phase: durationpb.New(job.Offset)}}}
	if job.Calendar != nil {
		if spec, err = job.Calendar.Spec(); err != nil {
			return nil, fmt.Errorf("writing its calendar: %w", err)
		}
	}
	return &schedulepb.Schedule{
		Spec: spec,
		Action: &schedulepb.ScheduleAction{Action: &schedulepb.ScheduleAction_StartWorkflow{StartWorkflow: &workflowpb.NewWorkflowExecutionInfo{
			WorkflowId: job.ID, WorkflowType: &commonpb.WorkflowType{Name: job.Workflow},
			TaskQueue: &taskqueuepb.TaskQueue{Name: job.Queue, Kind: enumspb.TASK_QUEUE_KIND_NORMAL},
			Input:     input, WorkflowExecutionTimeout: durationpb.New(job.Timeout),
			UserMetadata: &sdkpb.UserMetadata{Summary: summary},
		}}},
		Policies: &schedulepb.SchedulePolicies{OverlapPolicy: job.Overlap, CatchupWindow: durationpb.New(job.CatchUp)},
		State:    &schedulepb.ScheduleState{Notes: job.Summary},
	}, nil
}

// diff lists what of ours differs, one line each.
func diff(found, wanted *schedulepb.Schedule) []string {
	have, want := traits(found), traits(wanted)
	var changes []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] != want[name] {
			changes = append(changes, fmt.Sprintf("%s %s -> %s", name, have[name], want[name]))
		}
	}
	return changes
}

// traits are the parts of a schedule that are ours, as text.
func traits(s *schedulepb.Schedule) map[string]string {
	spec, action, policies := s.GetSpec(), s.GetAction().GetStartWorkflow(), s.GetPolicies()
	t := map[string]string{
		"workflow": action.GetWorkflowType().GetName(), "workflow id": action.GetWorkflowId(), "queue": action.GetTaskQueue().GetName(),
		"time-out": action.GetWorkflowExecutionTimeout().AsDuration().String(), "overlap": policies.GetOverlapPolicy().String(),
		"catch-up": policies.GetCatchupWindow().AsDuration().String(), "input": "none", "summary": "none",
		"pause on failure": fmt.Sprint(policies.GetPauseOnFailure()),
		"calendars":        fmt.Sprint(len(spec.GetStructuredCalendar()) + len(spec.GetCalendar()) + len(spec.GetCronString())),
		"time zone":        spec.GetTimezoneName(),
	}
	for i, interval := range spec.GetInterval() {
		t[fmt.Sprintf("interval %d", i+1)] = interval.GetInterval().AsDuration().String() + " offset " + interval.GetPhase().AsDuration().String()
	}
	t["intervals"] = fmt.Sprint(len(spec.GetInterval()))
	for i, calendar := range spec.GetStructuredCalendar() {
		t[fmt.Sprintf("calendar %d", i+1)] = fmt.Sprintf("%s %s:%s", ranges(calendar.GetDayOfWeek()), ranges(calendar.GetHour()), ranges(calendar.GetMinute()))
	}
	if input := action.GetInput().GetPayloads(); len(input) == 1 {
		t["input"] = string(input[0].GetData())
	}
	if summary := action.GetUserMetadata().GetSummary(); summary != nil {
		t["summary"] = string(summary.GetData())
	}
	return t
}

// ranges writes the values of a field of a calendar, for instance 3 or 0-6. The server leaves out an end that says nothing.
func ranges(list []*schedulepb.Range) string {
	texts := make([]string, len(list))
	for i, r := range list {
		texts[i] = fmt.Sprint(r.GetStart())
		if r.GetEnd() > r.GetStart() {
			texts[i] += fmt.Sprintf("-%d", r.GetEnd())
		}
	}
	return strings.Join(texts, ",")
}

func memoOf(texts map[string]string) (*commonpb.Memo, error) {
	memo := &commonpb.Memo{Fields: map[string]*commonpb.Payload{}}
	for key, value := range texts {
		payload, err := converter.GetDefaultDataConverter().ToPayload(value)
		if err != nil {
			return nil, fmt.Errorf("writing its memo: %w", err)
		}
		memo.Fields[key] = payload
	}
	return memo, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
