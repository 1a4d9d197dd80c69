package client_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/client"
)

// taken is what a server got.
type taken struct {
	*http.Request
	body string
}

// serve answers every request the same and hands it over.
func serve(t *testing.T, status int, kind, body string) (*client.Client, <-chan taken) {
	t.Helper()
	requests := make(chan taken, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		requests <- taken{r, string(sent)}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return client.New(server.URL+"/", "tk_key", server.Client()), requests
}

const subscriptionBody = `{"id":"0198f2a4-7c00-7000-8000-000000000001","user_id":"u/1","plan":"pro","status":"active","expires_at":"2026-12-30T00:00:00.000001Z"}`

func TestInstantsKeepTheirMicroseconds(t *testing.T) {
	t.Parallel()
	c, requests := serve(t, http.StatusOK, "application/json", `{"allowed":true,"reason":"active","user_id":"u_1","access_until":"2026-12-30T00:00:00.123456Z","decided_at":"2026-11-30T12:00:00.000001Z"}`)
	at := time.Date(2026, 12, 1, 1, 0, 0, 1000, time.FixedZone("", 3600))
	said, err := c.CheckAccess(t.Context(), client.CheckAccessParams{UserID: "u & 1", Feature: new("images"), At: &at})
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 12, 30, 0, 0, 0, 123456000, time.UTC), *said.AccessUntil)
	require.Equal(t, 1000, said.DecidedAt.Nanosecond())
	require.Nil(t, said.NextChangeAt)
	r := <-requests
	require.Equal(t, "at=2026-12-01T00%3A00%3A00.000001Z&feature=images&user_id=u+%26+1", r.URL.RawQuery)
	require.Equal(t, "Bearer tk_key", r.Header.Get("Authorization"))
	require.Empty(t, r.Header.Get("Content-Type"), "there is no body")
}

func TestAWriteCarriesItsBodyPathAndKey(t *testing.T) {
	t.Parallel()
	c, requests := serve(t, http.StatusOK, "application/json", `{"id":"u/1 ?","email":null}`)
	user, err := c.PutUser(t.Context(), "u/1 ?", client.UserRequest{Name: new("Ada")}, client.IdempotencyKey("once"), client.RequestID("trace-1"))
	require.NoError(t, err)
	require.Equal(t, "u/1 ?", user.ID)
	require.Nil(t, user.Email)
	r := <-requests
	require.Equal(t, "/v1/users/u%2F1%20%3F", r.URL.EscapedPath())
	require.JSONEq(t, `{"name":"Ada"}`, r.body)
	require.Equal(t, "once", r.Header.Get("Idempotency-Key"))
	require.Equal(t, "trace-1", r.Header.Get("X-Request-Id"))
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
}

// TestASignedBodyIsSentAsItIs: spaces and the order of fields are part of what is signed.
func TestASignedBodyIsSentAsItIs(t *testing.T) {
	t.Parallel()
	c, requests := serve(t, http.StatusOK, "application/json", `{"received":true,"duplicate":false}`)
	const signed = "{ \"type\": \"<x>\",\n\"id\":\"evt_1\" }"
	receipt, err := c.ReceiveStripeEvent(t.Context(), client.ReceiveStripeEventParams{StripeSignature: "t=1,v1=ab"}, json.RawMessage(signed))
	require.NoError(t, err)
	require.True(t, receipt.Received)
	r := <-requests
	require.Equal(t, signed, r.body) //nolint:testifylint // every byte counts, not only the meaning
	require.Equal(t, "t=1,v1=ab", r.Header.Get("Stripe-Signature"))
}

func TestErrorsAreProblems(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, http.StatusBadRequest, "application/problem+json",
		`{"type":"urn:termkeeper:problem:invalid_request","title":"Bad Request","status":400,"detail":"/duration is required","code":"invalid_request","request_id":"r_1","errors":[{"pointer":"/duration","detail":"is required"}]}`)
	_, err := c.ExtendSubscription(t.Context(), "s_1", client.ExtendRequest{})
	var problem *client.Problem
	require.ErrorAs(t, err, &problem)
	require.Equal(t, []client.FieldError{{Pointer: "/duration", Detail: "is required"}}, problem.Errors)
	require.True(t, client.Is(err, client.ProblemCodeNotFound, client.ProblemCodeInvalidRequest))
	require.False(t, client.Is(err, client.ProblemCodeConflict))
	require.EqualError(t, err, "POST /v1/subscriptions/s_1/extend: invalid_request: /duration is required (request r_1)")

	for kind, body := range map[string]string{"text/html": "<h1>502</h1>", "application/problem+json": "{", "application/json": "{}"} {
		c, _ := serve(t, http.StatusBadGateway, kind, body)
		_, err := c.ListPlans(t.Context(), client.ListPlansParams{})
		require.ErrorContains(t, err, "status 502", kind)
		require.NotErrorAs(t, err, &problem, kind)
	}
	c, _ = serve(t, http.StatusOK, "application/json", subscriptionBody[:50])
	_, err = c.ReadSubscription(t.Context(), "s_1")
	require.ErrorContains(t, err, "decoding the answer")
}
