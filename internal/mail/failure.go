package mail

import (
	"context"
	"errors"
	"fmt"
	"net/textproto"
	"regexp"
	"strings"
	"unicode"

	gomail "github.com/wneessen/go-mail"
)

// What a failed Send means for the delivery.
var (
	// ErrPermanent: this message will never be taken. The server said 5xx to the recipient or the content, or the message
	// itself is wrong. Do not try again.
	ErrPermanent = errors.New("mail refused for good")
	// ErrTemporary: the server said 4xx, or the connection broke before the message was complete. Nothing was delivered.
	// Try again later; it counts as an attempt, so that a message that breaks every connection ends one day.
	ErrTemporary = errors.New("mail refused for now")
	// ErrUnavailable: the server cannot be used by any message: no connection, no greeting, no TLS, a failed login, a
	// refused sender, or it is closing (421). Nothing was delivered. Pause the channel; it is no attempt of the message.
	ErrUnavailable = errors.New("mail server unavailable")
	// ErrAmbiguous: the connection broke after the message was complete and before the server answered. It may have been
	// delivered. Try once more under the same Message-ID.
	ErrAmbiguous = errors.New("mail may have been delivered")
)

// dialError explains why no session came about. The server's words are left out: to a login they may repeat the password.
func dialError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrTemporary, ctx.Err())
	}
	var reply *textproto.Error
	switch {
	case errors.As(err, &reply):
		return fmt.Errorf("%w: greeting or login was answered with %d", ErrUnavailable, reply.Code)
	case strings.HasPrefix(err.Error(), "SMTP AUTH failed"):
		return fmt.Errorf("%w: the login failed", ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// sendError tells from the step at which a session failed, and from the server's code, what became of the message.
func sendError(ctx context.Context, err error) error {
	var failed *gomail.SendError
	if !errors.As(err, &failed) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var step string
	switch failed.Reason {
	case gomail.ErrSMTPMailFrom:
		step = "MAIL FROM"
	case gomail.ErrSMTPRcptTo:
		step = "RCPT TO"
	case gomail.ErrSMTPData:
		step = "DATA"
	case gomail.ErrWriteContent:
		step = "the content"
	case gomail.ErrSMTPDataClose:
		step = "the end of the content"
	default:
		return fmt.Errorf("%w: %s", ErrUnavailable, failed.Reason)
	}

	code := failed.ErrorCode()
	if code == 0 {
		switch {
		case failed.Reason == gomail.ErrSMTPDataClose:
			return fmt.Errorf("%w: the connection broke at %s", ErrAmbiguous, step)
		case ctx.Err() != nil:
			return fmt.Errorf("%w: stopped at %s: %w", ErrTemporary, step, ctx.Err())
		case failed.Reason == gomail.ErrSMTPMailFrom:
			return fmt.Errorf("%w: the connection broke at %s", ErrUnavailable, step)
		}
		return fmt.Errorf("%w: the connection broke at %s", ErrTemporary, step)
	}
	return fmt.Errorf("%w: %s was answered with %s", classify(failed.Reason, code), step, said(failed, code))
}

func classify(reason gomail.SendErrReason, code int) error {
	switch {
	case code == 421, code == 530, code == 535, code == 538: // closing; login needed, wrong or too weak
		return ErrUnavailable
	case code < 500:
		return ErrTemporary
	case reason == gomail.ErrSMTPMailFrom: // the sender is the same for every message
		return ErrUnavailable
	}
	return ErrPermanent
}

// said returns the server's code and its words, without the addresses that servers like to repeat, and in bounds.
func said(failed *gomail.SendError, code int) string {
	// SendError does not give its parts, only "<step>: <code> <words>, affected recipient(s): …".
	_, words, _ := strings.Cut(failed.Error(), fmt.Sprintf(": %d ", code))
	words, _, _ = strings.Cut(words, ", affected ")
	words = addressLike.ReplaceAllString(words, "…")
	words = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, words)
	if runes := []rune(words); len(runes) > 200 {
		words = string(runes[:200]) + "…"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, words))
}

var addressLike = regexp.MustCompile(`[^\s<>]*@[^\s<>]*`)
