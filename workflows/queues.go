package workflows

// The task queues. A queue names a kind of work, so that slow work of one kind never stands in front of another.
const (
	// QueueSubscriptions is for statements on subscriptions: short, many rows, only the database.
	QueueSubscriptions = "subscriptions"
	// QueuePayments is for what payment providers said or are asked.
	QueuePayments = "payments"
	// QueueNotifications is for mail and outgoing webhooks: slow receivers.
	QueueNotifications = "notifications"
	// QueueOperations is for the housekeeping of the installation itself.
	QueueOperations = "operations"
)

// Queues lists the queues that have a job.
func Queues() []string {
	return []string{QueueSubscriptions, QueuePayments, QueueNotifications, QueueOperations}
}
