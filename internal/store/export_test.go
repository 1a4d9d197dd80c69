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
		{"claim mails", claimMails, "deliveries", "deliveries_due_mail", []any{now, 16, time.Minute, "owner"}},
		{"claim urgent mails", claimUrgentMails, "deliveries", "deliveries_urgent_mail", []any{now, 12, time.Minute, "owner"}},
		{"claim mails in order", claimMails, "deliveries", "deliveries_order", []any{now, 16, time.Minute, "owner"}},
		{"claim webhooks", claimWebhooks, "deliveries", "deliveries_due_webhook", []any{now, 16, time.Minute, "owner", 4, []string{noFact}}},
		{"claim webhooks in order", claimWebhooks, "deliveries", "deliveries_order", []any{now, 16, time.Minute, "owner", 4, []string{noFact}}},
		{"endpoints with due webhooks", lockDueEndpoints, "deliveries", "deliveries_due_webhook", []any{now}},
		{"end unwanted webhooks", endUnwanted, "deliveries", "deliveries_due_webhook", nil},
		{"take deliveries over", takeOverDeliveries, "deliveries", "deliveries_leases", []any{now}},
		{"next outbox work", nextOutboxWork, "outbox", "outbox_pending", nil},
		{"ends that have come near", nearEnds, "subscriptions", "subscriptions_ending", []any{now, 1000}},
		{"next looks", nearEnds, "subscriptions", "subscriptions_reminder", []any{now, 1000}},
		{"events of an object", eventsOfObject, "payment_webhook_events", "payment_webhook_events_news", []any{"sub_1", 10}},
		{"subscriptions of a customer", subscriptionsOfCustomer, "subscriptions", "subscriptions_customer", []any{"cus_1"}},
		{"trim empty runs", trimEmptyRuns, "job_runs", "job_runs_empty", []any{"job"}},
		{"trim runs", trimRuns, "job_runs", "job_runs_recent", []any{"job"}},
		{"recent runs", recentRuns, "job_runs", "job_runs_recent", []any{"job", timestamptz(now), "", 10}},
		{"drop keys", dropKeys, "idempotency_keys", "idempotency_keys_age", []any{now, KeyRetention, 1000}},
		{"empty payloads", emptyPayloads, "payment_webhook_events", "payment_webhook_events_full", []any{now, PayloadRetention, 1000}},
		{"drop events", dropEvents, "payment_webhook_events", "payment_webhook_events_emptied", []any{now, EventRetention, 1000}},
		{"past terms by user", pastHoldings, "subscription_events", "subscription_events_user", []any{[]string{"u"}, []time.Time{now}}},
		{"past terms of a subscription", pastHoldings, "subscription_events", "subscription_events_history", []any{[]string{"u"}, []time.Time{now}}},
		{"orders to ask about", claimToAsk, "payment_orders", "payment_orders_to_ask", []any{now, time.Minute, "owner", 32}},
		{"orders to close", claimToClose, "payment_orders", "payment_orders_overdue", []any{now, time.Minute, "owner", 32}},
		{"orders to finish", claimToFinish, "payment_orders", "payment_orders_unfinished", []any{now, time.Minute, "owner", 32}},
		{"payments of an order", paymentsOfOrder, "payments", "payments_order", []any{NewID()}},
		{"money that nobody decided on", unsettledMoney, "payments", "payments_unsettled", nil},
		{"money that is being given back", unsettledMoney, "payments", "payments_refunding", nil},
		{"what was given back of a payment", givenBack, "refunds", "refunds_payment", []any{"pi_1"}},
		{"rows in doubt", toAsk, "subscriptions", "subscriptions_needs_reconcile", []any{"", 50}},
		{"rows that were not listed", unseen, "subscriptions", "subscriptions_external_id_key", []any{"", 50, 30 * 24 * time.Hour}},
		{"causes of drift", driftCauses, "payment_webhook_events", "payment_webhook_events_news", []any{[]string{"sub_1", "sub_2"}}},
		{"repairs to tell of", tellRepaired, "drift_findings", "drift_findings_to_tell", nil},
		{"close overdue runs", closeOverdueRuns, "job_runs", "job_runs_open", []any{"job", "run"}},
	}
}

const (
	ChangesSince      = changesSince
	TrimAccessChanges = trimAccessChanges
)
