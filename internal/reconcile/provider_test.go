package reconcile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// sub is a subscription of the provider's, as a map that is written as JSON.
type sub map[string]any

func (s sub) id() string { return s["id"].(string) }

// told is an event of the provider's list.
type told struct {
	id, kind  string
	created   time.Time
	object    sub
	delivered bool
}

// provider stands in for the lists of Stripe's API. Its fields are changed only through do.
type provider struct {
	URL string

	mu     sync.Mutex
	subs   []sub  // newest first
	events []told // newest first
	calls  []string
	// fail answers in place of the list; false lets it answer.
	fail func(n int, path string, w http.ResponseWriter) bool
	// hide leaves subscriptions out of the list that can be fetched.
	hide map[string]bool
	// stale are listed as they were before.
	stale map[string]sub
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{hide: map[string]bool{}}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

func (p *provider) do(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// asked counts the calls whose path and query hold the text.
func (p *provider) asked(text string) (n int) {
	p.do(func() {
		for _, call := range p.calls {
			if strings.Contains(call, text) {
				n++
			}
		}
	})
	return n
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, r.URL.String())
	if p.fail != nil && p.fail(len(p.calls), r.URL.Path, w) {
		return
	}
	switch id, one := strings.CutPrefix(r.URL.Path, "/v1/subscriptions/"); {
	case one:
		i := slices.IndexFunc(p.subs, func(s sub) bool { return s.id() == id })
		if i < 0 {
			say(w, http.StatusNotFound, map[string]any{"error": map[string]any{"type": "invalid_request_error", "code": "resource_missing", "message": "No such subscription"}})
			return
		}
		say(w, http.StatusOK, p.subs[i])
	case r.URL.Path == "/v1/subscriptions":
		page(w, r, p.subs, sub.id, func(s sub) bool { return !p.hide[s.id()] }, func(s sub) any {
			if before, ok := p.stale[s.id()]; ok {
				return before
			}
			return s
		})
	case r.URL.Path == "/v1/events":
		from, _ := strconv.ParseInt(r.FormValue("created[gte]"), 10, 64)
		until, err := strconv.ParseInt(r.FormValue("created[lte]"), 10, 64)
		undelivered := r.FormValue("delivery_success") == "false"
		page(w, r, p.events, func(e told) string { return e.id }, func(e told) bool {
			return e.created.Unix() >= from && (err != nil || e.created.Unix() <= until) && (!undelivered || !e.delivered)
		}, func(e told) any {
			return map[string]any{
				"id": e.id, "object": "event", "type": e.kind, "api_version": "2023-10-16", "created": e.created.Unix(), "livemode": false,
				"data": map[string]any{"object": e.object},
			}
		})
	default:
		say(w, http.StatusNotFound, map[string]any{})
	}
}

func page[T any](w http.ResponseWriter, r *http.Request, all []T, id func(T) string, fits func(T) bool, show func(T) any) {
	if r.FormValue("limit") != "100" {
		say(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": "limit"}})
		return
	}
	if after := r.FormValue("starting_after"); after != "" {
		i := slices.IndexFunc(all, func(one T) bool { return id(one) == after })
		if i < 0 {
			say(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"type": "invalid_request_error", "code": "resource_missing", "message": "No such object"}})
			return
		}
		all = all[i+1:]
	}
	data, more := []any{}, false
	for _, one := range all {
		if !fits(one) {
			continue
		}
		if len(data) == 100 {
			more = true
			break
		}
		data = append(data, show(one))
	}
	say(w, http.StatusOK, map[string]any{"object": "list", "url": r.URL.Path, "has_more": more, "data": data})
}

func say(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// active is a subscription of the n-th user that is paid until a day from now, less a second for each.
func active(n int) sub {
	start := time.Now().UTC().Truncate(time.Second).AddDate(0, 0, -29).Add(-time.Duration(n) * time.Second)
	id := fmt.Sprintf("sub_%05d", n)
	return sub{
		"id": id, "object": "subscription", "status": "active", "customer": map[string]any{"id": fmt.Sprintf("cus_%05d", n), "object": "customer"},
		"metadata": map[string]any{"user_id": fmt.Sprintf("u_%05d", n)}, "start_date": start.Unix(), "cancel_at_period_end": false, "cancel_at": nil,
		"ended_at": nil, "current_period_start": start.Unix(), "current_period_end": start.AddDate(0, 0, 30).Unix(),
		"items":          map[string]any{"object": "list", "data": []any{map[string]any{"id": "si_" + id, "price": map[string]any{"id": "price_pro"}}}},
		"latest_invoice": map[string]any{"id": "in_" + id, "object": "invoice", "status": "paid", "billing_reason": "subscription_create"},
	}
}

// with is a copy with other fields.
func (s sub) with(fields sub) sub {
	changed := maps.Clone(s)
	maps.Copy(changed, fields)
	return changed
}

func (s sub) seconds(field string) time.Time { return time.Unix(s[field].(int64), 0).UTC() }

func encoded(tb testing.TB, body any) []byte {
	tb.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}
