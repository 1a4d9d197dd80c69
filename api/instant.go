package api

import (
	"strings"
	"time"
)

// stamp is an instant in an answer: see appendInstant.
type stamp time.Time

// MarshalJSON writes null for no instant and for the end of a lifetime.
func (s stamp) MarshalJSON() ([]byte, error) { return appendInstant(nil, time.Time(s)), nil }

// stampOf is the instant, or null.
func stampOf(t *time.Time) stamp {
	if t == nil {
		return stamp{}
	}
	return stamp(*t)
}

// shortDuration is Go's syntax without the zeros at its end: 720h and not 720h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// optional is null where there is nothing to say.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
