package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/access"
	"termkeeper/internal/subscription"
	"termkeeper/internal/telemetry"
)

const (
	// accessDeadline bounds the whole of an access check, the look-up of the key included, and leaves a busy machine
	// 100 ms of the 500 ms within which an answer must come. Past it the answer is 503 and never an older answer: the
	// caller must know that nothing is known.
	accessDeadline = 400 * time.Millisecond
	maxChecks      = 1000
)

type accessRoutes struct {
	reader  *access.Reader
	metrics *telemetry.Metrics
}

// check is one question. A zero At means now, by the database's clock.
type check struct {
	UserID  string    `json:"user_id"`
	Feature string    `json:"feature"`
	Plan    string    `json:"plan"`
	At      time.Time `json:"at"`
}

func (q check) validate(pointer string, errs *fieldErrors) {
	errs.line(pointer+"/user_id", q.UserID, maxID, true)
	errs.line(pointer+"/feature", q.Feature, maxID, false)
	errs.line(pointer+"/plan", q.Plan, maxID, false)
}

// one answers GET /v1/access.
func (a accessRoutes) one(c echo.Context) error {
	query := c.QueryParams()
	q := check{UserID: query.Get("user_id"), Feature: query.Get("feature"), Plan: query.Get("plan")}
	var errs fieldErrors
	q.validate("", &errs)
	if text := query.Get("at"); text != "" {
		at, detail := parseInstant(text)
		if detail != "" {
			errs.add("/at", detail)
		}
		q.At = at
	}
	if err := errs.err(); err != nil {
		return err
	}
	return a.answer(c, func(holdings map[string][]subscription.Holding, now time.Time) ([]byte, error) {
		return a.decide(make([]byte, 0, answerSize), q, holdings[q.UserID], now, "")
	}, []string{q.UserID})
}

// batch answers POST /v1/access/batch: all checks from one reading, in the order asked.
func (a accessRoutes) batch(c echo.Context) error {
	var in struct {
		Checks []check `json:"checks"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	if len(in.Checks) == 0 || len(in.Checks) > maxChecks {
		return invalid(FieldError{"/checks", "must have 1 to 1000 checks"})
	}
	var errs fieldErrors
	users := make([]string, 0, len(in.Checks))
	asked := make(map[string]bool, len(in.Checks))
	for i, q := range in.Checks {
		if q.validate("/checks/"+strconv.Itoa(i), &errs); len(errs) >= maxFieldErrors {
			break
		}
		if !asked[q.UserID] {
			asked[q.UserID] = true
			users = append(users, q.UserID)
		}
	}
	if err := errs.err(); err != nil {
		return err
	}
	return a.answer(c, func(holdings map[string][]subscription.Holding, now time.Time) ([]byte, error) {
		body := append(make([]byte, 0, answerSize*len(in.Checks)), `{"results":[`...)
		for i, q := range in.Checks {
			if i > 0 {
				body = append(body, ',')
			}
			var err error
			if body, err = a.decide(body, q, holdings[q.UserID], now, "/checks/"+strconv.Itoa(i)); err != nil {
				return nil, err
			}
		}
		return append(body, `]}`...), nil
	}, users)
}

// answer reads what the users hold, once, and writes what decide makes of it.
func (a accessRoutes) answer(c echo.Context, decide func(map[string][]subscription.Holding, time.Time) ([]byte, error), users []string) error {
	begun := time.Now()
	defer func() { a.metrics.AccessCheckDuration.Observe(time.Since(begun).Seconds()) }()
	holdings, now, err := a.reader.Holdings(c.Request().Context(), users)
	if err != nil {
		a.metrics.AccessFailed()
		return err
	}
	body, err := decide(holdings, now)
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, body)
}

// decide appends the answer to one check. now is the database's instant of the reading.
func (a accessRoutes) decide(body []byte, q check, holdings []subscription.Holding, now time.Time, pointer string) ([]byte, error) {
	at := now
	if !q.At.IsZero() {
		if !q.At.After(now) {
			p := invalid(FieldError{pointer + "/at", "must lie in the future of the database's clock"})
			p.Code, p.Type = "past_instant", problem(0, "past_instant", "").Type
			return nil, p
		}
		at = q.At
	}
	d := subscription.Decide(holdings, subscription.Ask{Feature: q.Feature, Plan: q.Plan}, at)
	a.metrics.Access(d.Allowed, d.Reason)
	return appendAnswer(body, q, d, at), nil
}

// answerSize is about what one answer takes, in bytes.
const answerSize = 512

// appendAnswer appends the JSON of an answer. By hand, because this is the busiest path: a tenth of the time that
// encoding/json takes. A test holds it to encoding/json.
func appendAnswer(b []byte, q check, d subscription.Decision, at time.Time) []byte {
	b = append(b, `{"allowed":`...)
	b = strconv.AppendBool(b, d.Allowed)
	b = append(append(append(b, `,"reason":"`...), d.Reason...), '"')
	b = appendString(append(b, `,"user_id":`...), q.UserID)
	b = append(b, `,"feature":`...)
	if q.Feature == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, q.Feature)
	}
	if h := d.Named; h == nil {
		b = append(b, `,"plan":null,"subscription_id":null,"status":null,"expires_at":null,"grace_period_ends_at":null,"access_until":null`...)
	} else {
		b = appendString(append(b, `,"plan":`...), h.PlanKey)
		b = appendString(append(b, `,"subscription_id":`...), h.ID)
		b = appendString(append(b, `,"status":`...), string(h.Status))
		b = appendInstant(append(b, `,"expires_at":`...), h.ExpiresAt)
		b = appendInstant(append(b, `,"grace_period_ends_at":`...), h.GraceUntil)
		b = appendInstant(append(b, `,"access_until":`...), h.AccessUntil())
	}
	b = appendInstant(append(b, `,"next_change_at":`...), d.NextChangeAt)
	b = appendInstant(append(b, `,"decided_at":`...), at)
	return append(b, '}')
}

// appendString appends a JSON string. What needs an escape is left to encoding/json.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			encoded, _ := json.Marshal(s) // a string always encodes
			return append(b, encoded...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendInstant appends an instant as the API writes it: RFC 3339 in UTC, microseconds where there are any; null for
// none and for the end of a lifetime.
func appendInstant(b []byte, at time.Time) []byte {
	if at.IsZero() || subscription.IsForever(at) {
		return append(b, "null"...)
	}
	return append(at.UTC().AppendFormat(append(b, '"'), instantLayout), '"')
}

const instantLayout = "2006-01-02T15:04:05.999999Z07:00"
