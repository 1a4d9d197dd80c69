package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/store"
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

// AccessReader is access.Reader or access.Cached.
type AccessReader interface {
	// Holdings is what the users have, with an instant of the database's clock that is not before the call. What it returns
	// is not written to.
	Holdings(ctx context.Context, userIDs []string) (map[string][]subscription.Holding, time.Time, error)
	// Holding is Holdings of one user.
	Holding(ctx context.Context, userID string) ([]subscription.Holding, time.Time, error)
}

type accessRoutes struct {
	reader  AccessReader
	history *store.Store // for questions about the past
	metrics *telemetry.Metrics
}

// check is one question. A zero At means now, by the database's clock.
type check struct {
	UserID  string
	Feature string
	Plan    string
	At      time.Time
}

// checkIn is one question of a batch. What is null is not asked for.
type checkIn struct {
	UserID  string     `json:"user_id"`
	Feature *string    `json:"feature"`
	Plan    *string    `json:"plan"`
	At      *time.Time `json:"at"`
}

func (in checkIn) check() check {
	return check{UserID: in.UserID, Feature: orZero(in.Feature), Plan: orZero(in.Plan), At: orZero(in.At)}
}

func (q check) validate(pointer string, errs *fieldErrors) {
	errs.line(pointer+"/user_id", q.UserID, maxID, true)
	errs.line(pointer+"/feature", q.Feature, maxID, false)
	errs.line(pointer+"/plan", q.Plan, maxID, false)
}

// one answers GET /v1/access.
func (a accessRoutes) one(c echo.Context) error {
	var query accessQuery
	query.read(c.Request().URL.RawQuery)
	q := check{UserID: query.userID, Feature: query.feature, Plan: query.plan}
	var errs fieldErrors
	q.validate("", &errs)
	if query.at != "" {
		at, detail := parseInstant(query.at)
		if detail != "" {
			errs.add("/at", detail)
		}
		q.At = at
	}
	if err := errs.err(); err != nil {
		return err
	}
	begun := time.Now()
	defer a.observe(begun)
	holdings, now, err := a.reader.Holding(c.Request().Context(), q.UserID)
	if err != nil {
		a.metrics.AccessFailed()
		return err
	}
	if !q.At.IsZero() && !q.At.After(now) {
		past, err := a.past(c, []check{q}, now, func(int) string { return "" })
		if err != nil {
			return err
		}
		holdings = past.or(0, holdings)
	}
	return sendJSON(c, a.decide(make([]byte, 0, answerSize), q, holdings, now))
}

func (a accessRoutes) observe(begun time.Time) {
	a.metrics.AccessCheckDuration.Observe(time.Since(begun).Seconds())
}

// jsonType is shared by all answers. Who adds to it gets a copy.
var jsonType = []string{echo.MIMEApplicationJSON} //nolint:gochecknoglobals // constant

// sendJSON is Blob of echo without a copy of the type for each answer.
func sendJSON(c echo.Context, body []byte) error {
	c.Response().Header()[echo.HeaderContentType] = jsonType
	c.Response().WriteHeader(http.StatusOK)
	_, err := c.Response().Write(body)
	return err
}

// accessQuery is what an access check asks in its query.
type accessQuery struct{ userID, feature, plan, at string }

// read takes the first value of each name, and reads pairs as url.ParseQuery does: one that cannot be read is left out. The
// values of all names would cost a map and a list each, on the busiest path.
func (q *accessQuery) read(raw string) {
	var seen struct{ userID, feature, plan, at bool }
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" || strings.Contains(pair, ";") {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(key)
		if err != nil {
			continue
		}
		var into *string
		var once *bool
		switch key {
		case "user_id":
			into, once = &q.userID, &seen.userID
		case "feature":
			into, once = &q.feature, &seen.feature
		case "plan":
			into, once = &q.plan, &seen.plan
		case "at":
			into, once = &q.at, &seen.at
		default:
			continue
		}
		if value, err := url.QueryUnescape(value); err == nil && !*once {
			*into, *once = value, true
		}
	}
}

// batch answers POST /v1/access/batch: all checks from one reading, in the order asked.
func (a accessRoutes) batch(c echo.Context) error {
	var in struct {
		Checks []checkIn `json:"checks"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	if len(in.Checks) == 0 || len(in.Checks) > maxChecks {
		return invalid(FieldError{"/checks", "must have 1 to 1000 checks"})
	}
	var errs fieldErrors
	checks := make([]check, len(in.Checks))
	users := make([]string, 0, len(in.Checks))
	asked := make(map[string]bool, len(in.Checks))
	for i, one := range in.Checks {
		q := one.check()
		checks[i] = q
		if q.validate(checkPointer(i), &errs); len(errs) >= maxFieldErrors {
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
	begun := time.Now()
	defer a.observe(begun)
	holdings, now, err := a.reader.Holdings(c.Request().Context(), users)
	if err != nil {
		a.metrics.AccessFailed()
		return err
	}
	past, err := a.past(c, checks, now, checkPointer)
	if err != nil {
		return err
	}
	body := append(make([]byte, 0, answerSize*len(checks)), `{"results":[`...)
	for i, q := range checks {
		if i > 0 {
			body = append(body, ',')
		}
		body = a.decide(body, q, past.or(i, holdings[q.UserID]), now)
	}
	return sendJSON(c, append(body, `]}`...))
}

func checkPointer(i int) string { return "/checks/" + strconv.Itoa(i) }

// pastHoldings are what the users of some checks had at their instants, by the number of the check.
type pastHoldings map[int][]subscription.Holding

// or is what the check is decided by: the past where it asks about the past, else what the user has now.
func (p pastHoldings) or(i int, now []subscription.Holding) []subscription.Holding {
	if then, ok := p[i]; ok {
		return then
	}
	return now
}

// past reads the history for the checks whose instant is not after now. An instant before the history of its user is a
// wrong question.
func (a accessRoutes) past(c echo.Context, checks []check, now time.Time, pointer func(int) string) (pastHoldings, error) {
	var questions []store.PastQuestion
	var numbers []int
	for i, q := range checks {
		if !q.At.IsZero() && !q.At.After(now) {
			questions, numbers = append(questions, store.PastQuestion{UserID: q.UserID, At: q.At}), append(numbers, i)
		}
	}
	if len(questions) == 0 {
		return nil, nil //nolint:nilnil // nobody asks about the past
	}
	holdings, unknown, err := a.history.PastHoldings(c.Request().Context(), questions)
	if err != nil {
		return nil, err
	}
	then := make(pastHoldings, len(questions))
	var errs fieldErrors
	for k, i := range numbers {
		then[i] = holdings[k]
		if unknown[k] && len(errs) < maxFieldErrors {
			errs.add(pointer(i)+"/at", "lies before the history of the user")
		}
	}
	if len(errs) > 0 {
		p := invalid(errs...)
		p.Code, p.Type = "before_history", problem(0, "before_history", "").Type
		return nil, p
	}
	return then, nil
}

// decide appends the answer to one check. now is the database's instant of the reading.
func (a accessRoutes) decide(body []byte, q check, holdings []subscription.Holding, now time.Time) []byte {
	at := now
	if !q.At.IsZero() {
		at = q.At
	}
	d := subscription.Decide(holdings, subscription.Ask{Feature: q.Feature, Plan: q.Plan}, at)
	a.metrics.Access(d.Reason)
	return appendAnswer(body, q, d, at)
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
	// The same text as by instantLayout, in a third of the time: package time knows this layout.
	return append(at.UTC().Truncate(time.Microsecond).AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

const instantLayout = "2006-01-02T15:04:05.999999Z07:00"
