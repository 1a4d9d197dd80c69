package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/simulator"
)

// courier delivers events as Stripe does: what got a 200 never again, everything else again and again.
type courier struct {
	to      atomic.Pointer[apiProcess]
	staysUp bool         // no process is killed: an answer comes each time
	taken   atomic.Int64 // events
	putOff  atomic.Int64 // attempts that were answered with 503

	mu       sync.Mutex
	received []string
}

// deliver tries until the event is taken. The error tells of an answer that no trouble excuses.
func (c *courier) deliver(ctx context.Context, e event) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		_, a, err := c.to.Load().trySend(ctx, e)
		switch {
		case err == nil && a.status == http.StatusOK:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.received = append(c.received, e.id)
			c.taken.Add(1)
			return nil
		case err != nil && c.staysUp && ctx.Err() == nil:
			return fmt.Errorf("event %s got no answer: %w", e.id, err)
		case err == nil && a.status != http.StatusServiceUnavailable:
			return fmt.Errorf("event %s was answered with %d: %s", e.id, a.status, a.body)
		case err == nil && a.retryAfter == "":
			return errors.New("a 503 does not say when to come again")
		case err == nil:
			c.putOff.Add(1)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("delivering event %s, at last %d, %w: %w", e.id, a.status, err, ctx.Err())
		}
	}
}

// load sends, until stop is closed, a new subscription and then its renewal, again and again, with several senders. When
// it returns, every event that it began to send was taken; n is how many subscriptions there are.
type load struct {
	start, paidUntil, renewedUntil time.Time
	n                              atomic.Int64
	senders                        *errgroup.Group
	stop                           chan struct{}
	given                          context.Context // ends when a sender gives up
}

// failed reports whether a sender has given up; end tells why.
func (l *load) failed() bool { return l.given.Err() != nil }

func (c *courier) load(t *testing.T, senders int) *load {
	t.Helper()
	start := now().Add(-30 * day)
	l := &load{start: start, paidUntil: start.Add(30 * day), renewedUntil: start.Add(60 * day), stop: make(chan struct{})}
	var ctx context.Context
	l.senders, ctx = errgroup.WithContext(t.Context())
	l.given = ctx
	for range senders {
		l.senders.Go(func() error {
			for {
				select {
				case <-l.stop:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				default:
				}
				n := l.n.Add(1)
				about := simulator.SubscriptionFixture{
					ID: fmt.Sprintf("sub_load_%d", n), UserID: fmt.Sprintf("u_load_%d", n), PeriodStart: l.start, PeriodEnd: l.paidUntil,
				}
				if err := c.deliver(ctx, stripeEvent(simulator.Shape2025, created, l.start, about)); err != nil {
					return err
				}
				about.PeriodStart, about.PeriodEnd = l.paidUntil, l.renewedUntil
				if err := c.deliver(ctx, stripeEvent(simulator.Shape2023, updated, l.paidUntil, about)); err != nil {
					return err
				}
			}
		})
	}
	return l
}

// end stops the senders. The API must be up, so that they can finish what they have begun.
func (l *load) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	require.NoError(t, l.senders.Wait())
}

// requireEffects demands that every event of the load has its effect exactly once.
func (l *load) requireEffects(t *testing.T, s *system, c *courier) {
	t.Helper()
	n := int(l.n.Load())
	require.Len(t, c.received, 2*n)
	s.requireInvariants(t, c.received...)
	const events = `SELECT count(*) FROM payment_webhook_events WHERE object_id LIKE 'sub_load_%' AND status = 'processed'`
	require.Equal(t, 2*n, s.count(t, events), "events, each stored once")
	const rows = `SELECT count(*) FROM subscriptions WHERE external_id LIKE 'sub_load_%'`
	require.Equal(t, n, s.count(t, rows))
	require.Equal(t, n, s.count(t, rows+` AND status = 'active' AND expires_at = $1`, l.renewedUntil), "all are renewed")
	const history = `SELECT count(*) FROM subscription_events e JOIN subscriptions s ON s.id = e.subscription_id WHERE s.external_id LIKE 'sub_load_%'`
	require.Equal(t, n, s.count(t, history+` AND e.event_type = 'created'`))
	// Where the renewal was applied first, the news of the beginning was old: it is done and has nothing to say.
	late := s.count(t, events+` AND type = $1 AND reason = 'stale'`, created)
	require.Equal(t, late, s.count(t, events+` AND reason IS NOT NULL`))
	require.Equal(t, n-late, s.count(t, history+` AND e.event_type = 'renewed'`))
	require.Equal(t, 2*n-late, s.count(t, history), "each change has one entry")
	require.Zero(t, s.count(t, rows+` AND version > (SELECT count(*) FROM subscription_events e WHERE e.subscription_id = subscriptions.id)`), "rows that were written more often than they changed")
}

// requireKilled demands that a process ended by SIGKILL.
func requireKilled(t *testing.T, p *process) {
	t.Helper()
	status, ok := p.awaitEnd(t).Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.True(t, status.Signaled() && status.Signal() == syscall.SIGKILL, "`%s` ended with %s\n%s", p.name, p.cmd.ProcessState, p.tail())
	p.asked = true
}

// The server is killed again and again, at each place between the receipt of an event and its effect and at random
// moments, while events come in. Nothing that got a 200 is lost, and nothing is done twice.
func TestServerIsKilledBetweenReceiptAndEffect(t *testing.T) {
	t.Parallel()
	const killsAtEach, killsAtRandom, senders = 10, 10, 8
	s := newSystemWithJobs(t)
	s.plan(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 5))
	var places []string
	for _, place := range []string{"intake_before_insert", "intake_after_insert", "apply_before", "apply_before_commit", "apply_after_commit"} {
		for range killsAtEach {
			places = append(places, place)
		}
	}
	random.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })

	c := &courier{}
	var l *load
	launch := func(environ ...string) *apiProcess {
		p := s.program(environ...)
		p.build = failpoints
		a := s.launchAPI(t, p)
		c.to.Store(a)
		if l == nil {
			l = c.load(t, senders)
		}
		return a
	}
	for _, place := range places {
		requireKilled(t, launch(fmt.Sprintf("TERMKEEPER_FAILPOINT=%s:%d", place, 1+random.IntN(6))).process)
	}
	for range killsAtRandom {
		a := launch()
		until := c.taken.Load() + random.Int64N(200)
		await(t, "some more events are taken", func() error {
			if n := c.taken.Load(); n < until {
				return fmt.Errorf("%d of %d", n, until)
			}
			return nil
		})
		a.kill(t)
	}
	launch()
	l.end(t)

	left := s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE status = 'pending'`)
	t.Logf("%d kills, %d events taken, %d of them left to webhook-apply", len(places)+killsAtRandom, len(c.received), left)
	// Their leases are of processes that are gone. They would pass within half a minute; the test does not wait for it.
	s.exec(t, `UPDATE payment_webhook_events SET leased_until = now() WHERE status = 'pending' AND leased_until IS NOT NULL`)
	s.startWorker(t, "TERMKEEPER_JOB_WEBHOOK_APPLY_EVERY=1s")
	s.awaitEventsDone(t)
	l.requireEffects(t, s, c)
}
