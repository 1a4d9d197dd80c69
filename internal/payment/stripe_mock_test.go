package payment_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
)

// stripeMock builds and starts Stripe's own stripe-mock, which checks requests against Stripe's description of its API. It
// keeps no state and answers in the newest shape, so what it answers proves nothing.
func stripeMock(t *testing.T) *url.URL {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "stripe-mock")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../../tools/stripemock", "-o", binary, "tool")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "building stripe-mock: %s", said)

	address, other := freeAddress(t), freeAddress(t)
	ctx, stop := context.WithCancel(context.Background())
	mock := exec.CommandContext(ctx, binary, "-http-addr", address, "-https-addr", other)
	require.NoError(t, mock.Start())
	t.Cleanup(func() {
		stop()
		_ = mock.Wait() // it was killed
	})
	require.Eventually(t, func() bool {
		connection, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	}, 30*time.Second, 20*time.Millisecond, "stripe-mock does not listen")
	return &url.URL{Scheme: "http", Host: address}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

// front stands before stripe-mock and sees what that says to each request.
type front struct {
	mu   sync.Mutex
	said []string // method, path and status
}

// take also lets the provider know a subscription that an instant ends, which stripe-mock has none of.
func (f *front) take(r *http.Response) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	said := r.Request.Method + " " + r.Request.URL.Path + " " + strconv.Itoa(r.StatusCode)
	if r.StatusCode >= http.StatusMultipleChoices {
		said += " " + string(body)
	} else if said == "GET /v1/subscriptions/sub_instant 200" {
		body = simulator.SubscriptionFixture{ID: "sub_instant", CustomerID: "cus_1", PeriodStart: created, PeriodEnd: created.Add(time.Hour), CancelAt: created.Add(time.Minute)}.JSON(simulator.Shape2023)
	}
	f.said = append(f.said, said)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

// mockedCalls has every method of the client that sends something, and the last request that it sends. What it makes of the
// answer is not looked at. A name may have a variant after a space.
var mockedCalls = map[string]struct {
	last string
	call func(context.Context, *payment.Client) error
}{
	"Subscription": {"GET /v1/subscriptions/sub_1", func(ctx context.Context, c *payment.Client) error {
		_, _, err := c.Subscription(ctx, "sub_1")
		return err
	}},
	"CancelNow": {"DELETE /v1/subscriptions/sub_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.CancelNow(ctx, "sub_1", "k1")
		return err
	}},
	"CancelAtPeriodEnd": {"POST /v1/subscriptions/sub_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.CancelAtPeriodEnd(ctx, "sub_1", "k2")
		return err
	}},
	"Uncancel": {"POST /v1/subscriptions/sub_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Uncancel(ctx, "sub_1", "k3")
		return err
	}},
	"Uncancel an instant": {"POST /v1/subscriptions/sub_instant", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Uncancel(ctx, "sub_instant", "k3")
		return err
	}},
	"ChangePrice": {"POST /v1/subscriptions/sub_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.ChangePrice(ctx, "sub_1", "price_1", "k4")
		return err
	}},
	"ChangePriceAtRenewal": {"POST /v1/subscriptions/sub_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.ChangePriceAtRenewal(ctx, "sub_1", "price_1", "k5")
		return err
	}},
	"CreateCheckout": {"POST /v1/checkout/sessions", orderCalls["create"]},
	"Checkout":       {"GET /v1/checkout/sessions/cs_1", orderCalls["fetch"]},
	"FindCheckout":   {"GET /v1/checkout/sessions", orderCalls["find"]},
	"ExpireCheckout": {"POST /v1/checkout/sessions/cs_1/expire", orderCalls["expire"]},
	"OrderPayments":  {"GET /v1/payment_intents", orderCalls["payments"]},
	"Refund":         {"POST /v1/refunds", orderCalls["refund"]},
	"Refund all of it": {"POST /v1/refunds", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Refund(ctx, "pi_1", 0, "k8")
		return err
	}},
	"Refunds": {"GET /v1/refunds", orderCalls["refunds"]},
	"Payment": {"GET /v1/payment_intents/pi_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Payment(ctx, "pi_1")
		return err
	}},
	"Charge": {"GET /v1/charges/ch_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Charge(ctx, "ch_1")
		return err
	}},
	"Invoice": {"GET /v1/invoices/in_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Invoice(ctx, "in_1")
		return err
	}},
	"Dispute": {"GET /v1/disputes/dp_1", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Dispute(ctx, "dp_1")
		return err
	}},
	"Subscriptions": {"GET /v1/subscriptions", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Subscriptions(ctx, "sub_1")
		return err
	}},
	"Events of all time": {"GET /v1/events", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Events(ctx, payment.EventQuery{})
		return err
	}},
	"Events": {"GET /v1/events", func(ctx context.Context, c *payment.Client) error {
		_, err := c.Events(ctx, payment.EventQuery{From: created, Until: created, Undelivered: true, After: "evt_1"})
		return err
	}},
}

// TestRequestsAreWellFormed sends every kind of request to stripe-mock, which refuses what Stripe would not understand.
func TestRequestsAreWellFormed(t *testing.T) {
	t.Parallel()
	client := reflect.TypeFor[*payment.Client]()
	for i := range client.NumMethod() {
		if name := client.Method(i).Name; name != "Close" {
			require.Contains(t, mockedCalls, name, "every method of the client is tried")
		}
	}
	mock := stripeMock(t)

	wrong, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mock.JoinPath("v1/refunds").String(), strings.NewReader("payment_intents=pi_1"))
	require.NoError(t, err)
	wrong.Header.Set("Authorization", "Bearer sk_test_123")
	wrong.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	refused, err := transport.RoundTrip(wrong)
	require.NoError(t, err)
	require.NoError(t, refused.Body.Close())
	require.Equal(t, http.StatusBadRequest, refused.StatusCode, "it knows what Stripe does not understand")

	for name, tried := range mockedCalls {
		t.Run(name, func(t *testing.T) {
			seen := &front{}
			server := httptest.NewServer(&httputil.ReverseProxy{
				Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(mock) }, Transport: transport, ModifyResponse: seen.take,
			})
			t.Cleanup(server.Close)
			c := payment.NewClient(secret.NewText("sk_test_123"), server.URL)
			t.Cleanup(c.Close)
			err := tried.call(t.Context(), c)
			require.NotEmpty(t, seen.said, "%v", err)
			require.Equal(t, tried.last+" 200", seen.said[len(seen.said)-1])
		})
	}
}
