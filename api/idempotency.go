package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/store"
)

const (
	headerKey      = "Idempotency-Key"
	headerReplayed = "Idempotency-Replayed"

	maxKey = 255 // characters
	// leaseMargin is what the lease of a key lasts longer than its request may: a request whose lease has passed is dead.
	leaseMargin = 20 * time.Second
	// maxKept is the largest answer, in bytes, that is kept after its effect. A replayed event answers with its payload and can
	// be larger; doing that again has no second effect.
	maxKept = 64 << 10
	// settleTimeout bounds the last write about a key, which does not end with its request.
	settleTimeout = 5 * time.Second
)

// idempotency lets a write that is repeated with its key have its effect once.
type idempotency struct {
	store *store.Store
	log   *zap.Logger
}

// once is around every write that takes a key. deadline is that of the route.
func (i idempotency) once(deadline time.Duration) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			key, given, err := idempotencyKey(c.Request().Header)
			if err != nil {
				return err
			}
			if !given {
				return next(c)
			}
			body, err := io.ReadAll(c.Request().Body)
			if err != nil {
				return unreadable(err)
			}
			request := store.KeyedRequest{
				APIKeyID: who(c).id, Method: c.Request().Method, Path: c.Request().URL.EscapedPath(), Key: key, Body: body,
			}
			claim, kept, err := i.store.ClaimKey(c.Request().Context(), request, deadline+leaseMargin)
			switch {
			case err != nil:
				return err
			case kept != nil:
				c.Response().Header().Set(headerReplayed, "true")
				return c.Blob(kept.Status, contentType(kept.Status), kept.Body)
			}
			failpoint.Hit("key_claimed")
			c.Request().Body = io.NopCloser(bytes.NewReader(body))
			return i.claimed(c, claim, next)
		}
	}
}

// claimed runs the request and settles its key: the answer is kept, or the key is free again. Nobody sees the answer
// before that.
func (i idempotency) claimed(c echo.Context, claim *store.KeyClaim, next echo.HandlerFunc) (err error) {
	client := c.Response().Writer
	held := &heldAnswer{header: client.Header()}
	c.Response().Writer = held
	c.SetRequest(c.Request().WithContext(store.WithKeyClaim(c.Request().Context(), claim)))
	settled := false
	defer func() {
		c.Response().Writer = client
		if !settled { // it panicked
			i.lapse(c, claim)
		}
	}()

	err = next(c)
	failpoint.Hit("key_before_answer")
	settled = true
	switch {
	case err != nil:
		switch p, answer := problemAnswer(c, err); {
		case repeatable(p.Status):
			i.keep(c, claim, store.KeptAnswer{Status: p.Status, Body: answer})
		case p.Status >= http.StatusInternalServerError:
			i.lapse(c, claim)
		default:
			i.release(c, claim)
		}
		return err
	case claim.Kept():
	case repeatable(held.status) && held.body.Len() <= maxKept:
		i.keep(c, claim, store.KeptAnswer{Status: held.status, Body: held.body.Bytes()})
	default:
		i.release(c, claim)
	}
	client.WriteHeader(held.status)
	_, err = client.Write(held.body.Bytes())
	return err
}

// repeatable answers say something about the request. What says that now is not the time is worth another try.
func repeatable(status int) bool {
	return status < http.StatusInternalServerError && status != http.StatusConflict && status != http.StatusTooManyRequests
}

// keep, lapse and release are best effort: the request has its answer whatever becomes of them. A key that is neither is free when
// its lease has passed.
func (i idempotency) keep(c echo.Context, claim *store.KeyClaim, a store.KeptAnswer) {
	i.settle(c, "keeping an answer", func(ctx context.Context) error { return i.store.KeepAnswer(ctx, claim, a) })
}

// lapse is for a request that may have had its effect.
func (i idempotency) lapse(c echo.Context, claim *store.KeyClaim) {
	i.settle(c, "ending the lease of an idempotency key", func(ctx context.Context) error { return i.store.LapseKey(ctx, claim) })
}

func (i idempotency) release(c echo.Context, claim *store.KeyClaim) {
	i.settle(c, "giving an idempotency key back", func(ctx context.Context) error { return i.store.ReleaseKey(ctx, claim) })
}

func (i idempotency) settle(c echo.Context, doing string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), settleTimeout)
	defer cancel()
	if err := do(ctx); err != nil {
		i.log.Warn(doing, zap.String("route", c.Path()), zap.String("request_id", requestID(c)), zap.Error(err))
	}
}

// idempotencyKey is the key of the request, if it has one.
func idempotencyKey(h http.Header) (key string, given bool, err error) {
	values := h.Values(headerKey)
	if len(values) == 0 {
		return "", false, nil
	}
	key = values[0]
	printable := !strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' })
	if len(values) > 1 || strings.TrimSpace(key) == "" || len(key) > maxKey || !printable {
		return "", false, invalid(FieldError{"/" + headerKey, "must be one key of 1 to 255 printable ASCII characters"})
	}
	return key, true, nil
}

// answers says how the one write of this request is answered, and returns the context for it. Where the request has an
// Idempotency-Key, the write keeps the answer with its effect. The handler answers the same by itself.
func answers[T any](c echo.Context, show func(T) (status int, body any)) context.Context {
	ctx := c.Request().Context()
	if claim := store.KeyClaimOf(ctx); claim != nil {
		claim.Encode(func(result any) (store.KeptAnswer, error) {
			written, ok := result.(T)
			if !ok {
				return store.KeptAnswer{}, errors.New("the write has another result than its route answers with")
			}
			status, body := show(written)
			encoded, err := json.Marshal(body)
			return store.KeptAnswer{Status: status, Body: append(encoded, '\n')}, err // as echo ends its JSON
		})
	}
	return ctx
}

// contentType is that of every answer of its status.
func contentType(status int) string {
	if status >= http.StatusBadRequest {
		return problemType
	}
	return echo.MIMEApplicationJSON
}

// heldAnswer holds an answer back until its key is settled.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header is that of the client's answer.
func (h *heldAnswer) Header() http.Header { return h.header }

// WriteHeader remembers the status.
func (h *heldAnswer) WriteHeader(status int) { h.status = status }

// Write remembers the body.
func (h *heldAnswer) Write(b []byte) (int, error) { return h.body.Write(b) }
