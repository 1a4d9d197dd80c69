package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"termkeeper/internal/storetest"
)

// webhookSecret signs the events of all tests here.
const webhookSecret = "whsec_of_the_end_to_end_tests"

// system is a database and, where a test wants jobs, a namespace of Temporal, with the processes that a test starts on
// them. Nothing else is on either.
type system struct {
	pool    *pgxpool.Pool // the test's own look at the database
	environ []string      // of every process
	key     string        // of role admin
}

// newSystem takes a database of its own on the server of `make test`. Temporal is where nobody listens.
func newSystem(t *testing.T) *system {
	t.Helper()
	return openSystem(t, storetest.NewURL(t))
}

// newSystemWithJobs is newSystem with a namespace of its own on the Temporal of `make test`.
func newSystemWithJobs(t *testing.T) *system {
	t.Helper()
	s := newSystem(t)
	s.useTemporal(t)
	return s
}

// useTemporal gives the system a namespace. Its schedules end with the test: they would go on ticking until the last test
// of all, and a development server has one database connection for everything.
func (s *system) useTemporal(t *testing.T) client.Client {
	t.Helper()
	address, namespace := storetest.Temporal(t)
	s.environ = append(s.environ, "TEMPORAL_ADDRESS="+address, "TEMPORAL_NAMESPACE="+namespace)
	c, err := client.Dial(client.Options{HostPort: address, Namespace: namespace, Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	require.NoError(t, err)
	t.Cleanup(func() {
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		for _, job := range jobs {
			var none *serviceerror.NotFound // not every test makes them
			if err := c.ScheduleClient().GetHandle(ctx, job.id).Delete(ctx); err != nil && !errors.As(err, &none) {
				t.Logf("the schedule %s stays: %v", job.id, err)
			}
		}
	})
	return c
}

// openSystem makes the schema, where it is missing, and the first key.
func openSystem(t *testing.T, databaseURL string) *system {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), databaseURL)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := &system{pool: pool, environ: []string{
		"DATABASE_URL=" + databaseURL, "STRIPE_WEBHOOK_SECRETS=" + webhookSecret,
		"TERMKEEPER_HTTP_ADDR=127.0.0.1:0", "TERMKEEPER_OPS_ADDR=127.0.0.1:0",
		// The port of the protocol "discard", which nobody serves: what a test does not give its system is down.
		"TEMPORAL_ADDRESS=127.0.0.1:9", "TEMPORAL_NAMESPACE=none",
	}}
	s.program().done(t, "migrate", "up")
	s.key = strings.TrimSpace(s.program().done(t, "apikey", "create", "--role", "admin", "--name", "e2e"))
	return s
}

// program runs commands of the plain build on the system, with more variables where a test gives them.
func (s *system) program(environ ...string) program {
	return program{environ: append(append([]string{}, s.environ...), environ...)}
}

// count asks the database for a number.
func (s *system) count(t *testing.T, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, s.pool.QueryRow(t.Context(), query, args...).Scan(&n))
	return n
}

func (s *system) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	_, err := s.pool.Exec(t.Context(), query, args...)
	require.NoError(t, err)
}

// plan makes the plan that the tests sell: feature "images", price "price_pro", three days of grace.
func (s *system) plan(t *testing.T) {
	t.Helper()
	s.exec(t, `INSERT INTO plans (key, name, features, stripe_price_ids, grace_period)
		VALUES ('pro', 'Pro', '{images}', '{price_pro}', '72 hours') ON CONFLICT DO NOTHING`)
}

// ops asks a process whether it is ready; the error says why it is not.
func ready(address string) error {
	response, err := http.Get("http://" + address + "/healthz/ready") //nolint:noctx // The caller has a deadline.
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", response.StatusCode, text)
	}
	return err
}

// apiProcess is a running `termkeeper api`.
type apiProcess struct {
	*process
	caller
	ops string
}

// startAPI starts an API and waits until it is ready.
func (s *system) startAPI(t *testing.T, environ ...string) *apiProcess {
	t.Helper()
	a := s.launchAPI(t, s.program(environ...))
	await(t, "the API is ready", func() error { return ready(a.ops) })
	return a
}

