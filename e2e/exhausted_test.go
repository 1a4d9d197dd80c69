package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/devstack"
)

// Somebody uses up all connections of the server. Access is answered by the connections that are open already; the jobs
// wait or do what they can, and nothing is broken when the connections are there again.
func TestConnectionsAreUsedUp(t *testing.T) {
	t.Parallel()
	const askers, questions, most = 8, 100, 60
	db, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{
		DataDir: filepath.Join(t.TempDir(), "postgres"), Database: databaseName, MaxConnections: most,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Stop(context.WithoutCancel(t.Context()))) })
	s := openSystem(t, db.URL(databaseName))
	s.useTemporal(t)
	s.environ = append(s.environ, "TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=1s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=1s")
	s.plan(t)
	api, worker := s.startAPI(t), s.startWorker(t)
	api.subscribe(t, "u_yes", now().Add(day))
	end := time.Now().Add(3 * time.Second)
	api.subscribe(t, "u_ends", end)
	await(t, "the connections for access are open", func() error {
		if n := s.count(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'termkeeper api access'`); n < 4 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})

	var idle []*pgx.Conn
	for {
		conn, err := pgx.Connect(t.Context(), db.URL(databaseName))
		var full *pgconn.PgError
		if errors.As(err, &full) && full.Code == "53300" {
			break
		}
		require.NoError(t, err)
		idle = append(idle, conn)
	}
	a := &asker{api: api}
	group, ctx := errgroup.WithContext(t.Context())
	for range askers {
		group.Go(func() error {
			for range questions {
				err := errors.Join(
					a.ask(ctx, "u_yes", func(time.Time) bool { return true }),
					a.ask(ctx, "u_ends", func(at time.Time) bool { return at.Before(end) }))
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	api.askAcross(t, "u_ends", end)
	t.Logf("%d idle connections, %d right answers, %d times 503", len(idle), a.right.Load(), a.withoutDB.Load())
	// A busy machine may let one of them wait for longer than a check has; it is never the rule.
	require.Less(t, a.withoutDB.Load(), a.right.Load()/50)

	for _, conn := range idle {
		require.NoError(t, conn.Close(t.Context()))
	}
	s.awaitExpired(t, 1)
	s.awaitWholeRun(t, "subscription-expiry")
	s.awaitWholeRun(t, "outbox-delivery")
	s.awaitDispatched(t)
	require.Equal(t, 1, s.expired(t))
	s.requireInvariants(t)
	worker.stops(t, syscall.SIGTERM)
	api.stops(t, syscall.SIGTERM)
}
