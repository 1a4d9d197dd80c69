package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"termkeeper/internal/subscription"
)

// Metrics are all counters of the program, on a registry of their own. No label holds an id: each has a small, known
// set of values.
type Metrics struct {
	registry *prometheus.Registry

	mu       sync.Mutex
	versions map[string]bool // of the provider's API that have a series

	access map[subscription.Reason]prometheus.Counter // of AccessChecks; looking one up by its labels takes longer than to decide

	AccessChecks        *prometheus.CounterVec // result (allowed, denied, error), reason
	AccessCheckDuration prometheus.Histogram   // seconds, of one check or one batch

	WebhookReceived   *prometheus.CounterVec // provider, type (see EventType), outcome (see the Webhook constants)
	WebhookSecretUsed *prometheus.CounterVec // secret: the first 8 hex digits of its SHA-256
	// WebhookSecretLastUsed is by secret too: Unix time in seconds, 0 when this process has not seen it used.
	WebhookSecretLastUsed *prometheus.GaugeVec
	WebhookAPIVersion     *prometheus.CounterVec // version (see APIVersion)
	WebhookApplied        *prometheus.CounterVec // type, outcome (processed, quarantined, retried, failed, lost)

	JobRuns          *prometheus.CounterVec   // job, outcome (ok, empty, failed, timed_out)
	JobRows          *prometheus.CounterVec   // job, action (scanned, changed, skipped, failed)
	JobLastSuccess   *prometheus.GaugeVec     // job; Unix time in seconds
	JobScheduleDelay *prometheus.HistogramVec // job; seconds from the scheduled instant to the workflow's start
	JobQueueDelay    *prometheus.HistogramVec // job; seconds from the workflow's start to the first activity's
	ExpiryLag        prometheus.Histogram     // seconds from the end of an access to its mark
}

// Outcomes of a webhook request.
const (
	WebhookStored    = "stored"
	WebhookDuplicate = "duplicate"
	WebhookRefused   = "refused"     // signature, tolerance, no JSON, no id
	WebhookTooLarge  = "too_large"   // more than 1 MiB
	WebhookNotStored = "unavailable" // it could not be committed; the provider sends it again
)

// allowingReasons: the first five of subscription.Reasons allow.
const allowingReasons = 5

// delays are in seconds: a schedule starts 40 to 180 ms after its instant, a job that is off is late by hours.
var delays = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

// NewMetrics makes the metrics, with those of the Go runtime and of the process.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), versions: map[string]bool{}, access: map[subscription.Reason]prometheus.Counter{}}
	m.AccessChecks = m.counters("access_checks_total", "Access checks by answer.", "result", "reason")
	m.AccessCheckDuration = m.histogram("access_check_duration_seconds", "How long an access check took.",
		[]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1})
	m.WebhookReceived = m.counters("webhook_received_total", "Webhook requests by what became of them.", "provider", "type", "outcome")
	m.WebhookSecretUsed = m.counters("webhook_secret_used_total", "Verified webhook requests by the fingerprint of the secret.", "secret")
	m.WebhookSecretLastUsed = m.gauges("webhook_secret_last_used_timestamp_seconds", "When a secret last verified a request; 0 when it never did.", "secret")
	m.WebhookAPIVersion = m.counters("webhook_api_version_total", "Stored webhook events by the API version of their payload.", "version")
	m.WebhookApplied = m.counters("webhook_applied_total", "Attempts to apply a stored event by what became of them.", "type", "outcome")
	m.JobRuns = m.counters("job_runs_total", "Finished runs of a job.", "job", "outcome")
	m.JobRows = m.counters("job_rows_total", "Rows that runs of a job looked at or changed.", "job", "action")
	m.JobLastSuccess = m.gauges("job_last_success_timestamp_seconds", "When a run of the job last ended well.", "job")
	m.JobScheduleDelay = m.histograms("job_schedule_delay_seconds", "From the scheduled instant to the start of the workflow.", delays, "job")
	m.JobQueueDelay = m.histograms("job_queue_delay_seconds", "From the start of the workflow to its first activity.", delays, "job")
	m.ExpiryLag = m.histogram("expiry_lag_seconds", "From the end of an access to the mark on its row.",
		append([]float64{0.001, 0.0025, 0.005}, delays...))
	for i, reason := range subscription.Reasons { // at zero from the start, so that a rate has a first value
		m.access[reason] = m.AccessChecks.WithLabelValues(accessResult(i < allowingReasons), string(reason))
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Registry is where others add what they measure themselves, for instance the Temporal SDK.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Access counts one answer of an access check. A reason tells whether it allows.
func (m *Metrics) Access(reason subscription.Reason) { m.access[reason].Inc() }

// AccessFailed counts an access check, or a batch of them, that had no answer.
func (m *Metrics) AccessFailed() { m.AccessChecks.WithLabelValues("error", "unavailable").Inc() }

func accessResult(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// EventType bounds the label type: an event that is not known here counts as other, because anybody at the provider
// can invent a type and each would be a series for ever.
func EventType(t string) string {
	switch t {
	case "customer.subscription.created", "customer.subscription.updated", "customer.subscription.deleted",
		"customer.subscription.paused", "customer.subscription.resumed", "customer.subscription.trial_will_end",
		"checkout.session.completed", "checkout.session.expired",
		"checkout.session.async_payment_succeeded", "checkout.session.async_payment_failed",
		"invoice.paid", "invoice.payment_failed", "invoice.payment_succeeded", "invoice_payment.paid",
		"charge.refunded", "refund.created", "refund.updated", "refund.failed",
		"charge.refund.updated", "payment_intent.succeeded", "charge.dispute.created", "charge.dispute.updated", "charge.dispute.closed",
		"charge.dispute.funds_withdrawn", "charge.dispute.funds_reinstated", "customer.created", "customer.updated", "customer.deleted":
		return t
	case "":
		return "unknown"
	}
	return "other"
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(h)
	return h
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return h
}

const namespace = "termkeeper"