// launchAPI starts an API of any build and waits until it listens.
func (s *system) launchAPI(t *testing.T, p program) *apiProcess {
	t.Helper()
	started := p.start(t, "api")
	serving := started.entry(t, "serving")
	return &apiProcess{process: started, ops: serving["ops_addr"].(string), caller: caller{
		url: "http://" + serving["http_addr"].(string), key: s.key, secret: webhookSecret, http: &http.Client{Timeout: patience, Transport: &http.Transport{}},
	}}
}

// startWorker starts a worker and waits until it polls.
func (s *system) startWorker(t *testing.T, environ ...string) *process {
	t.Helper()
	started := s.program(environ...).start(t, "worker")
	awaitPolling(t, started)
	return started
}

// awaitPolling waits until a worker polls.
func awaitPolling(t *testing.T, started *process) {
	t.Helper()
	address := started.entry(t, "worker starts")["ops_addr"].(string)
	await(t, "the worker is ready", func() error {
		if !started.running() {
			require.FailNow(t, "the worker has ended", started.tail())
		}
		return ready(address)
	})
}

// requireInvariants holds what must be true of every system at rest, whatever was stopped or killed before. received
// are the ids of all events that were answered with 200.
func (s *system) requireInvariants(t *testing.T, received ...string) {
	t.Helper()
	require.Zero(t, s.count(t, `SELECT count(*) FROM subscriptions s WHERE s.status = 'expired' AND (
		(SELECT count(*) FROM subscription_events e WHERE e.subscription_id = s.id AND e.boundary = s.access_until AND e.event_type IN ('expired', 'ended')) <> 1
		OR (SELECT count(*) FROM outbox o WHERE o.subscription_id = s.id AND o.boundary = s.access_until AND o.topic = 'access.ended') <> 1)`),
		"expired rows without exactly one entry of the history and one fact for their boundary")
	require.Zero(t, s.count(t, `SELECT count(*) FROM
		(SELECT subscription_id, boundary, count(*) AS n FROM subscription_events WHERE event_type IN ('expired', 'ended') GROUP BY 1, 2) e FULL JOIN
		(SELECT subscription_id, boundary, count(*) AS n FROM outbox WHERE topic = 'access.ended' GROUP BY 1, 2) o USING (subscription_id, boundary)
		WHERE e.n IS DISTINCT FROM 1 OR o.n IS DISTINCT FROM 1`), "boundaries that do not have one entry of the history and one fact each")
	require.Zero(t, s.count(t, `SELECT count(*) FROM subscriptions WHERE status IN ('trialing', 'active', 'past_due') AND expired_at IS NOT NULL`),
		"live rows with the mark of an end")
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE status = 'pending' AND leased_until < now()`), "events whose lease has passed")
	require.Zero(t, s.count(t, `SELECT count(*) FROM deliveries WHERE status = 'sending' AND leased_until < now()`), "deliveries whose lease has passed")
	require.Zero(t, s.count(t, `SELECT count(*) FROM job_runs WHERE finished_at IS NULL AND deadline_at < now()`), "runs that nobody will finish")
	require.Zero(t, s.count(t, `SELECT count(*) FROM payments WHERE order_id IS NOT NULL AND captured_at IS NOT NULL AND (state IS NULL OR state = 'refunding')`),
		"captured money without fulfilment, refund or review")
	require.Equal(t, len(received), s.count(t, `SELECT count(*) FROM payment_webhook_events
		WHERE external_event_id = ANY ($1) AND status IN ('processed', 'ignored', 'quarantined')`, received), "events that got a 200 and are not finished")
	require.Zero(t, s.count(t, `SELECT count(*) FROM (SELECT external_id FROM subscriptions WHERE external_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1) x`))
	require.Zero(t, s.count(t, `SELECT count(*) FROM subscriptions s WHERE s.provider = 'stripe'
		AND (SELECT count(*) FROM subscription_events e WHERE e.subscription_id = s.id AND e.event_type = 'created') <> 1`), "subscriptions that were not created once")
}

// awaitEventsDone waits until no event waits to be applied.
func (s *system) awaitEventsDone(t *testing.T) {
	t.Helper()
	await(t, "every event is finished", func() error {
		if n := s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE status = 'pending'`); n > 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
}

// errRefused is an answer of the kernel and not of a process: nobody listens.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// now is a whole second, as Stripe's instants are.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }
