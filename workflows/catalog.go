package workflows

import (
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"termkeeper/activities"
	"termkeeper/internal/temporalclient"
)

// Job is one row of the table of jobs. The schedule, the registration, the list in the API, the labels of metrics and the
// threshold for silence all follow from it.
type Job struct {
	ID       string // of the job and of its schedule
	Workflow string // workflow type
	Run      any    // workflow function
	Queue    string
	Every    time.Duration
	Calendar *temporalclient.Calendar // a time of day instead of an interval; Every follows from it
	Offset   time.Duration            // so that jobs of the same cadence do not start in the same second
	Overlap  enumspb.ScheduleOverlapPolicy
	CatchUp  time.Duration // a start that is later than this is left out: the next one does its work
	Budget   time.Duration // of one run; at most five minutes, where it comes more than once a day
	Timeout  time.Duration // of a workflow execution: ends a run that hangs, so that the next ones start
	Silence  time.Duration // a job that was silent for longer is late
	Lingers  bool          // waits for the next due row until shortly before its next tick
	Batch    int
	MaxBatch int
	Summary  string
}

// The ids of the jobs.
const (
	JobSubscriptionExpiry = "subscription-expiry"
	JobWebhookApply       = "webhook-apply"
	JobOutboxDelivery     = "outbox-delivery"
	JobIdempotencyCleanup = "idempotency-cleanup"
	JobReminders          = "subscription-reminders"
	JobOrderReconcile     = "order-reconcile"
	JobOrderExpiry        = "order-expiry"
	JobReconcile          = "subscription-reconcile"
)

// Catalog is the table of jobs.
func Catalog() []Job {
	jobs := []Job{
		// The offsets spread the three ticks over the ten seconds; delivery comes after expiry, whose facts it tells.
		{
			ID: JobSubscriptionExpiry, Workflow: "ExpireSubscriptions", Run: ExpireSubscriptions, Queue: QueueSubscriptions,
			Every: 10 * time.Second, Offset: 0, Budget: 2 * time.Minute, Lingers: true, Batch: 1000, MaxBatch: 5000,
			Summary: "Marks subscriptions whose access has ended, with an entry of their history and the fact access.ended.",
		},
		{
			ID: JobWebhookApply, Workflow: "ApplyWebhookEvents", Run: ApplyWebhookEvents, Queue: QueuePayments,
			Every: 10 * time.Second, Offset: 3 * time.Second, Budget: time.Minute, Batch: 256, MaxBatch: 256,
			Summary: "Applies payment events that could not be applied when they came.",
		},
		{
			ID: JobOutboxDelivery, Workflow: "DeliverOutbox", Run: DeliverOutbox, Queue: QueueNotifications,
			Every: 10 * time.Second, Offset: 6 * time.Second, Budget: 2 * time.Minute, Lingers: true, Batch: 1000, MaxBatch: 5000,
			Summary: "Turns facts into deliveries, sends mails and calls endpoints, in order per subscription.",
		},
		{
			ID: JobIdempotencyCleanup, Workflow: "CleanUpIdempotencyKeys", Run: CleanUpIdempotencyKeys, Queue: QueueOperations,
			Every: time.Minute, Offset: 41 * time.Second, Budget: time.Minute, Batch: 1000, MaxBatch: 5000,
			Summary: "Removes idempotency keys after a day, bodies of events after 30 days and events after a year.",
		},
		{
			ID: JobReminders, Workflow: "RemindSubscriptions", Run: RemindSubscriptions, Queue: QueueSubscriptions,
			Every: 5 * time.Minute, Offset: 137 * time.Second, Budget: 2 * time.Minute, Batch: 1000, MaxBatch: 5000,
			Summary: "Tells seven, three and one day before an end that nothing will renew, by the user's calendar, once per end.",
		},
		{
			ID: JobReconcile, Workflow: "ReconcileSubscriptions", Run: ReconcileSubscriptions, Queue: QueuePayments,
			Every: 15 * time.Minute, Offset: 227 * time.Second, Budget: 5 * time.Minute, Batch: 100, MaxBatch: 100,
			Summary: "Compares with the payment provider, repairs what differs and takes the events that it could not deliver.",
		},
		{
			ID: JobOrderReconcile, Workflow: "ReconcileOrders", Run: ReconcileOrders, Queue: QueuePayments,
			Every: time.Minute, Offset: 11 * time.Second, Budget: time.Minute, Batch: 32, MaxBatch: 32,
			Summary: "Asks the payment provider about pending orders, so that a lost webhook costs one period.",
		},
		{
			ID: JobOrderExpiry, Workflow: "ExpireOrders", Run: ExpireOrders, Queue: QueuePayments,
			Every: 30 * time.Second, Offset: 17 * time.Second, Budget: time.Minute, Batch: 32, MaxBatch: 32,
			Summary: "Closes overdue orders at the payment provider and ends them here, and completes what was left half fulfilled or refunded.",
		},
	}
	for i := range jobs {
		jobs[i] = jobs[i].complete()
	}
	return jobs
}

// JobIDs lists the ids in the order of the table.
func JobIDs() []string {
	var ids []string
	for _, job := range Catalog() {
		ids = append(ids, job.ID)
	}
	return ids
}

// CatalogEvery is the table with other cadences, by job id. The server counts in whole seconds.
func CatalogEvery(every map[string]time.Duration) ([]Job, error) {
	jobs := Catalog()
	var wrong []string
	for i, job := range jobs {
		cadence, overridden := every[job.ID]
		if !overridden {
			continue
		}
		if cadence < time.Second || cadence%time.Second != 0 {
			wrong = append(wrong, fmt.Sprintf("the cadence of %s must be whole seconds, at least 1s, not %s", job.ID, cadence))
			continue
		}
		job.Every, job.Offset, job.Calendar = cadence, job.Offset%cadence, nil
		jobs[i] = job.complete()
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return jobs, nil
}

// InZone gives the jobs of a time of day the time zone that their calendars are in.
func InZone(jobs []Job, zone string) []Job {
	for i, job := range jobs {
		if job.Calendar != nil {
			local := *job.Calendar
			local.Zone = zone
			jobs[i].Calendar = &local
		}
	}
	return jobs
}

// silenceGrace is what a run may take on top of two cadences before its job counts as late.
const silenceGrace = 30 * time.Second

// minCatchUp is the shortest window that the server knows.
const minCatchUp = 10 * time.Second

// complete fills in what follows from the rest of a row.
func (j Job) complete() Job {
	j.Overlap = enumspb.SCHEDULE_OVERLAP_POLICY_SKIP
	if j.Lingers { // it runs most of the time: a trigger by hand is started after it instead of being left out
		j.Overlap = enumspb.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE
	}
	if j.Calendar != nil {
		j.Every = j.Calendar.Every()
	}
	j.CatchUp = max(j.Every, minCatchUp)
	j.Timeout = deadlineBudgets * j.Budget
	j.Silence = 2*j.Every + silenceGrace
	return j
}

// Scan is the input of the job's workflow.
func (j Job) Scan() Scan {
	return Scan{
		Job: j.ID, Every: activities.Duration(j.Every), Offset: activities.Duration(j.Offset), Calendar: j.Calendar, CatchUp: activities.Duration(j.CatchUp),
		Budget: activities.Duration(j.Budget), Lingers: j.Lingers, Batch: j.Batch, MaxBatch: j.MaxBatch,
	}
}
