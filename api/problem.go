package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"termkeeper/internal/access"
	"termkeeper/internal/intake"
	"termkeeper/internal/order"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
	"termkeeper/internal/temporalclient"
)

// problemError is an error as the client sees it, by RFC 9457.
type problemError struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors,omitempty"`

	retryAfter string // seconds, for the header
}

// FieldError says what is wrong with one field. Pointer is a JSON pointer (RFC 6901) into the body; of a query or path
// parameter it is a slash and its name.
type FieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

func (p *problemError) Error() string { return p.Code + ": " + p.Detail }

func problem(status int, code, detail string) *problemError {
	return &problemError{Type: "urn:termkeeper:problem:" + code, Title: http.StatusText(status), Status: status, Detail: detail, Code: code}
}

// invalid is a 400 that names the wrong fields.
func invalid(errs ...FieldError) *problemError {
	p := problem(http.StatusBadRequest, "invalid_request", "Some fields are wrong; errors says which.")
	if len(errs) == 1 {
		p.Detail = errs[0].Pointer + " " + errs[0].Detail
	}
	p.Errors = errs
	return p
}

// unavailable is a 503 with the seconds after which another try makes sense.
func unavailable(code, detail, retryAfter string) *problemError {
	p := problem(http.StatusServiceUnavailable, code, detail)
	p.retryAfter = retryAfter
	return p
}

func notFound(what string) *problemError {
	return problem(http.StatusNotFound, "not_found", "There is no such "+what+".")
}

// problemOf is the one place where errors become answers.
func problemOf(err error) *problemError {
	var known *problemError
	var tooLarge *http.MaxBytesError
	var routing *echo.HTTPError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &tooLarge):
		return problem(http.StatusRequestEntityTooLarge, "payload_too_large", "The body is larger than 1 MiB.")
	case errors.As(err, &routing):
		return routingProblem(routing)
	case errors.Is(err, store.ErrNotFound):
		return notFound("object")
	case errors.Is(err, store.ErrExists):
		return problem(http.StatusConflict, "already_exists", "It exists already.")
	case errors.Is(err, store.ErrPriceTaken):
		return problem(http.StatusConflict, "price_taken", "A Stripe price can belong to one plan only, and one of these belongs to another.")
	case errors.Is(err, store.ErrNoPlan):
		return invalid(FieldError{"/plan", "names no plan"})
	case errors.Is(err, store.ErrPayloadGone):
		return problem(http.StatusConflict, "payload_gone", "The body of this event is no longer kept: it is removed 30 days after it was processed. It cannot be replayed.")
	case errors.Is(err, store.ErrKeyReused):
		return problem(http.StatusUnprocessableEntity, "idempotency_key_reused", "This Idempotency-Key came with another body before; a new request needs a new key.")
	case errors.Is(err, store.ErrKeyInProgress):
		p := problem(http.StatusConflict, "idempotency_in_progress", "The first request with this Idempotency-Key is still running; ask again for its answer.")
		p.retryAfter = "1"
		return p
	case errors.Is(err, store.ErrConflict):
		return problem(http.StatusConflict, "conflict", "Somebody else is changing it; try again.")
	case errors.Is(err, subscription.ErrProviderOwned):
		return problem(http.StatusConflict, "provider_owned", "The payment provider owns this subscription; it must be changed there.")
	case errors.Is(err, subscription.ErrConflict):
		return problem(http.StatusConflict, "conflict", err.Error())
	case errors.Is(err, order.ErrConflict):
		return problem(http.StatusConflict, "conflict", err.Error())
	case errors.Is(err, settlement.ErrNoProvider):
		return problem(http.StatusConflict, "no_provider", "No key of a payment provider is configured, so nobody can be asked; set STRIPE_API_KEY.")
	case errors.Is(err, temporalclient.ErrNoSchedule):
		return problem(http.StatusConflict, "no_schedule", "The schedule of this job does not exist yet; `termkeeper schedules apply` makes it.")
	case errors.Is(err, temporalclient.ErrUnavailable):
		return unavailable("temporal_unavailable", "Temporal cannot be reached, so jobs cannot be steered now.", "5")
	case errors.Is(err, access.ErrClosed), errors.Is(err, intake.ErrClosed):
		return unavailable("shutting_down", "This process is stopping; another one will answer.", "1")
	case store.Unavailable(err), errors.Is(err, context.Canceled):
		return unavailable("database_unavailable", "The database did not answer in time; nothing can be said now.", "1")
	default:
		return problem(http.StatusInternalServerError, "internal_error", "Something went wrong here; the log has it under the request id.")
	}
}

func routingProblem(err *echo.HTTPError) *problemError {
	switch err.Code {
	case http.StatusNotFound:
		return problem(http.StatusNotFound, "not_found", "There is nothing at this path.")
	case http.StatusMethodNotAllowed:
		return problem(http.StatusMethodNotAllowed, "method_not_allowed", "This path does not take this method; the header Allow says which it takes.")
	default:
		return problem(http.StatusInternalServerError, "internal_error", "Something went wrong here; the log has it under the request id.")
	}
}

const problemType = "application/problem+json"

// problemAnswer is the error as a problem and its body.
func problemAnswer(c echo.Context, err error) (problemError, []byte) {
	p := *problemOf(err)
	p.RequestID = requestID(c)
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return p, body
}

// answerProblem writes the error as a problem. It is echo's error handler.
func answerProblem(log *zap.Logger) echo.HTTPErrorHandler {
	return func(err error, c echo.Context) {
		if c.Response().Committed {
			return
		}
		p, body := problemAnswer(c, err)
		if p.retryAfter != "" {
			c.Response().Header().Set("Retry-After", p.retryAfter)
		}
		if p.Status == http.StatusUnauthorized {
			c.Response().Header().Set("WWW-Authenticate", "Bearer")
		}
		if err := c.Blob(p.Status, problemType, body); err != nil {
			log.Debug("the client went away", zap.Error(err))
		}
	}
}
