package worker

import "time"

const (
	// activitiesAtOnce bounds what one process runs of one queue. A job has one activity at a time but for runs by hand;
	// the rest is for backfills. It keeps the use of the pool of connections in bounds.
	activitiesAtOnce = 8
	// workflowTasksAtOnce are short: a few milliseconds each.
	workflowTasksAtOnce = 16
	// pollers of each kind. The SDK alternates one between the sticky and the ordinary queue, so one is too few.
	pollers = 2
	// stopTimeout is how long running activities may finish after the polling stopped: they leave at the next batch
	// boundary, or finish the messages under way.
	stopTimeout = 20 * time.Second

	// firstPause and longestPause are between two attempts to reach Temporal at the start.
	firstPause   = 250 * time.Millisecond
	longestPause = 10 * time.Second
	// healthTimeout bounds the question whether the server answers.
	healthTimeout = 2 * time.Second
)
