package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/devstack"
	"termkeeper/internal/simulator"
)

// database is a PostgreSQL of a test's own, which it may stop.
type database struct {
	*devstack.Postgres
	folder string
}

const databaseName = "termkeeper"

func startDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{folder: filepath.Join(t.TempDir(), "postgres")}
	d.start(t, 0)
	t.Cleanup(func() { require.NoError(t, d.Stop(context.WithoutCancel(t.Context()))) })
	return d
}

func (d *database) start(t *testing.T, port int) {
	t.Helper()
	running, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{DataDir: d.folder, Port: port, Database: databaseName})
	require.NoError(t, err)
	d.Postgres = running
}

// stopImmediately does what `pg_ctl stop -m immediate` does: the server ends without a checkpoint and cuts everybody off.
func (d *database) stopImmediately(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.folder, "data", "postmaster.pid"))
	require.NoError(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGQUIT))
	select {
	case <-d.Done():
	case <-time.After(patience):
		require.FailNow(t, "PostgreSQL did not end")
	}
	require.NoError(t, d.Stop(t.Context())) // it has ended; this gives its folder free
}

// asker asks about users whose answers it knows.
type asker struct {
	api              *apiProcess
	right, withoutDB atomic.Int64
}

// ask asks about one user. The answer is right, or 503; anything else is an error.
func (a *asker) ask(ctx context.Context, user string, allowed func(at time.Time) bool) error {
	said, answered, err := a.api.tryAccess(ctx, user)
	switch {
	case err != nil:
		return fmt.Errorf("asking about %s: %w", user, err)
	case answered.status == http.StatusServiceUnavailable && answered.retryAfter != "":
		a.withoutDB.Add(1)
		return nil
	case answered.status != http.StatusOK:
		return fmt.Errorf("asking about %s: answered with %d: %s", user, answered.status, answered.body)
	case said.Allowed != allowed(said.DecidedAt):
		return fmt.Errorf("asking about %s: a wrong answer: %s", user, answered.body)
	}
	a.right.Add(1)
	return nil
}

// PostgreSQL is cut off while events come in and access is asked for. Nobody is told a wrong yes or no; what was thanked
// for is done when it is back; the jobs go on.
func TestPostgresIsCutOff(t *testing.T) {
	t.Parallel()
	db := startDatabase(t)
	s := openSystem(t, db.URL(databaseName))
	s.useTemporal(t)
	s.environ = append(s.environ,
		"TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s", "TERMKEEPER_JOB_WEBHOOK_APPLY_EVERY=1s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=2s")
	s.plan(t)
	api, worker := s.startAPI(t), s.startWorker(t)
	end := now().Add(5 * time.Second)
	api.subscribe(t, "u_yes", now().Add(day))
	api.subscribe(t, "u_ends", end)

	a := &asker{api: api}
	stop := make(chan struct{})
	asking, ctx := errgroup.WithContext(t.Context())
	for user, allowed := range map[string]func(time.Time) bool{
		"u_yes":  func(time.Time) bool { return true },
		"u_no":   func(time.Time) bool { return false },
		"u_ends": func(at time.Time) bool { return at.Before(end) },
	} {
		asking.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				default:
					if err := a.ask(ctx, user, allowed); err != nil {
						return err
					}
				}
			}
		})
	}
	c := &courier{staysUp: true}
	c.to.Store(api)
	l := c.load(t, 6)
	grow := func(what string, n *atomic.Int64, by int64) {
		t.Helper()
		want := n.Load() + by
		await(t, what, func() error {
			if ctx.Err() != nil {
				require.NoError(t, asking.Wait())
			}
			if l.failed() {
				require.NoError(t, l.senders.Wait())
			}
			if have := n.Load(); have < want {
				return fmt.Errorf("%d of %d", have, want)
			}
			return nil
		})
	}
	for range 2 {
		grow("right answers", &a.right, 100)
		grow("events are taken", &c.taken, 100)
		db.stopImmediately(t)
		grow("checks are answered with 503", &a.withoutDB, 20)
		grow("events are put off", &c.putOff, 6)
		require.Error(t, ready(api.ops), "an API without its database is not ready")
		db.start(t, db.Port())
		s.pool.Reset()
	}
	grow("right answers", &a.right, 100)
	grow("events are taken", &c.taken, 100)
	await(t, "it is ready again", func() error { return ready(api.ops) })
	close(stop)
	require.NoError(t, asking.Wait())
	l.end(t)
	t.Logf("%d right answers, %d times 503; %d events taken, put off %d times", a.right.Load(), a.withoutDB.Load(), c.taken.Load(), c.putOff.Load())

	s.awaitEventsDone(t)
	l.requireEffects(t, s, c)
	s.awaitExpired(t, 1)
	s.awaitWholeRun(t, "outbox-delivery")
	s.awaitDispatched(t)
	s.requireInvariants(t, c.received...)
	require.True(t, api.running() && worker.running(), "both have lived through it")
}

