package worker

import "time"

const (
	// activitiesAtOnce bounds what one process runs of one queue. A job has one activity at a time but for runs by hand;
	// the rest is for backfills. It keeps the use of the pool of connections in bounds.
	activitiesAtOnce = 8
	// workflowTasksAtOnce are short: a few milliseconds each.
	workflowTasksAtOnce = 16
	// pollers of each kind. A server keeps a queue in four partitions where nobody has set less, and the SDK takes pollers
	// away for the sticky queue; with the SDK's own two a task was seen to lie for half a minute in a partition that
	// nobody asked.
	pollers = 6
	// stopTimeout is how long running activities may finish after the polling stopped: they leave at the next batch
	// boundary, or finish the messages under way.
	stopTimeout = 20 * time.Second

	// firstPause and longestPause are between two attempts to reach Temporal at the start.
	firstPause   = 250 * time.Millisecond
	longestPause = 10 * time.Second
	// healthTimeout bounds the question whether the server answers.
	healthTimeout = 2 * time.Second
)
