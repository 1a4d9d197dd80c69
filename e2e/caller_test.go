package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/client"
	"termkeeper/internal/simulator"
)

// caller speaks to an API as a product and as Stripe do.
type caller struct {
	url, key, secret string
	http             *http.Client
}

// answer is what came back. An answer of another kind than 2xx has a problem's code.
type answer struct {
	status     int
	retryAfter string
	closes     bool // it says that its connection is closed
	body       []byte
}

func (a answer) decode(t *testing.T, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(a.body, into), "%s", a.body)
}

func (c caller) do(request *http.Request) (answer, error) {
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header.Get("Retry-After"), response.Close, body}, err
}

// call calls the API. A body is sent as JSON, nil is none.
func (c caller) call(ctx context.Context, method, path string, body any) (answer, error) {
	content := &bytes.Buffer{}
	if body != nil {
		if err := json.NewEncoder(content).Encode(body); err != nil {
			return answer{}, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return c.do(request)
}

// tooBusy reports whether the API says that the database did not answer in time. An access check has half a second,
// which a busy machine may take for itself; whoever asked asks again.
func (a answer) tooBusy() bool {
	return a.status == http.StatusServiceUnavailable && bytes.Contains(a.body, []byte(`"code":"database_unavailable"`))
}

// want calls the API and demands a status.
func (c caller) want(t *testing.T, status int, method, path string, body any) answer {
	t.Helper()
	var a answer
	await(t, method+" "+path, func() (err error) {
		a, err = c.call(t.Context(), method, path, body)
		require.NoError(t, err, "%s %s", method, path)
		if a.tooBusy() && status != a.status {
			err = errors.New("the database did not answer in time")
		}
		return err
	})
	require.Equal(t, status, a.status, "%s %s: %s", method, path, a.body)
	return a
}

// access is the answer to an access check.
type access struct {
	Allowed        bool      `json:"allowed"`
	Reason         string    `json:"reason"`
	SubscriptionID string    `json:"subscription_id"`
	Status         string    `json:"status"`
	DecidedAt      time.Time `json:"decided_at"`
}

func accessPath(user, feature string, at time.Time) string {
	query := url.Values{"user_id": {user}}
	if feature != "" {
		query.Set("feature", feature)
	}
	if !at.IsZero() {
		query.Set("at", at.UTC().Format(time.RFC3339Nano))
	}
	return "/v1/access?" + query.Encode()
}

// tryAccess asks whether a user has the feature "images" now.
func (c caller) tryAccess(ctx context.Context, user string) (access, answer, error) {
	var said access
	a, err := c.call(ctx, http.MethodGet, accessPath(user, "images", time.Time{}), nil)
	if err == nil && a.status == http.StatusOK {
		err = json.Unmarshal(a.body, &said)
	}
	return said, a, err
}

// product is the client of a product written in Go.
func (c caller) product() *client.Client { return client.New(c.url, c.key, c.http) }

// mustAnswer calls until the API has an answer, as want does, and demands that it is a good one.
func mustAnswer[T any](t *testing.T, what string, call func() (*T, error)) *T {
	t.Helper()
	var answer *T
	await(t, what, func() (err error) {
		answer, err = call()
		if !client.Is(err, client.ProblemCodeDatabaseUnavailable) {
			require.NoError(t, err, what)
		}
		return err
	})
	return answer
}

// access asks the same and demands an answer. The zero time asks for now.
func (c caller) access(t *testing.T, user string, at time.Time) access {
	t.Helper()
	params := client.CheckAccessParams{UserID: user, Feature: new("images")}
	if !at.IsZero() {
		params.At = &at
	}
	said := mustAnswer(t, "access of "+user, func() (*client.Access, error) { return c.product().CheckAccess(t.Context(), params) })
	return access{
		Allowed: said.Allowed, Reason: string(said.Reason), SubscriptionID: orZero(said.SubscriptionID), Status: string(orZero(said.Status)), DecidedAt: said.DecidedAt,
	}
}

func orZero[T any](v *T) (value T) {
	if v != nil {
		value = *v
	}
	return value
}

// subscription is a subscription as the API shows it.
type subscription struct {
	ID                string     `json:"id"`
	UserID            string     `json:"user_id"`
	Status            string     `json:"status"`
	ExpiresAt         *time.Time `json:"expires_at"`
	LeewayUntil       *time.Time `json:"leeway_until"`
	GracePeriodEndsAt *time.Time `json:"grace_period_ends_at"`
	AccessUntil       *time.Time `json:"access_until"`
	ExpiredAt         *time.Time `json:"expired_at"`
	ExternalID        string     `json:"external_id"`
	Version           int        `json:"version"`
}

func subscriptionOf(s client.Subscription) subscription {
	return subscription{
		ID: s.ID, UserID: s.UserID, Status: string(s.Status), ExpiresAt: s.ExpiresAt, LeewayUntil: s.LeewayUntil, GracePeriodEndsAt: s.GracePeriodEndsAt,
		AccessUntil: s.AccessUntil, ExpiredAt: s.ExpiredAt, ExternalID: orZero(s.ExternalID), Version: int(s.Version),
	}
}

// subscribe makes a subscription of ours to the plan "pro".
func (c caller) subscribe(t *testing.T, user string, ends time.Time) subscription {
	t.Helper()
	request := client.SubscriptionRequest{UserID: user, Plan: "pro", ExpiresAt: &ends}
	once := client.IdempotencyKey(simulator.NewID("once")) // the answer may be lost, the subscription must not be made twice
	return subscriptionOf(*mustAnswer(t, "subscription of "+user, func() (*client.Subscription, error) {
		return c.product().CreateSubscription(t.Context(), request, once)
	}))
}

// subscriptionsOf lists what a user has.
func (c caller) subscriptionsOf(t *testing.T, user string) []subscription {
	t.Helper()
	page := mustAnswer(t, "subscriptions of "+user, func() (*client.SubscriptionPage, error) {
		return c.product().ListSubscriptions(t.Context(), client.ListSubscriptionsParams{UserID: &user})
	})
	var list []subscription
	for _, one := range page.Data {
		list = append(list, subscriptionOf(one))
	}
	return list
}

// only is the one subscription of a user.
func (c caller) only(t *testing.T, user string) subscription {
	t.Helper()
	list := c.subscriptionsOf(t, user)
	require.Len(t, list, 1, user)
	return list[0]
}

// history lists the types of the entries of a subscription's history, oldest first.
func (c caller) history(t *testing.T, id string) []string {
	t.Helper()
	page := mustAnswer(t, "history of "+id, func() (*client.HistoryPage, error) {
		return c.product().ListSubscriptionHistory(t.Context(), id, client.ListSubscriptionHistoryParams{})
	})
	var types []string
	for _, entry := range page.Data {
		types = append(types, string(entry.EventType))
	}
	return types
}

// receipt is what Stripe gets for an event.
type receipt struct {
	Received  bool `json:"received"`
	Duplicate bool `json:"duplicate"`
}

// event is a signed event to be sent, any number of times.
type event struct {
	id   string
	body []byte
}

// The types of events about subscriptions.
const (
	created = "customer.subscription.created"
	updated = "customer.subscription.updated"
	deleted = "customer.subscription.deleted"
)

// stripeEvent writes an event about a subscription to the plan "pro".
func stripeEvent(shape simulator.Shape, eventType string, at time.Time, about simulator.SubscriptionFixture) event {
	id := simulator.NewID("evt")
	if about.PriceID == "" {
		about.PriceID = "price_pro"
	}
	if about.CustomerID == "" {
		about.CustomerID = "cus_" + about.ID
	}
	return event{id, simulator.EventBody(shape, id, eventType, at, about)}
}

// trySend delivers an event as Stripe does.
func (c caller) trySend(ctx context.Context, e event) (receipt, answer, error) {
	var got receipt
	request, err := simulator.SignedRequest(ctx, c.url+"/v1/webhooks/stripe", e.body, c.secret, time.Now())
	if err != nil {
		return got, answer{}, err
	}
	a, err := c.do(request)
	if err == nil && a.status == http.StatusOK {
		err = json.Unmarshal(a.body, &got)
	}
	return got, a, err
}

// send delivers an event that must be taken.
func (c caller) send(t *testing.T, e event) receipt {
	t.Helper()
	got, a, err := c.trySend(t.Context(), e)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.True(t, got.Received)
	return got
}

// webhookEvent is a stored event as the API shows it.
type webhookEvent struct {
	ExternalID string  `json:"external_event_id"`
	Status     string  `json:"status"`
	Reason     *string `json:"reason"`
	Attempts   int     `json:"attempts"`
}

// awaitEvent waits until a stored event is finished.
func (s *system) awaitEvent(t *testing.T, e event) webhookEvent {
	t.Helper()
	var stored webhookEvent
	await(t, "event "+e.id+" is finished", func() error {
		err := s.pool.QueryRow(t.Context(), `SELECT external_event_id, status, reason, attempts FROM payment_webhook_events WHERE external_event_id = $1`, e.id).
			Scan(&stored.ExternalID, &stored.Status, &stored.Reason, &stored.Attempts)
		if err == nil && stored.Status == "pending" {
			err = fmt.Errorf("it is %s", stored.Status)
		}
		return err
	})
	return stored
}