// Temporal is stopped and comes back with its file. The API does not mind; the worker waits and goes on.
func TestTemporalIsAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t)
	folder := t.TempDir()
	options := devstack.TemporalOptions{
		Binary: temporalBinary(t), DBFile: filepath.Join(folder, "temporal.db"), LogFile: filepath.Join(folder, "temporal.log"), Namespace: "e2e",
	}
	server, err := devstack.StartTemporal(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })
	options.Port = server.Port()
	s.environ = append(s.environ, "TEMPORAL_ADDRESS="+server.Address(), "TEMPORAL_NAMESPACE="+server.Namespace(),
		"TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s", "TERMKEEPER_JOB_WEBHOOK_APPLY_EVERY=2s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=2s")
	api, worker := s.startAPI(t), s.startWorker(t)
	workerOps := worker.entry(t, "worker starts")["ops_addr"].(string)

	var sent []string
	for round, stop := range []func() error{
		func() error { return server.Stop(t.Context()) },
		func() error { server.Kill(); return nil },
	} {
		api.subscribe(t, fmt.Sprintf("u_before_%d", round), time.Now().Add(time.Second))
		s.awaitExpired(t, 2*round+1)
		require.NoError(t, stop())
		await(t, "the worker is not ready", func() error {
			if ready(workerOps) == nil {
				return errors.New("it is")
			}
			return nil
		})
		require.NoError(t, ready(api.ops))
		user := fmt.Sprintf("u_away_%d", round)
		e := stripeEvent(simulator.Shape2023, created, now(), simulator.SubscriptionFixture{
			ID: "sub_" + user, UserID: user, PeriodStart: now(), PeriodEnd: now().Add(3 * time.Second), CancelAtPeriodEnd: true,
		})
		api.send(t, e)
		require.Equal(t, "processed", s.awaitEvent(t, e).Status)
		sent = append(sent, e.id)
		api.askAcross(t, user, *api.only(t, user).AccessUntil)
		require.Equal(t, "active", api.only(t, user).Status, "there is nobody to mark it")

		server, err = devstack.StartTemporal(t.Context(), options)
		require.NoError(t, err)
		await(t, "the worker is ready again", func() error { return ready(workerOps) })
		await(t, "what ended meanwhile is marked", func() error {
			if status := api.only(t, user).Status; status != "expired" {
				return errors.New(status)
			}
			return nil
		})
		for _, job := range []string{"subscription-expiry", "webhook-apply", "outbox-delivery"} {
			s.awaitWholeRun(t, job)
		}
	}
	s.awaitDispatched(t)
	s.requireInvariants(t, sent...)
	worker.stops(t, syscall.SIGTERM)
}

// temporalBinary is the Temporal CLI that `make test` has found.
func temporalBinary(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("TERMKEEPER_TEMPORAL_BINARY")
	require.NotEmpty(t, binary, "this test needs the Temporal CLI: run the tests with `make test`, or name it in TERMKEEPER_TEMPORAL_BINARY")
	return binary
}
