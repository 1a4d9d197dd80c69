package api

import (
	"net/mail"
	"net/url"
	"regexp"
	"strings"
	"time"
	_ "time/tzdata" // the names of time zones are known on a machine without them too
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/subscription"
)

const (
	maxID   = 255 // characters of an id from outside
	maxText = 200 // characters of a name
)

// fieldErrors gathers what is wrong with a request, so that all of it is told at once.
type fieldErrors []FieldError

func (e *fieldErrors) add(pointer, detail string) { *e = append(*e, FieldError{pointer, detail}) }

// notOneLine are characters that end a line, or let text show other than it reads: control characters, the separators of
// lines and paragraphs, and the overrides of writing direction. Mail refuses them in its headers, so they are refused here,
// where somebody can still put it right.
func notOneLine(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

// line demands one line of at most most characters; required also that it says something.
func (e *fieldErrors) line(pointer, value string, most int, required bool) {
	switch {
	case required && strings.TrimSpace(value) == "":
		e.add(pointer, "is required")
	case !utf8.ValidString(value):
		e.add(pointer, "must be UTF-8")
	case strings.ContainsFunc(value, notOneLine):
		e.add(pointer, "must not contain line breaks, other control characters or marks that change the direction of writing")
	case utf8.RuneCountInString(value) > most:
		e.add(pointer, "is too long")
	}
}

func (e *fieldErrors) oneOf(pointer, value string, allowed ...string) {
	for _, a := range allowed {
		if a == value {
			return
		}
	}
	e.add(pointer, "must be one of "+strings.Join(allowed, ", "))
}

func (e fieldErrors) err() error {
	if len(e) == 0 {
		return nil
	}
	return invalid(e...)
}

// email accepts a bare address. The display form "Name <a@b>" is refused: it would be read as two things.
func (e *fieldErrors) email(pointer, value string) {
	address, err := mail.ParseAddress(value)
	if err != nil || address.Address != value || len(value) > 254 || strings.ContainsFunc(value, notOneLine) {
		e.add(pointer, "must be an e-mail address like ada@example.org")
	}
}

// localePattern is the shape of a language tag of BCP 47; unknown languages fall back to English when mail is written.
var localePattern = regexp.MustCompile(`^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,4}$`)

func (e *fieldErrors) locale(pointer, value string) {
	if !localePattern.MatchString(value) {
		e.add(pointer, "must be a language tag like en or zh-CN")
	}
}

func (e *fieldErrors) timeZone(pointer, value string) {
	if _, err := time.LoadLocation(value); err != nil || value == "" || value == "Local" {
		e.add(pointer, "must be a time zone of the IANA database like Europe/Berlin")
	}
}

// pathText is a parameter of the path. Where the path is not in the canonical form, for instance with a %2F in it, the
// router matches it as it was sent and hands out the parts as they are.
func pathText(c echo.Context, name string) string {
	value := c.Param(name)
	if c.Request().URL.RawPath == "" {
		return value
	}
	decoded, err := url.PathUnescape(value)
	if err != nil { // net/http has refused such a path before
		return value
	}
	return decoded
}

// parseInstant reads RFC 3339 and truncates to the microseconds that the database keeps. detail says what is wrong.
func parseInstant(value string) (at time.Time, detail string) {
	at, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return time.Time{}, "must be an instant like 2026-12-30T00:00:00Z (RFC 3339; a + is written %2B in a query)"
	}
	at = at.UTC().Truncate(time.Microsecond)
	if subscription.IsForever(at) || at.Year() < 1 || at.IsZero() {
		return time.Time{}, "must lie in the years 1 to 9999"
	}
	return at, ""
}
