package simulator

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// control is what Stripe does not have: the endpoints under /_sim/ by which tests and people steer the simulator.
func (s *Simulator) control(mux *http.ServeMux) {
	s.controlMoney(mux)
	mux.HandleFunc("GET /_sim/clock", func(w http.ResponseWriter, _ *http.Request) { s.tellClock(w, s.Now()) })
	mux.HandleFunc("POST /_sim/clock", s.postClock)
	mux.HandleFunc("POST /_sim/webhook-endpoint", s.postEndpoint)
	mux.HandleFunc("POST /_sim/faults", s.postFault)
	mux.HandleFunc("DELETE /_sim/rest-faults", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearRESTFaults()
		writeJSON(w, found(map[string]any{}))
	})
	mux.HandleFunc("GET /_sim/calls", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, found(map[string]any{"data": s.Calls()}))
	})
	mux.HandleFunc("POST /_sim/thin-events", s.postThinEvent)
	mux.HandleFunc("POST /_sim/checkout-sessions/{id}/complete", s.postCompletion)
	mux.HandleFunc("GET /_sim/deliveries", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, found(map[string]any{"data": s.Deliveries()}))
	})
	mux.HandleFunc("POST /_sim/events/{id}/resend", s.postResend)
	mux.HandleFunc("POST /_sim/subscriptions", s.postSubscriptions)
	mux.HandleFunc("POST /_sim/subscriptions/{id}", s.postSubscription)
	mux.HandleFunc("DELETE /_sim/subscriptions/{id}", func(w http.ResponseWriter, r *http.Request) {
		if !s.RemoveSubscription(r.PathValue("id")) {
			writeJSON(w, missing("subscription", r.PathValue("id")))
			return
		}
		writeJSON(w, found(map[string]any{}))
	})
	mux.HandleFunc("POST /_sim/subscriptions/{id}/pause", func(w http.ResponseWriter, r *http.Request) {
		emptied(w, s.PauseSubscription(r.PathValue("id")))
	})
	mux.HandleFunc("POST /_sim/subscriptions/{id}/resume", func(w http.ResponseWriter, r *http.Request) {
		emptied(w, s.ResumeSubscription(r.PathValue("id")))
	})
}

func (s *Simulator) tellClock(w http.ResponseWriter, now time.Time) {
	writeJSON(w, found(map[string]any{"now": now.Format(time.RFC3339)}))
}

func (s *Simulator) postClock(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Advance string    `json:"advance"`
		Now     time.Time `json:"now"`
	}
	if !read(w, r, &in) {
		return
	}
	to := in.Now
	if in.Advance != "" {
		by, err := time.ParseDuration(in.Advance)
		if err != nil || by < 0 {
			badRequest(w, "advance is a duration such as 720h, and not negative")
			return
		}
		to = s.Now().Add(by)
	}
	s.tellClock(w, s.AdvanceTo(to))
}

func (s *Simulator) postEndpoint(w http.ResponseWriter, r *http.Request) {
	var in Endpoint
	if !read(w, r, &in) {
		return
	}
	if err := s.SetEndpoint(in); err != nil {
		badRequest(w, err.Error())
		return
	}
	writeJSON(w, found(map[string]any{}))
}

func (s *Simulator) postFault(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Fault
		By         string `json:"by"`
		Method     string `json:"method"`
		Path       string `json:"path"` // of the REST API; with it, or for a kind of the REST API, the fault is one of a call
		After      bool   `json:"after"`
		RetryAfter int    `json:"retry_after"` // seconds
	}
	if !read(w, r, &in) {
		return
	}
	if in.By != "" {
		by, err := time.ParseDuration(in.By)
		if err != nil {
			badRequest(w, "by is a duration such as 301s")
			return
		}
		in.Fault.By = by
	}
	var err error
	if in.Path != "" || slices.Contains(restKinds(), in.Kind) {
		err = s.AddRESTFault(RESTFault{
			Kind: in.Kind, Count: in.Count, Method: in.Method, Path: in.Path, After: in.After, RetryAfter: time.Duration(in.RetryAfter) * time.Second,
		})
	} else {
		err = s.AddFault(in.Fault)
	}
	if err != nil {
		badRequest(w, err.Error())
		return
	}
	writeJSON(w, found(map[string]any{}))
}

func (s *Simulator) postThinEvent(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Type     string `json:"type"`
		ObjectID string `json:"object_id"`
	}
	if !read(w, r, &in) {
		return
	}
	s.SendThinEvent(in.Type, in.ObjectID)
	writeJSON(w, found(map[string]any{}))
}

func (s *Simulator) postCompletion(w http.ResponseWriter, r *http.Request) {
	var in CheckoutCompletion
	if !read(w, r, &in) {
		return
	}
	done, ok := s.CompleteCheckout(r.PathValue("id"), in)
	if !ok {
		writeJSON(w, missing("open checkout.session", r.PathValue("id")))
		return
	}
	writeJSON(w, found(map[string]any{"customer": done.CustomerID, "subscription": done.SubscriptionID}))
}

func (s *Simulator) postResend(w http.ResponseWriter, r *http.Request) {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	e, ok := s.stripe.events.get(r.PathValue("id"))
	if !ok {
		writeJSON(w, missing("event", r.PathValue("id")))
		return
	}
	s.courier.take(e, false)
	writeJSON(w, found(map[string]any{}))
}

// postSubscriptions adds many subscriptions that nothing is told of.
func (s *Simulator) postSubscriptions(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Count  int    `json:"count"`
		Price  string `json:"price"`
		User   string `json:"user_prefix"` // metadata.user_id is this and a number, from 0; "" leaves it out
		Status string `json:"status"`
	}
	if !read(w, r, &in) {
		return
	}
	if in.Count < 1 || in.Count > maxBulk {
		badRequest(w, "count is 1 to 100000")
		return
	}
	fixtures := make([]SubscriptionFixture, in.Count)
	for n := range fixtures {
		fixtures[n] = SubscriptionFixture{PriceID: in.Price, Status: in.Status}
		if in.User != "" {
			fixtures[n].UserID = in.User + strconv.Itoa(n)
		}
	}
	added, err := s.AddSubscriptions(fixtures...)
	if err != nil {
		badRequest(w, err.Error())
		return
	}
	ids := make([]string, len(added))
	for n, f := range added {
		ids[n] = f.ID
	}
	writeJSON(w, found(map[string]any{"data": ids}))
}

// maxBulk is how many subscriptions one call adds at most.
const maxBulk = 100_000

func (s *Simulator) postSubscription(w http.ResponseWriter, r *http.Request) {
	var in SubscriptionChange
	if !read(w, r, &in) {
		return
	}
	if !s.ChangeSubscription(r.PathValue("id"), in) {
		writeJSON(w, missing("subscription", r.PathValue("id")))
		return
	}
	writeJSON(w, found(map[string]any{}))
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		badRequest(w, "the body cannot be read: "+err.Error())
		return false
	}
	return true
}

// emptied answers with nothing, or says why it could not be done.
func emptied(w http.ResponseWriter, err error) {
	if err != nil {
		badRequest(w, err.Error())
		return
	}
	writeJSON(w, found(map[string]any{}))
}

func badRequest(w http.ResponseWriter, message string) {
	writeJSON(w, refusal(http.StatusBadRequest, "", "", message))
}
