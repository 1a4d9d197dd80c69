package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
)

// maxBody is the largest body that is read, in bytes.
const maxBody = 1 << 20

// requestIDHeader is echo's X-Request-ID as net/http writes it.
const requestIDHeader = "X-Request-Id"

func requestID(c echo.Context) string { return c.Response().Header().Get(requestIDHeader) }

// nameRequests gives each request an id, the caller's own if it is a harmless one, and says it in the answer.
func nameRequests(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := ""
		if sent := c.Request().Header[requestIDHeader]; len(sent) > 0 {
			id = sent[0]
		}
		if !harmlessID(id) {
			id = newRequestID()
		}
		c.Response().Header()[requestIDHeader] = []string{id}
		return next(c)
	}
}

// newRequestID is a UUID of version 7 (RFC 9562). Guessing one gains nothing, so its bits need no source of secrets, which
// would cost more than the rest of an access check's look-up.
func newRequestID() string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(time.Now().UnixMilli())<<16|rand.Uint64()>>48) //nolint:gosec // G404, G115: no secret, and the time fits.
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())                                        //nolint:gosec // G404: no secret.
	id[6], id[8] = 0x70|id[6]&0x0f, 0x80|id[8]&0x3f
	return id.String()
}

func harmlessID(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for _, b := range []byte(id) {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '-', b == '_', b == '.':
		default:
			return false
		}
	}
	return true
}

// logRequests answers errors and writes one line per request: the route and not the path, which holds ids, and neither
// query, header nor body. What went well and only read is a matter of debugging; at ten thousand checks a second the log
// would be the heaviest part.
func logRequests(log *zap.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			begun := time.Now()
			err := next(c)
			if err != nil {
				c.Error(err)
			}
			status := c.Response().Status
			level := zap.DebugLevel
			switch {
			case status >= http.StatusInternalServerError:
				level = zap.ErrorLevel
			case status >= http.StatusBadRequest:
				level = zap.InfoLevel
			}
			if entry := log.Check(level, "request"); entry != nil {
				var seen *problemError
				if errors.As(err, &seen) && status < http.StatusInternalServerError {
					err = nil // the client was told all of it
				}
				entry.Write(zap.String("method", c.Request().Method), zap.String("route", c.Path()), zap.Int("status", status),
					zap.Duration("took", time.Since(begun)), zap.String("request_id", requestID(c)), zap.String("key_name", who(c).name), zap.Error(err))
			}
			return nil
		}
	}
}

// survivePanics turns a panic into an error. The stack goes to the log, not to the client.
func survivePanics(log *zap.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			defer func() {
				switch p := recover(); p {
				case nil:
				case http.ErrAbortHandler: // net/http's own way to cut a connection
					panic(p)
				default:
					log.Error("a handler panicked", zap.String("route", c.Path()), zap.String("request_id", requestID(c)),
						zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
					err = fmt.Errorf("panic: %v", p)
				}
			}()
			return next(c)
		}
	}
}

// secureAnswers sets what no answer of an API should lack.
func secureAnswers() echo.MiddlewareFunc {
	// In the form in which net/http keeps them, one copy for all answers. Who adds to one gets a copy.
	noStore, noSniff, deny, nothing, noReferrer := []string{"no-store"}, []string{"nosniff"}, []string{"DENY"},
		[]string{"default-src 'none'; frame-ancestors 'none'"}, []string{"no-referrer"}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			h := c.Response().Header()
			h["Cache-Control"] = noStore
			h["X-Content-Type-Options"] = noSniff
			h["X-Frame-Options"] = deny
			h["Content-Security-Policy"] = nothing
			h["Referrer-Policy"] = noReferrer
			return next(c)
		}
	}
}

// maxDiscard is how much of a body that nobody wants is read before the refusal is sent, in bytes. A connection that is
// closed with unread data is reset, and the client may never see the answer.
const maxDiscard = 4 << 20

// limitBodies lets nobody read more than maxBody of a body, and nothing at all of one that says it is larger. Nothing is
// decompressed.
func limitBodies(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		sent := r.Body
		if r.ContentLength > maxBody {
			r.Body = tooLargeBody{r.Body}
		} else if r.Body != nil && r.Body != http.NoBody {
			r.Body = http.MaxBytesReader(c.Response().Writer, r.Body, maxBody)
		}
		err := next(c)
		// A client that asks first whether to send its body has not sent it, and reading would ask for it.
		if err != nil && sent != nil && r.Header.Get("Expect") == "" {
			_, _ = io.CopyN(io.Discard, sent, maxDiscard) // what cannot be read need not be
		}
		return err
	}
}

// tooLargeBody answers the first reading with the error of http.MaxBytesReader.
type tooLargeBody struct {
	io.Closer
}

// Read refuses.
func (tooLargeBody) Read([]byte) (int, error) { return 0, &http.MaxBytesError{Limit: maxBody} }

// wholeSegments says that there is nothing at a path whose parameter is empty or more than a segment. The router would take
// /v1/users/a/b for the user "a/b", whose path is /v1/users/a%2Fb.
func wholeSegments(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		for _, value := range c.ParamValues() {
			if value == "" || strings.Contains(value, "/") {
				return echo.ErrNotFound
			}
		}
		return next(c)
	}
}

// within ends the work on a request after d.
func within(d time.Duration) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			ctx := &deadlined{Context: c.Request().Context(), at: time.Now().Add(d)}
			defer ctx.end()
			c.SetRequest(c.Request().WithContext(ctx))
			return next(c)
		}
	}
}

// hangUp closes connections after their answer while the server is stopping, so that nobody sends a request into one
// that is about to close. A request that takes long may have begun before the stop, so for it hangUpLate looks once more.
func hangUp(stopping *atomic.Bool) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if stopping.Load() {
				c.Response().Header().Set("Connection", "close")
			}
			return next(c)
		}
	}
}

// hangUpLate looks when the answer is written.
func hangUpLate(stopping *atomic.Bool) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().Before(func() {
				if stopping.Load() {
					c.Response().Header().Set("Connection", "close")
				}
			})
			return next(c)
		}
	}
}
