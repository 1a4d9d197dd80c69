// Package webhook calls the endpoints of others, signed as Standard Webhooks 1.0 says (https://www.standardwebhooks.com), and
// says what an answer means for the delivery and for the endpoint.
//
// The signatures are made by the specification's own Go library: it has no dependencies, is kept beside the text of the
// specification, and its verifier is what receivers use.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"termkeeper/internal/secret"
)

// SendTimeout bounds one Send from the look-up of the name to the end of the answer. A lease on a delivery must be longer.
const SendTimeout = 15 * time.Second

const (
	// maxHead is the largest head of an answer that is read, in bytes.
	maxHead = 16 << 10
	// maxBody of an answer is read, so that its connection can be used again. What it says does not matter.
	maxBody = 4 << 10
	// bodyPatience is how long the body is waited for: the status has decided already.
	bodyPatience = 500 * time.Millisecond
	idleTimeout  = 30 * time.Second
	maxIdle      = 100
)

// Options of a sender.
type Options struct {
	// AllowPrivate lets calls reach loopback and private addresses, and go by http.
	AllowPrivate bool
	Resolver     *net.Resolver // nil is the system's
	TLS          *tls.Config   // nil trusts the system's roots
}

// Sender calls endpoints. It keeps connections open for a while.
type Sender struct {
	client       *http.Client
	allowPrivate bool
}

// New makes a sender. It follows no redirect and uses no proxy: both would lead past the check of the address.
func New(o Options) *Sender {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Resolver: o.Resolver, Control: guard(o.AllowPrivate)}
	return &Sender{
		allowPrivate: o.AllowPrivate,
		client: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				Proxy: nil, DialContext: dialer.DialContext, TLSClientConfig: o.TLS, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true,
				MaxIdleConns: maxIdle, MaxIdleConnsPerHost: 4, IdleConnTimeout: idleTimeout,
				MaxResponseHeaderBytes: maxHead, DisableCompression: true,
			},
		},
	}
}

// Close gives the open connections back.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// Call is one attempt of a delivery.
type Call struct {
	URL  string
	ID   string    // the webhook-id: the same for all attempts
	At   time.Time // the webhook-timestamp: this attempt's
	Body []byte
	// Secrets sign, one signature each: after a rotation the receiver may know the one or the other.
	Secrets []secret.Text
}

// Answer is what came back.
type Answer struct {
	Status     int
	RetryAfter time.Duration // what the receiver asks for; 0 when it does not
}

// ErrNoAnswer is the kind of every failure to get an answer: the call may have arrived all the same.
var ErrNoAnswer = errors.New("no answer")

// Send makes one call. The error is ErrNoAnswer, or context.Canceled when ctx was canceled; its text names no URL, because a URL may
// hold a secret of the receiver's. An answer is one whose head came as a whole; a body that breaks off changes nothing.
func (s *Sender) Send(ctx context.Context, c Call) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, SendTimeout)
	defer cancel()
	if err := CheckURL(c.URL, s.allowPrivate); err != nil { // the setting may have changed since it was given
		return Answer{}, fmt.Errorf("%w: the URL %w", ErrNoAnswer, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(c.Body))
	if err != nil {
		return Answer{}, fmt.Errorf("%w: the URL cannot be called", ErrNoAnswer)
	}
	signature, err := sign(c)
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "termkeeper")
	request.Header.Set(standardwebhooks.HeaderWebhookID, c.ID)
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(c.At.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	answer, err := s.client.Do(request)
	if err != nil {
		return Answer{}, noAnswer(err)
	}
	defer answer.Body.Close()
	impatient := time.AfterFunc(bodyPatience, cancel)
	defer impatient.Stop()
	_, _ = io.CopyN(io.Discard, answer.Body, maxBody) // see maxBody
	return Answer{Status: answer.StatusCode, RetryAfter: retryAfter(answer.Header.Get("Retry-After"), c.At)}, nil
}

func sign(c Call) (string, error) {
	signatures := make([]string, len(c.Secrets))
	for i, s := range c.Secrets {
		signer, err := standardwebhooks.NewWebhook(s.Reveal())
		if err != nil {
			return "", errors.New("the secret of the endpoint is not one of Standard Webhooks")
		}
		if signatures[i], err = signer.Sign(c.ID, c.At, c.Body); err != nil {
			return "", fmt.Errorf("signing the call: %w", err)
		}
	}
	return strings.Join(signatures, " "), nil
}

// noAnswer drops the URL from an error of the client, and says a time-out in words.
func noAnswer(err error) error {
	var about *url.Error
	if errors.As(err, &about) {
		if about.Timeout() {
			return fmt.Errorf("%w within %s", ErrNoAnswer, SendTimeout)
		}
		err = about.Err
	}
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	var name *net.DNSError
	if errors.As(err, &name) {
		return fmt.Errorf("%w: the host name cannot be resolved", ErrNoAnswer)
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, err)
}

// retryAfter reads seconds or a date (RFC 9110, 10.2.3).
func retryAfter(value string, at time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(value); err == nil && date.After(at) {
		return date.Sub(at)
	}
	return 0
}
