package telemetry

// CountDrift registers the counter of differences from the payment provider and returns what adds one to it. It is for the
// one reconciler of a process.
func (m *Metrics) CountDrift() func(kind, action string) {
	drift := m.counters("reconcile_drift_total", "Differences from the payment provider by kind and what was done about them.", "kind", "action")
	return func(kind, action string) { drift.WithLabelValues(kind, action).Inc() }
}
