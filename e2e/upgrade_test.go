package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/simulator"
)

// nextMigration is what a release after this one brings: a column of the busiest table, which needs the table for itself
// for a moment.
const nextMigration = `-- +goose Up
ALTER TABLE subscriptions ADD COLUMN next_release text;
COMMENT ON COLUMN subscriptions.next_release IS 'Of the next release.';

-- +goose Down
ALTER TABLE subscriptions DROP COLUMN next_release;
`

// nextRelease builds the program with one migration more.
func nextRelease(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "next.sql")
	require.NoError(t, os.WriteFile(file, []byte(nextMigration), 0o600))
	migrations, err := filepath.Abs("../migrations")
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(migrations, "90000_next_release.sql"): file}})
	require.NoError(t, err)
	list := filepath.Join(folder, "overlay.json")
	require.NoError(t, os.WriteFile(list, overlay, 0o600))
	const name = "termkeeper-next"
	require.NoError(t, build(name, "-overlay", list))
	return name
}

// An upgrade as docs/operations.md says, under load: the schema first, with a long transaction in its way, then workers and
// APIs one by one. No request fails, and the release before can come back.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	s := newSystemWithJobs(t)
	s.plan(t)
	next := program{build: nextRelease(t), environ: s.environ}
	oldAPI, oldWorker := s.startAPI(t), s.startWorker(t)
	oldAPI.subscribe(t, "u_1", now().Add(day))
	for _, command := range []string{"api", "worker"} {
		requireSentences(t, next.run(t, command), exitNo, "termkeeper migrate up")
	}

	var to atomic.Pointer[apiProcess] // whom the balancer asks
	to.Store(oldAPI)
	var checked, taken atomic.Int64
	stop := make(chan struct{})
	group, ctx := errgroup.WithContext(t.Context())
	forever := func(step func() error) {
		group.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				default:
					if err := step(); err != nil {
						return err
					}
				}
			}
		})
	}
	forever(func() error {
		said, a, err := to.Load().tryAccess(ctx, "u_1")
		switch {
		case err != nil:
			return err
		case a.tooBusy():
			return nil
		case !said.Allowed:
			return fmt.Errorf("denied: %d %s", a.status, a.body)
		}
		checked.Add(1)
		return nil
	})
	forever(func() error {
		n := taken.Load()
		_, a, err := to.Load().trySend(ctx, stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
			ID: fmt.Sprintf("sub_%d", n), UserID: fmt.Sprintf("u_load_%d", n), PeriodStart: now(), PeriodEnd: now().Add(30 * day),
		}))
		if err != nil || a.tooBusy() {
			return err
		}
		if a.status != http.StatusOK {
			return fmt.Errorf("an event was answered with %d: %s", a.status, a.body)
		}
		taken.Add(1)
		return nil
	})
	goOn := func(when string) {
		t.Helper()
		const more = 30
		checks, events := checked.Load()+more, taken.Load()+more
		await(t, "checks and events go on "+when, func() error {
			if ctx.Err() != nil {
				require.NoError(t, group.Wait())
			}
			if checked.Load() < checks || taken.Load() < events {
				return fmt.Errorf("%d of %d checks, %d of %d events", checked.Load(), checks, taken.Load(), events)
			}
			return nil
		})
	}
	goOn("before")

	// A dump, for instance: whoever wants the table for itself waits for it, and others would wait behind.
	dump, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	defer dump.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // It is over in a test that passes.
	_, err = dump.Exec(t.Context(), `SELECT count(*) FROM subscriptions`)
	require.NoError(t, err)
	migrate := next.start(t, "migrate", "up")
	await(t, "the migration waits for the table", func() error {
		if s.count(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'termkeeper migrate' AND wait_event_type = 'Lock'`) == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	goOn("while the migration waits")
	require.True(t, migrate.running(), migrate.tail())
	require.Zero(t, s.count(t, `SELECT count(*) FROM information_schema.columns WHERE column_name = 'next_release'`))
	require.NoError(t, dump.Commit(t.Context()))
	require.Zero(t, migrate.awaitEnd(t).ExitCode(), migrate.tail())
	migrate.asked = true
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM information_schema.columns WHERE column_name = 'next_release'`))
	goOn("with the old program on the new schema")

	newWorker := next.start(t, "worker")
	newWorker.entry(t, "worker starts")
	oldWorker.stops(t, syscall.SIGTERM)
	newAPI := s.launchAPI(t, next)
	await(t, "the new API is ready", func() error { return ready(newAPI.ops) })
	to.Store(newAPI)
	goOn("with the new program")
	// What asked the old one a moment ago has its answer: it stops in order.
	oldAPI.stops(t, syscall.SIGTERM)

	// Back again: the schema stays, the release before starts on it.
	back := s.startAPI(t)
	to.Store(back)
	goOn("with the release before")
	newAPI.stops(t, syscall.SIGTERM)
	newWorker.stops(t, syscall.SIGTERM)
	s.startWorker(t)
	goOn("with its worker")
	close(stop)
	require.NoError(t, group.Wait())
	s.awaitEventsDone(t)
	require.Equal(t, int(taken.Load())+1, s.count(t, `SELECT count(*) FROM subscriptions WHERE status = 'active'`))
	s.requireInvariants(t)
	t.Logf("%d checks and %d events, none failed", checked.Load(), taken.Load())
}
