package conformance

import (
	"fmt"
	"strings"
	"time"
)

// State is what an access check says in the end.
type State struct {
	Allowed     bool   `json:"allowed"`
	Reason      string `json:"reason"`
	Plan        string `json:"plan"`
	ExpiresAt   string `json:"expires_at"` // RFC 3339 in UTC; "" is none
	GraceUntil  string `json:"grace_period_ends_at"`
	AccessUntil string `json:"access_until"`
}

// String is the state on one line.
func (s State) String() string {
	answer := "no"
	if s.Allowed {
		answer = "yes"
	}
	parts := []string{fmt.Sprintf("%s (%s)", answer, s.Reason)}
	for _, p := range []struct{ name, value string }{
		{"plan", s.Plan}, {"expires", s.ExpiresAt}, {"grace until", s.GraceUntil}, {"access until", s.AccessUntil},
	} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	return strings.Join(parts, ", ")
}

// instant writes an instant as a state has it.
func instant(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339Nano)
}
