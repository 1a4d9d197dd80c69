// Package client calls the API of Termkeeper. Types and methods come from api/openapi.yaml by `make generate`; this file
// has what they stand on.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer is the largest answer that is read, in bytes. A page of 200 events or a batch of 1,000 checks is far smaller.
const maxAnswer = 64 << 20

// Client calls one API with one key. It is safe for use by many goroutines.
type Client struct {
	base, key string
	http      *http.Client
}

// New makes a client for the API at base, for instance http://127.0.0.1:8080, with an API key. What doer is nil for has the
// default of net/http, which has no time limit of its own; the context of a call always has a say.
func New(base, key string, doer *http.Client) *Client {
	if doer == nil {
		doer = http.DefaultClient
	}
	return &Client{base: strings.TrimRight(base, "/"), key: key, http: doer}
}

// Option changes one request before it is sent.
type Option func(*http.Request)

// IdempotencyKey lets a write have its effect once, however often it is sent with this key within 24 hours. Reads and
// checks take no notice of it.
func IdempotencyKey(key string) Option {
	return func(r *http.Request) { r.Header.Set("Idempotency-Key", key) }
}

// RequestID names the request in the API's log and answer.
func RequestID(id string) Option {
	return func(r *http.Request) { r.Header.Set("X-Request-Id", id) }
}

// Error is the code and the detail of the problem.
func (p *Problem) Error() string {
	return fmt.Sprintf("%s: %s (request %s)", p.Code, p.Detail, p.RequestID)
}

// Is reports whether err is a problem with one of the codes.
func Is(err error, codes ...ProblemCode) bool {
	var p *Problem
	if !errors.As(err, &p) {
		return false
	}
	for _, code := range codes {
		if p.Code == code {
			return true
		}
	}
	return false
}

// request is one call in the making. The generated methods fill it in.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         any
}

func (r *request) inPath(name, value string) {
	r.path = strings.Replace(r.path, "{"+name+"}", url.PathEscape(value), 1)
}

func (r *request) inQuery(name string, value any) {
	if r.query == nil {
		r.query = url.Values{}
	}
	if at, ok := value.(time.Time); ok {
		value = at.UTC().Format(time.RFC3339Nano)
	}
	r.query.Set(name, fmt.Sprint(value))
}

func (r *request) inHeader(name, value string) {
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(name, value)
}

// build makes the HTTP request. A body that is raw JSON is sent byte by byte as it is: a signature may cover it.
func (r *request) build(ctx context.Context, c *Client) (*http.Request, error) {
	var body io.Reader
	if raw, isRaw := r.body.(json.RawMessage); isRaw {
		body = bytes.NewReader(raw)
	} else if r.body != nil {
		encoded, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encoding the body: %w", err)
		}
		body = bytes.NewReader(encoded)
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	made, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	for name, values := range r.header {
		made.Header[name] = values
	}
	made.Header.Set("Accept", "application/json, application/problem+json")
	if c.key != "" {
		made.Header.Set("Authorization", "Bearer "+c.key)
	}
	if body != nil {
		made.Header.Set("Content-Type", "application/json")
	}
	return made, nil
}

// call sends the request and decodes its answer. Every answer that is not a success is a *Problem; where somebody between
// us and the API answered something else, there is a plain error with its status.
func call[T any](ctx context.Context, c *Client, r request, options []Option) (*T, error) {
	doing := func(err error) error { return fmt.Errorf("%s %s: %w", r.method, r.path, err) }
	made, err := r.build(ctx, c)
	if err != nil {
		return nil, doing(err)
	}
	for _, option := range options {
		option(made)
	}
	response, err := c.http.Do(made)
	if err != nil {
		return nil, doing(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, doing(fmt.Errorf("reading the answer: %w", err))
	}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	var answer T
	var problem Problem
	switch {
	case response.StatusCode < 300 && kind == "application/json":
		if err := json.Unmarshal(body, &answer); err != nil {
			return nil, doing(fmt.Errorf("decoding the answer: %w", err))
		}
		return &answer, nil
	case kind == "application/problem+json" && json.Unmarshal(body, &problem) == nil:
		return nil, doing(&problem)
	default:
		return nil, doing(fmt.Errorf("the answer is no answer of Termkeeper: status %d, %q", response.StatusCode, kind))
	}
}
