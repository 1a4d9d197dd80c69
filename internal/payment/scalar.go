package payment

import (
	"encoding/json"
	"math"
	"net/mail"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The scalars of a payload, decoded so that a wrong type is unknown and never an error: one odd field must not cost us
// the rest of the event.
type (
	text    string
	flag    bool
	instant struct{ time.Time }
)

const (
	maxText = 255
	// maxSecond is 9999-12-31T23:59:59Z; no later instant can be written in RFC 3339.
	maxSecond = 253402300799
)

// UnmarshalJSON keeps a string that a text column can hold and leaves anything else empty.
func (t *text) UnmarshalJSON(raw []byte) error {
	*t = ""
	var s string
	if raw[0] == '"' && json.Unmarshal(raw, &s) == nil {
		*t = text(storable(s))
	}
	return nil
}

// UnmarshalJSON takes true for true and anything else for false.
func (f *flag) UnmarshalJSON(raw []byte) error {
	*f = string(raw) == "true"
	return nil
}

// UnmarshalJSON reads seconds since 1970, or the RFC 3339 text of thin events.
func (i *instant) UnmarshalJSON(raw []byte) error {
	i.Time = time.Time{}
	if raw[0] != '"' {
		i.Time = second(string(raw))
		return nil
	}
	var at time.Time // reads RFC 3339 only
	if json.Unmarshal(raw, &at) == nil && at.Unix() > 0 {
		i.Time = at.UTC().Truncate(time.Second)
	}
	return nil
}

// storable returns s, or "" when PostgreSQL could not store or index it, when it is blank, or when it is more than one line or
// shows other than it reads: nobody could ask for a user with such an id, and no mail goes to such a name.
func storable(s string) string {
	if len(s) > maxText || strings.ContainsFunc(s, notOneLine) || strings.TrimSpace(s) == "" {
		return ""
	}
	return s
}

// notOneLine are the characters that the API and the mails refuse: control characters, the separators of lines and
// paragraphs, and the overrides of writing direction.
func notOneLine(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

// address returns s, or "" when no mail could be sent to it: the API refuses such an address as well.
func address(s string) string {
	if parsed, err := mail.ParseAddress(s); err != nil || parsed.Address != s {
		return ""
	}
	return s
}

// second turns a JSON number into an instant. 0 and whatever is no whole second between 1970 and 9999 is unknown: the
// zero time, never 1970.
func second(number string) time.Time {
	n, ok := whole(number)
	if !ok || n <= 0 || n > maxSecond {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// whole reads a JSON number that is an integer, also when it is written as 1.7e9.
func whole(number string) (int64, bool) {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > maxSecond {
		return 0, false
	}
	return int64(f), true
}
