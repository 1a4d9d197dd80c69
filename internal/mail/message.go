package mail

import (
	"errors"
	"fmt"
	"net/mail"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	gomail "github.com/wneessen/go-mail"
)

var (
	messageIDForm  = regexp.MustCompile(`^[!-;=?A-~]+@[!-;=?A-~]+$`) // printable ASCII without < > and @ but the one
	headerNameForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*$`)
	// The headers that this package or go-mail writes.
	ownHeader = regexp.MustCompile(`(?i)^(from|sender|to|cc|bcc|reply-to|subject|date|message-id|mime-version|return-path|received|auto-submitted|content-.*)$`)
)

const (
	maxAddress = 254 // RFC 5321, 4.5.3.1.3: a path has 256 with its brackets
	maxHeader  = 900 // RFC 5322, 2.1.1 allows 998 to a line
)

// compose checks a message and builds it. Every error is ErrPermanent: no later attempt can change it.
func compose(m Message) (*gomail.Msg, error) {
	err := errors.Join(
		checkAddress("from", m.From), checkAddress("to", m.To), checkLine("subject", m.Subject), checkHeaders(m.Headers),
	)
	if err != nil {
		return nil, err
	}
	if !messageIDForm.MatchString(m.MessageID) || len(m.MessageID) > maxHeader {
		return nil, fmt.Errorf("%w: the Message-ID is not of the form left@right", ErrPermanent)
	}
	if strings.TrimSpace(m.Text) == "" || !utf8.ValidString(m.Text) || !utf8.ValidString(m.HTML) {
		return nil, fmt.Errorf("%w: the text is empty or not UTF-8", ErrPermanent)
	}

	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	msg.FromMailAddress(&m.From)
	msg.ToMailAddress(&m.To)
	msg.Subject(m.Subject)
	msg.SetMessageIDWithValue(m.MessageID)
	// RFC 3834: no vacation notice is to be sent back to a machine.
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	for name, value := range m.Headers {
		msg.SetGenHeader(gomail.Header(name), value)
	}
	msg.SetBodyString(gomail.TypeTextPlain, m.Text)
	if m.HTML != "" {
		msg.AddAlternativeString(gomail.TypeTextHTML, m.HTML)
	}
	return msg, nil
}

// checkAddress refuses what could break out of a header or a command, and what is no address.
func checkAddress(field string, address mail.Address) error {
	if err := checkLine(field+" name", address.Name); err != nil {
		return err
	}
	if err := checkLine(field+" address", address.Address); err != nil {
		return err
	}
	parsed, err := mail.ParseAddress(address.Address)
	if err != nil || parsed.Address != address.Address || len(address.Address) > maxAddress || strings.ContainsAny(address.Address, " <>\"") {
		return fmt.Errorf("%w: the %s address is not a mail address", ErrPermanent, field)
	}
	return nil
}

// checkLine refuses text that is more than one line, or that shows other than it reads: control characters, line
// separators and the overrides of writing direction.
func checkLine(field, s string) error {
	bad := func(r rune) bool {
		return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
	}
	if strings.IndexFunc(s, bad) >= 0 || !utf8.ValidString(s) {
		return fmt.Errorf("%w: the %s has a line break or a control character", ErrPermanent, field)
	}
	if len(s) > maxHeader {
		return fmt.Errorf("%w: the %s is longer than %d bytes", ErrPermanent, field, maxHeader)
	}
	return nil
}

func checkHeaders(headers map[string]string) error {
	for name, value := range headers {
		if !headerNameForm.MatchString(name) || ownHeader.MatchString(name) {
			return fmt.Errorf("%w: a header of this name cannot be added", ErrPermanent)
		}
		if err := checkLine("header "+name, value); err != nil {
			return err
		}
	}
	return nil
}
