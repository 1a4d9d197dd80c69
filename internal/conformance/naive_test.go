package conformance_test

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// naive is an instance that is wrong on purpose: it believes each event when it comes, in the order of delivery, and has one
// row for each customer.
type naive struct {
	leeway time.Duration
	// status answers a delivery of this type with status, where that is set.
	refuses string
	status  int

	mu     sync.Mutex
	rows   map[string]*naiveRow // by customer
	owners map[string]string    // customers, by user
}

type naiveRow struct {
	plan, status string
	end          time.Time
	ends         bool
	grace        time.Time
}

func (n *naive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch r.URL.Path {
	case "/v1/webhooks/stripe":
		n.take(w, r)
	case "/v1/access":
		n.answer(w, r.URL.Query().Get("user_id"))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (n *naive) take(w http.ResponseWriter, r *http.Request) {
	var e struct {
		Type string
		Data struct {
			Object struct {
				ID, Object, Status, Customer string
				Reference                    string `json:"client_reference_id"`
				Metadata                     struct {
					User string `json:"user_id"`
				}
				Ends    bool  `json:"cancel_at_period_end"`
				EndedAt int64 `json:"ended_at"`
				Start   int64 `json:"current_period_start"`
				End     int64 `json:"current_period_end"`
				Items   struct {
					Data []struct {
						Start int64 `json:"current_period_start"`
						End   int64 `json:"current_period_end"`
						Price struct{ ID string }
					}
				}
			}
		}
	}
	if json.NewDecoder(r.Body).Decode(&e) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if n.refuses == e.Type {
		w.WriteHeader(n.status)
		return
	}
	o := e.Data.Object
	switch {
	case o.Object == "checkout.session":
		n.owners[o.Reference] = o.Customer
	case o.Object == "subscription" && o.Status != "incomplete":
		item := o.Items.Data[0]
		n.owners[o.Metadata.User] = o.Customer
		row := &naiveRow{plan: item.Price.ID, status: o.Status, ends: o.Ends, end: time.Unix(max(o.End, item.End), 0)}
		switch o.Status {
		case "canceled":
			row.end = time.Unix(o.EndedAt, 0)
		case "past_due":
			row.end = time.Unix(max(o.Start, item.Start), 0)
			row.grace = row.end.Add(72 * time.Hour)
		}
		if had := n.rows[o.Customer]; had != nil && had.status == "past_due" && o.Status == "past_due" {
			row.end, row.grace = had.end, had.grace
		}
		n.rows[o.Customer] = row
	}
}

func (n *naive) answer(w http.ResponseWriter, user string) {
	body := map[string]any{"allowed": false, "reason": "no_subscription"}
	if row := n.rows[n.owners[user]]; row != nil {
		until := row.end
		if row.status == "active" && !row.ends {
			until = until.Add(n.leeway)
		}
		if !row.grace.IsZero() {
			until = row.grace
		}
		now := time.Now()
		body = map[string]any{"allowed": now.Before(until) && row.status != "canceled", "plan": row.plan, "expires_at": row.end.UTC(), "access_until": until.UTC()}
		switch {
		case row.status == "canceled":
			body["reason"] = "canceled"
		case now.Before(row.end):
			body["reason"] = "active"
		case now.Before(row.grace):
			body["reason"] = "grace_period"
		default:
			body["reason"] = "expired"
		}
		if !row.grace.IsZero() {
			body["grace_period_ends_at"] = row.grace.UTC()
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
