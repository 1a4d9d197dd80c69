package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"termkeeper/client"
)

// Ask whether a user may use a feature, sell a month of it if not, and tell a refusal from an outage.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // stands for `termkeeper dev`
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"allowed":false,"reason":"no_subscription","user_id":"u_1","decided_at":"2026-11-30T12:00:00Z"}`)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"type":"urn:termkeeper:problem:invalid_request","status":400,"code":"invalid_request","detail":"/plan names no plan","errors":[{"pointer":"/plan","detail":"names no plan"}]}`)
	}))
	defer server.Close()
	ctx := context.Background()
	terms := client.New(server.URL, "tk_…", &http.Client{Timeout: 2 * time.Second})

	access, err := terms.CheckAccess(ctx, client.CheckAccessParams{UserID: "u_1", Feature: new("images")})
	if err != nil {
		panic(err) // nothing is known: neither yes nor no
	}
	fmt.Println(access.Allowed, access.Reason)

	_, err = terms.CreateSubscription(ctx, client.SubscriptionRequest{UserID: "u_1", Plan: "pro", Duration: new("720h")}, client.IdempotencyKey("order-17"))
	var problem *client.Problem
	if errors.As(err, &problem) {
		fmt.Println(problem.Code, problem.Errors[0].Pointer)
	}
	// Output:
	// false no_subscription
	// invalid_request /plan
}
