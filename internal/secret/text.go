// Package secret holds values that must not be seen: they print, log and encode as a placeholder.
package secret

import "fmt"

// Redacted is what stands in the place of every secret.
const Redacted = "[redacted]"

// Text is a secret string. Only Reveal gives it out, so that a search for Reveal finds every place that uses one.
type Text struct {
	value string
}

// NewText hides value.
func NewText(value string) Text { return Text{value: value} }

// Reveal is the value itself, for the one call that needs it.
func (t Text) Reveal() string { return t.value }

// Empty reports whether there is no value.
func (t Text) Empty() bool { return t.value == "" }

// Format prints the placeholder for every verb of package fmt, %#v and %q too.
func (t Text) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Redacted)) } // fmt keeps no error of a formatter

// String is the placeholder.
func (t Text) String() string { return Redacted }

// MarshalText makes JSON and zap.Any show the placeholder.
func (t Text) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// UnmarshalText takes a value from the environment.
func (t *Text) UnmarshalText(value []byte) error {
	t.value = string(value)
	return nil
}
