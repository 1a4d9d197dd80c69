package simulator

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The ways in which a call of the REST API can go wrong.
const (
	Status500 = "status_500" // a fault; Stripe keeps it for the Idempotency-Key and repeats it
	Status429 = "status_429" // too many requests, with Retry-After
	Status401 = "status_401" // the key is not accepted
	Status402 = "status_402" // the card is declined
	Status404 = "status_404" // the object is not known, though it is there
	Status409 = "status_409" // another request holds the object
	Hang      = "hang"       // no answer until the caller gives up
	HTML      = "html"       // 200 with a page of somebody in between
	Truncated = "truncated"  // 200 with the first half of the object; whatever was asked for has happened
	Reset     = "reset"      // the connection is reset
)

// RESTFault is one way for calls to go wrong, for the next Count calls that fit.
type RESTFault struct {
	Kind   string
	Count  int    // 0 is one; a negative one lasts until ClearRESTFaults
	Method string // "" is any
	Path   string // a prefix, such as /v1/subscriptions; "" is any
	// After: what was asked for happens, and only its answer is lost. A later call with the same Idempotency-Key gets that
	// answer; after Status500 it gets the fault again.
	After      bool
	RetryAfter time.Duration // of Status429, in whole seconds; 0 is 1 s
}

// Call is one request of the REST API that came in.
type Call struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   string `json:"body"` // form-encoded, its names in order
	Key    string `json:"key"`  // Idempotency-Key
}

const maxCalls = 10_000 // that are remembered

// keyKept is how long an Idempotency-Key is remembered. Stripe promises no longer: the same call makes it anew then.
const keyKept = 24 * time.Hour

// kept is the answer to an Idempotency-Key.
type kept struct {
	request string
	status  int
	raw     []byte
	since   time.Time
}

func restKinds() []string {
	return []string{Status500, Status429, Status401, Status402, Status404, Status409, Hang, HTML, Truncated, Reset}
}

func (s *stripe) addRESTFault(f RESTFault) error {
	if !slices.Contains(restKinds(), f.Kind) {
		return fmt.Errorf("unknown fault of the REST API: it is one of %v", restKinds())
	}
	if f.After && strings.HasPrefix(f.Kind, "status_4") {
		return fmt.Errorf("%s refuses what was asked for, so it does not come after it", f.Kind)
	}
	if f.Count == 0 {
		f.Count = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restFaults = append(s.restFaults, f)
	return nil
}

// takeFault is the oldest fault that fits the call.
func (s *stripe) takeFault(c Call) (RESTFault, bool) {
	for i := range s.restFaults {
		f := &s.restFaults[i]
		if f.Method != "" && f.Method != c.Method || !strings.HasPrefix(c.Path, f.Path) {
			continue
		}
		taken := *f
		if f.Count--; f.Count == 0 {
			s.restFaults = slices.Delete(s.restFaults, i, i+1)
		}
		return taken, true
	}
	return RESTFault{}, false
}

// serve answers one call of the REST API.
func (s *stripe) serve(w http.ResponseWriter, r *http.Request, handle func(form, string) answer) {
	w.Header().Set("Request-Id", NewID("req"))
	user, _, _ := r.BasicAuth()
	if user == "" && strings.TrimSpace(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) == "" {
		writeJSON(w, refusal(http.StatusUnauthorized, "", "", "You did not provide an API key."))
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	if err := r.ParseForm(); err != nil {
		writeJSON(w, refusal(http.StatusBadRequest, "", "", "Invalid request body."))
		return
	}
	call := Call{Method: r.Method, Path: r.URL.Path, Body: r.Form.Encode(), Key: r.Header.Get("Idempotency-Key")}
	said, repeated, fault := s.answer(call, func() answer { return handle(form(r.Form), r.PathValue("id")) })
	// The provider's Date is what tells how new a fetched object is.
	w.Header().Set("Date", said.date.Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	if call.Key != "" {
		w.Header().Set("Idempotency-Key", call.Key)
	}
	if repeated {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	switch fault.Kind {
	case Hang:
		select {
		case <-r.Context().Done():
		case <-s.closing:
		}
		return
	case Reset:
		reset(w)
		return
	case HTML:
		w.Header().Set("Content-Type", "text/html")
		said.status, said.raw = http.StatusOK, []byte("<!doctype html><title>Welcome</title><p>Please log in to this network.")
	case Truncated:
		said.raw = said.raw[:len(said.raw)/2]
	case Status429:
		w.Header().Set("Retry-After", strconv.Itoa(int(max(fault.RetryAfter, time.Second)/time.Second)))
	}
	w.WriteHeader(said.status)
	_, _ = w.Write(said.raw)
}

// spoken is an answer as bytes, with the second in which it was given.
type spoken struct {
	kept
	date time.Time
}

// answer works out what is said to a call, and how the saying of it goes wrong.
func (s *stripe) answer(call Call, handle func() answer) (said spoken, repeated bool, fault RESTFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	if len(s.calls) > maxCalls {
		s.calls = slices.Delete(s.calls, 0, len(s.calls)-maxCalls)
	}
	s.settle(s.now())
	if call.Method != http.MethodGet {
		s.quietUntil = time.Time{}
	}
	say := func(a answer) spoken {
		return spoken{kept{request: call.Method + " " + call.Path + " " + call.Body, status: a.status, raw: encode(a.body), since: s.now()}, s.now()}
	}
	fault, faulty := s.takeFault(call)
	keyed := call.Key != "" && call.Method == http.MethodPost // Stripe takes no notice of a key elsewhere
	before, known := s.kept[call.Key]
	known = known && s.now().Sub(before.since) <= keyKept
	switch {
	case faulty && !fault.After && fault.Kind != Truncated:
		said = say(fault.answer())
		keyed = keyed && fault.Kind == Status500 && !known
	case keyed && known && before.request != say(answer{}).request:
		return say(misusedKey()), false, fault
	case keyed && known:
		return spoken{before, s.now()}, true, fault
	default:
		said = say(handle())
		if fault.Kind == Status500 {
			said = say(fault.answer())
		}
	}
	if keyed {
		s.kept[call.Key] = said.kept
	}
	return said, false, fault
}

// answer is what Stripe says in place of what was asked for.
func (f RESTFault) answer() answer {
	failure := func(status int, kind, code, message string) answer {
		return answer{status, map[string]any{"error": map[string]any{"type": kind, "code": text(code), "message": message}}}
	}
	switch f.Kind {
	case Status402:
		return failure(http.StatusPaymentRequired, "card_error", "card_declined", "Your card was declined.")
	case Status404:
		return failure(http.StatusNotFound, "invalid_request_error", "resource_missing", "No such object.")
	case Status409:
		return failure(http.StatusConflict, "invalid_request_error", "lock_timeout", "This object cannot be accessed right now because another API request or Stripe process is currently accessing it.")
	case Status429:
		return failure(http.StatusTooManyRequests, "rate_limit_error", "rate_limit", "Too many requests hit the API too quickly.")
	case Status401:
		return failure(http.StatusUnauthorized, "invalid_request_error", "", "Invalid API Key provided: sk_test_****.")
	default:
		return failure(http.StatusInternalServerError, "api_error", "", "An unknown error occurred.")
	}
}

func misusedKey() answer {
	return answer{http.StatusBadRequest, map[string]any{"error": map[string]any{
		"type": "idempotency_error", "code": nil,
		"message": "Keys for idempotent requests can only be used with the same parameters they were first used with.",
	}}}
}

// reset closes the connection so that the caller's system says that it was reset.
func reset(w http.ResponseWriter) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the connection ends in another way
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}
