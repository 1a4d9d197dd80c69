package store

import (
	"time"
)

// Scan is a statement that a test explains, with the index that it must use.
type Scan struct {
	Name, Query, Table, Index string
	Args                      []any
}

// Scans lists the scans of the jobs.
func Scans() []Scan {
	now := time.Now()
	at, id := ExpiryCursor{}.args()
	later, laterID := ExpiryCursor{AccessUntil: now.Add(-time.Hour), ID: NewID()}.args()
	return []Scan{
		{"expire from the beginning", expireDue, "subscriptions", "subscriptions_due", []any{now, at, id, 1000}},
		{"expire after a cursor", expireDue, "subscriptions", "subscriptions_due", []any{now, later, laterID, 1000}},
		{"expire without those set aside", expireDueNotSetAside, "subscriptions", "subscriptions_due", []any{now, at, id, 1000}},
		{"next end", nextEnd, "subscriptions", "subscriptions_due", nil},
		{"next end after", nextEndAfter, "subscriptions", "subscriptions_due", []any{timestamptz(now)}},
		{"first due", firstDue, "subscriptions", "subscriptions_due", []any{now, at, id}},
		{"dispatch facts", dispatchFacts, "outbox", "outbox_pending", []any{now, true, noFact, 1000}},
		{"claim deliveries", claimDeliveries, "deliveries", "deliveries_due", []any{now, ChannelEmail, 16, time.Minute, "owner"}},
		{"claim urgent deliveries", claimUrgentDeliveries, "deliveries", "deliveries_due_urgent", []any{now, ChannelEmail, 12, time.Minute, "owner"}},
		{"claim deliveries in order", claimDeliveries, "deliveries", "deliveries_order", []any{now, ChannelEmail, 16, time.Minute, "owner"}},
		{"take deliveries over", takeOverDeliveries, "deliveries", "deliveries_leases", []any{now}},
		{"next outbox work", nextOutboxWork, "outbox", "outbox_pending", nil},
		{"trim empty runs", trimEmptyRuns, "job_runs", "job_runs_empty", []any{"job"}},
		{"trim runs", trimRuns, "job_runs", "job_runs_recent", []any{"job"}},
		{"recent runs", recentRuns, "job_runs", "job_runs_recent", []any{"job", timestamptz(now), "", 10}},
		{"close overdue runs", closeOverdueRuns, "job_runs", "job_runs_open", []any{"job", "run"}},
	}
}
