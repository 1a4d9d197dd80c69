package api

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/client"
)

// calls is the generated client on a served system, with the key of a role.
func (s *system) calls(t *testing.T, as role) *client.Client {
	t.Helper()
	server := httptest.NewServer(s.server.http.Handler)
	t.Cleanup(server.Close)
	return client.New(server.URL, s.keys[as], server.Client())
}

// patiently asks again while a busy machine lets the API run out of its time, see ask.
func patiently[T any](t *testing.T, call func() (*T, error)) *T {
	t.Helper()
	var answer *T
	require.Eventually(t, func() (done bool) {
		var err error
		answer, err = call()
		if client.Is(err, client.ProblemCodeDatabaseUnavailable) {
			return false
		}
		require.NoError(t, err)
		return true
	}, 20*time.Second, time.Millisecond)
	return answer
}

// TestAProductUsesTheClient goes through the life of a subscription as a product written in Go does.
func TestAProductUsesTheClient(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	shop, ctx := s.calls(t, roleAdmin), t.Context()
	plan := patiently(t, func() (*client.Plan, error) {
		return shop.CreatePlan(ctx, client.PlanRequest{Key: "pro", Features: &[]string{"images"}, Price: &client.Price{Amount: 1900, Currency: "USD"}, Duration: new("720h")}, client.IdempotencyKey("plan"))
	})
	require.Equal(t, []string{"images"}, plan.Features)
	require.Equal(t, "720h", *plan.Duration)
	user := patiently(t, func() (*client.User, error) {
		return shop.PutUser(ctx, "u/1 ä", client.UserRequest{Locale: new("zh-CN")})
	})
	require.Equal(t, "u/1 ä", user.ID)
	ends := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Microsecond)
	made := patiently(t, func() (*client.Subscription, error) {
		return shop.CreateSubscription(ctx, client.SubscriptionRequest{UserID: user.ID, Plan: "pro", ExpiresAt: &ends}, client.IdempotencyKey("once"))
	})
	again := patiently(t, func() (*client.Subscription, error) {
		return shop.CreateSubscription(ctx, client.SubscriptionRequest{UserID: user.ID, Plan: "pro", ExpiresAt: &ends}, client.IdempotencyKey("once"))
	})
	require.Equal(t, made, again, "it is made once")
	require.Equal(t, ends, *made.ExpiresAt, "to the microsecond")

	gate := s.calls(t, roleAccess)
	access := func(at *time.Time) *client.Access {
		return patiently(t, func() (*client.Access, error) {
			return gate.CheckAccess(ctx, client.CheckAccessParams{UserID: user.ID, Feature: new("images"), At: at})
		})
	}
	said := access(nil)
	require.True(t, said.Allowed)
	require.Equal(t, client.AccessReasonActive, said.Reason)
	require.Equal(t, made.ID, *said.SubscriptionID)
	require.Equal(t, ends, *said.NextChangeAt)
	require.False(t, access(&ends).Allowed)
	require.True(t, access(new(ends.Add(-time.Microsecond))).Allowed)
	batch := patiently(t, func() (*client.AccessBatch, error) {
		return gate.CheckAccessBatch(ctx, client.AccessBatchRequest{Checks: []client.AccessCheck{{UserID: user.ID}, {UserID: "nobody"}}})
	})
	require.True(t, batch.Results[0].Allowed)
	require.Equal(t, client.AccessReasonNoSubscription, batch.Results[1].Reason)

	extended := patiently(t, func() (*client.Subscription, error) {
		return shop.ExtendSubscription(ctx, made.ID, client.ExtendRequest{Duration: "1h"}, client.IdempotencyKey("more"))
	})
	require.Equal(t, ends.Add(time.Hour), *extended.ExpiresAt)
	canceled := patiently(t, func() (*client.Subscription, error) {
		return shop.CancelSubscription(ctx, made.ID, client.CancelRequest{AtPeriodEnd: new(true)}, client.IdempotencyKey("end"))
	})
	require.True(t, canceled.CancelAtPeriodEnd)
	entries := patiently(t, func() (*client.HistoryPage, error) {
		return shop.ListSubscriptionHistory(ctx, made.ID, client.ListSubscriptionHistoryParams{Limit: new(1)})
	})
	require.Equal(t, client.HistoryEventTypeCreated, entries.Data[0].EventType)
	entries = patiently(t, func() (*client.HistoryPage, error) {
		return shop.ListSubscriptionHistory(ctx, made.ID, client.ListSubscriptionHistoryParams{Cursor: entries.NextCursor})
	})
	require.Equal(t, client.HistoryEventTypeExtended, entries.Data[0].EventType)

	now := time.Now()
	body := subscriptionEvent("evt_1", "u_2", now)
	receipt := patiently(t, func() (*client.Receipt, error) {
		return gate.ReceiveStripeEvent(ctx, client.ReceiveStripeEventParams{StripeSignature: signature(secretNew, now, body)}, json.RawMessage(body))
	})
	require.True(t, receipt.Received)
	events := patiently(t, func() (*client.WebhookEventPage, error) {
		return shop.ListWebhookEvents(ctx, client.ListWebhookEventsParams{ExternalEventID: new("evt_1")})
	})
	require.Len(t, events.Data, 1)
	event := patiently(t, func() (*client.WebhookEvent, error) { return shop.ReadWebhookEvent(ctx, events.Data[0].ID) })
	require.JSONEq(t, body, string(event.Payload))

	_, err := gate.ListPlans(ctx, client.ListPlansParams{})
	require.True(t, client.Is(err, client.ProblemCodeForbidden), "%v", err)
	_, err = shop.ReadSubscription(ctx, goldenID)
	require.True(t, client.Is(err, client.ProblemCodeNotFound), "%v", err)
}
