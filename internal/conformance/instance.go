package conformance

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ErrUnreachable says that the instance did not answer at all.
var ErrUnreachable = errors.New("the instance cannot be reached")

// ErrRefused says that the instance does not take the key or the secret, or lacks a plan that was named.
var ErrRefused = errors.New("the instance refuses")

// instance is the running system that is tried, by its two endpoints.
type instance struct {
	url, secret, key string
	http             *http.Client
}

const (
	requestTimeout = 15 * time.Second
	maxAnswer      = 1 << 20 // bytes
	// deliveries of one event, of which all but the last were answered with 503, 429 or not at all. Stripe tries for days.
	deliveries = 6
)

func newInstance(base, secret, key string, connections int) *instance {
	transport := &http.Transport{MaxIdleConns: connections, MaxIdleConnsPerHost: connections, IdleConnTimeout: time.Minute}
	return &instance{url: base, secret: secret, key: key, http: &http.Client{Transport: transport, Timeout: requestTimeout}}
}

func (i *instance) close() { i.http.CloseIdleConnections() }

// deliver sends a signed event until it is taken, as Stripe does. The returned text is empty, or says how it was refused.
func (i *instance) deliver(ctx context.Context, body []byte) (refusal string, err error) {
	for try := 1; ; try++ {
		status, answer, wait, err := i.send(ctx, body)
		again := status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests
		switch {
		case err == nil && status == http.StatusOK:
			return "", nil
		case err == nil && status == http.StatusBadRequest:
			return "", fmt.Errorf("%w an event (400): %s: is --secret the one of its STRIPE_WEBHOOK_SECRETS, and are both clocks right?", ErrRefused, short(answer))
		case err == nil && !again:
			return fmt.Sprintf("an event was answered with %d: %s", status, short(answer)), nil
		case err != nil && (ctx.Err() != nil || try == deliveries):
			return "", err
		case try == deliveries:
			return fmt.Sprintf("an event was answered with %d, %d times", status, try), nil
		}
		if err := sleep(ctx, max(wait, time.Duration(try)*100*time.Millisecond)); err != nil {
			return "", err
		}
	}
}

func (i *instance) send(ctx context.Context, body []byte) (status int, answer []byte, wait time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, i.url+"/v1/webhooks/stripe", bytes.NewReader(body))
	if err != nil {
		return 0, nil, 0, fmt.Errorf("making a delivery: %w", err)
	}
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	request.Header.Set("Stripe-Signature", sign(body, i.secret, time.Now()))
	return i.do(request)
}

// sign is the value of Stripe-Signature. Source: https://docs.stripe.com/webhooks#verify-manually.
func sign(body []byte, secret string, at time.Time) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// state asks for the user's access.
func (i *instance) state(ctx context.Context, user string) (State, error) {
	for try := 1; ; try++ {
		status, answer, wait, err := i.call(ctx, http.MethodGet, "/v1/access?"+url.Values{"user_id": {user}}.Encode(), nil)
		switch {
		case err != nil && (ctx.Err() != nil || try == deliveries):
			return State{}, err
		case err != nil:
		case status == http.StatusOK:
			return readState(answer)
		case status == http.StatusUnauthorized || status == http.StatusForbidden:
			return State{}, fmt.Errorf("%w the access check (%d): give a key of any role with --key or TERMKEEPER_API_KEY", ErrRefused, status)
		case status == http.StatusServiceUnavailable && try < deliveries, status == http.StatusTooManyRequests && try < deliveries:
		default:
			return State{}, fmt.Errorf("an access check was answered with %d: %s", status, short(answer))
		}
		if err := sleep(ctx, max(wait, time.Duration(try)*100*time.Millisecond)); err != nil {
			return State{}, err
		}
	}
}

func readState(answer []byte) (State, error) {
	var in struct {
		Allowed     bool       `json:"allowed"`
		Reason      string     `json:"reason"`
		Plan        string     `json:"plan"`
		ExpiresAt   *time.Time `json:"expires_at"`
		GraceUntil  *time.Time `json:"grace_period_ends_at"`
		AccessUntil *time.Time `json:"access_until"`
	}
	if err := json.Unmarshal(answer, &in); err != nil {
		return State{}, fmt.Errorf("reading the answer to an access check: %w", err)
	}
	s := State{Allowed: in.Allowed, Reason: in.Reason, Plan: in.Plan}
	for _, f := range []struct {
		to   *string
		from *time.Time
	}{{&s.ExpiresAt, in.ExpiresAt}, {&s.GraceUntil, in.GraceUntil}, {&s.AccessUntil, in.AccessUntil}} {
		if f.from != nil {
			*f.to = instant(*f.from)
		}
	}
	return s, nil
}

func (i *instance) call(ctx context.Context, method, path string, body any) (status int, answer []byte, wait time.Duration, err error) {
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(encode(body))
	}
	request, err := http.NewRequestWithContext(ctx, method, i.url+path, content)
	if err != nil {
		return 0, nil, 0, fmt.Errorf("making a request: %w", err)
	}
	if i.key != "" {
		request.Header.Set("Authorization", "Bearer "+i.key)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return i.do(request)
}

// do sends a request. wait is what the answer says in Retry-After, at most ten seconds.
func (i *instance) do(request *http.Request) (status int, answer []byte, wait time.Duration, err error) {
	response, err := i.http.Do(request)
	if err != nil {
		if request.Context().Err() != nil {
			return 0, nil, 0, request.Context().Err()
		}
		return 0, nil, 0, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, nil, 0, fmt.Errorf("%w: reading an answer: %w", ErrUnreachable, err)
	}
	if s, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && s > 0 {
		wait = time.Duration(min(s, 10)) * time.Second
	}
	return response.StatusCode, answer, wait, nil
}

// short keeps what is told of an answer on a line.
func short(answer []byte) string {
	const most = 300
	if len(answer) > most {
		answer = answer[:most]
	}
	return string(bytes.Join(bytes.Fields(answer), []byte(" ")))
}

// sleep waits for d, or less when ctx ends first, and then says why.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
