package telemetry

import (
	"regexp"
	"time"
)

// WatchSecrets shows the fingerprints of the configured webhook secrets from the start, with nothing used yet: a secret
// that is missing from the metrics could be idle or gone, one at zero is idle.
func (m *Metrics) WatchSecrets(fingerprints []string) {
	for _, f := range fingerprints {
		m.WebhookSecretUsed.WithLabelValues(f)
		m.WebhookSecretLastUsed.WithLabelValues(f)
	}
}

// SecretUsed counts a request that the secret with this fingerprint has signed.
func (m *Metrics) SecretUsed(fingerprint string, at time.Time) {
	m.WebhookSecretUsed.WithLabelValues(fingerprint).Inc()
	m.WebhookSecretLastUsed.WithLabelValues(fingerprint).Set(float64(at.Unix()))
}

// versionPattern is a version of Stripe's API: a date, since 2024-09-30 with the name of its release train.
// Source: https://docs.stripe.com/api/versioning.
var versionPattern = regexp.MustCompile(`^20\d{2}-\d{2}-\d{2}(\.[a-z]{1,20})?$`)

// maxVersions bounds the label: whoever can sign could otherwise make a series for every day of the century.
const maxVersions = 20

// APIVersion counts a stored event by the API version that its payload is in. What is no version counts as other, and so
// does each further one when twenty are known; a thin event has none.
func (m *Metrics) APIVersion(version string) {
	label := "none"
	if version != "" {
		label = m.knownVersion(version)
	}
	m.WebhookAPIVersion.WithLabelValues(label).Inc()
}

func (m *Metrics) knownVersion(version string) string {
	if !versionPattern.MatchString(version) {
		return "other"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.versions[version] {
		if len(m.versions) == maxVersions {
			return "other"
		}
		m.versions[version] = true
	}
	return version
}
