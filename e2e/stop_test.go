package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/simulator"
)

// pair is two APIs behind a balancer that asks one of them whether it is ready. It sends every request to that one until
// it is not ready any more, or until it takes no connection.
type pair struct {
	first, second *apiProcess
	left          atomic.Bool // the first one takes nothing new
	stopping      atomic.Bool // it was told to stop
}

// do sends one request by the transport. What the first one has taken, it must answer: only a connection that it never
// took may be tried again elsewhere, and only after it was told to stop.
func (p *pair) do(transport *http.Transport, send func(caller) (answer, error)) error {
	for {
		to := p.first
		if p.left.Load() {
			to = p.second
		}
		a, err := send(caller{url: to.url, key: to.key, secret: to.secret, http: &http.Client{Transport: transport, Timeout: patience}})
		switch {
		case err != nil && to == p.first && p.stopping.Load() && refused(err):
			p.left.Store(true)
			continue
		case err != nil:
			return err
		case a.tooBusy():
			continue
		case a.status != http.StatusOK:
			return fmt.Errorf("answered with %d: %s", a.status, a.body)
		}
		return nil
	}
}

// watch asks for readiness until it is told no, and sends everybody to the second one then.
func (p *pair) watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ready(p.first.ops) == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.left.Store(true)
	return nil
}

// One of two APIs is told to stop while clients of every kind are at it. No request fails.
func TestAPIStopsUnderLoad(t *testing.T) {
	t.Parallel()
	s, apis := twoAPIs(t)
	apis[0].subscribe(t, "u_1", now().Add(day))
	p := &pair{first: apis[0], second: apis[1]}
	var requests, byTheSecond atomic.Int64
	var sent atomic.Int64
	stop := make(chan struct{})
	group, ctx := errgroup.WithContext(t.Context())
	serve := func(keepAlive bool, send func(context.Context, caller) (answer, error)) {
		group.Go(func() error {
			transport := &http.Transport{DisableKeepAlives: !keepAlive}
			defer transport.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				default:
				}
				if err := p.do(transport, func(c caller) (answer, error) { return send(ctx, c) }); err != nil {
					return fmt.Errorf("keep-alive %t: %w", keepAlive, err)
				}
				requests.Add(1)
				if p.left.Load() {
					byTheSecond.Add(1)
				}
			}
		})
	}
	ask := func(ctx context.Context, c caller) (answer, error) {
		said, a, err := c.tryAccess(ctx, "u_1")
		if err == nil && a.status == http.StatusOK && !said.Allowed {
			err = fmt.Errorf("denied: %s", a.body)
		}
		return a, err
	}
	news := func(ctx context.Context, c caller) (answer, error) {
		n := sent.Add(1)
		_, a, err := c.trySend(ctx, stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
			ID: fmt.Sprintf("sub_%d", n), UserID: fmt.Sprintf("u_load_%d", n), PeriodStart: now(), PeriodEnd: now().Add(30 * day),
		}))
		return a, err
	}
	for range 4 {
		serve(true, ask)
		serve(false, ask)
		serve(true, news)
		serve(false, news)
	}
	group.Go(func() error { return p.watch(ctx) })
	reach := func(n *atomic.Int64, enough int64) {
		await(t, "requests under load", func() error {
			if ctx.Err() != nil {
				require.NoError(t, group.Wait())
			}
			if n.Load() < enough {
				return fmt.Errorf("%d so far", n.Load())
			}
			return nil
		})
	}
	reach(&requests, 500)
	half := beginEvent(t, apis[0])

	p.stopping.Store(true)
	apis[0].signal(t, syscall.SIGTERM)
	await(t, "it says that it stops", func() error {
		if err := ready(apis[0].ops); err == nil {
			return errors.New("it is ready")
		}
		return nil
	})
	half.finish(t)
	require.Zero(t, apis[0].awaitEnd(t).ExitCode(), apis[0].tail())
	apis[0].asked = true
	reach(&byTheSecond, 200)
	close(stop)
	require.NoError(t, group.Wait())
	t.Logf("%d requests, %d of them by the second one, none failed", requests.Load(), byTheSecond.Load())

	// All that was thanked for is done, and the one that stopped has given nothing to others to do: no lease is left.
	s.awaitEventsDone(t)
	require.Equal(t, int(sent.Load())+1, s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE status = 'processed' AND attempts = 1`))
	require.Equal(t, int(sent.Load())+1, s.count(t, `SELECT count(*) FROM subscriptions WHERE provider = 'stripe' AND status = 'active' AND version = 1`))
	s.requireInvariants(t, half.id)
}

// halfEvent is a request of which the server has the head and a part of the body.
type halfEvent struct {
	event
	conn net.Conn
	rest []byte
}

// beginEvent sends the first half of an event.
func beginEvent(t *testing.T, to *apiProcess) *halfEvent {
	t.Helper()
	e := stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
		ID: "sub_half", UserID: "u_half", PeriodStart: now(), PeriodEnd: now().Add(30 * day),
	})
	request, err := simulator.SignedRequest(t.Context(), to.url+"/v1/webhooks/stripe", e.body, to.secret, time.Now())
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, request.Write(&text))
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(to.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	all := text.Bytes()
	half := len(all) - len(e.body)/2
	_, err = conn.Write(all[:half])
	require.NoError(t, err)
	return &halfEvent{e, conn, all[half:]}
}

// finish sends the other half and demands the answer of a stored event.
func (h *halfEvent) finish(t *testing.T) {
	t.Helper()
	_, err := h.conn.Write(h.rest)
	require.NoError(t, err)
	require.NoError(t, h.conn.SetReadDeadline(time.Now().Add(patience)))
	response, err := http.ReadResponse(bufio.NewReader(h.conn), nil)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.True(t, response.Close, "the answer says that the connection closes")
}

// A worker that is told to stop in the middle of a drain leaves at the next batch, and the next one goes on.
func TestWorkerStopsDuringADrain(t *testing.T) {
	t.Parallel()
	const n = 40_000
	s := newSystemWithJobs(t)
	s.plan(t)
	s.dueAt(t, n, now())
	first := s.startWorker(t)
	s.awaitExpired(t, 2000)
	first.stops(t, syscall.SIGTERM)
	done := s.expired(t)
	t.Logf("it stopped after %d of %d", done, n)
	require.Less(t, done, n)
	s.requireExpired(t, done)
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE lease_owner IS NOT NULL`))
	require.Zero(t, s.count(t, `SELECT count(*) FROM deliveries WHERE lease_owner IS NOT NULL`))
	require.Zero(t, s.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'termkeeper worker'`))

	second := s.startWorker(t)
	s.awaitExpired(t, n)
	s.requireExpired(t, n)
	second.stops(t, syscall.SIGTERM)
}
