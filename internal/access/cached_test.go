package access_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/access"
	"termkeeper/internal/devstack"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/subscription"
	"termkeeper/migrations"
)

// promise is how late a change may be seen at most.
const promise = time.Second

// patience bounds a test that fails.
const patience = time.Minute

// process is what an API process has: a memory, with pools of its own. The test itself looks and writes by pool.
type process struct {
	*access.Cached
	pool  *pgxpool.Pool
	store *store.Store
}

// start opens the pools of checks and of the feed on two URLs of the same database.
func start(t *testing.T, pool *pgxpool.Pool, checksURL, feedURL string) *process {
	t.Helper()
	open := func(url string) *store.Store {
		p, err := store.OpenLazy(t.Context(), url, store.PoolOptions{Name: "test", MaxConns: 4, StatementTimeout: 3 * time.Second, LockTimeout: time.Second, IndexScans: true})
		require.NoError(t, err)
		t.Cleanup(p.Close)
		return store.New(p)
	}
	reader := access.NewReader(open(checksURL))
	t.Cleanup(reader.Close)
	c := access.NewCached(reader, open(feedURL), zap.NewNop())
	t.Cleanup(c.Close)
	return &process{Cached: c, pool: pool, store: store.New(pool)}
}

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// ask is one access check with the deadline that the API gives it.
func (p *process) ask(t *testing.T, user string) (allowed bool, at time.Time, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	holdings, at, err := p.Holdings(ctx, []string{user})
	return subscription.Decide(holdings[user], subscription.Ask{}, at).Allowed, at, err
}

// awaitMemory asks until the answer is the wanted one and comes from memory.
func (p *process) awaitMemory(t *testing.T, user string, want bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		before := p.Stats()
		allowed, _, err := p.ask(t, user)
		return err == nil && allowed == want && p.Stats().Hits > before.Hits
	}, patience, 5*time.Millisecond)
}

// requireSeen asks on and on: whoever asks later than the promise after the change, which is committed by now, gets the
// new answer, or none. It returns how many got one.
func (p *process) requireSeen(t *testing.T, user string, want bool, lasts time.Duration) (answers int) {
	t.Helper()
	committed := time.Now()
	for time.Since(committed) < lasts {
		begun := time.Now()
		allowed, _, err := p.ask(t, user)
		if err == nil && begun.Sub(committed) >= promise {
			require.Equal(t, want, allowed, "%s after the change", begun.Sub(committed))
			answers++
		}
		<-time.After(time.Millisecond) // leave the machine to others
	}
	return answers
}

func seed(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `INSERT INTO plans (key) VALUES ('pro')`)
	exec(t, pool, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_1', 'pro', 'active', 'infinity')`)
}

func exec(t *testing.T, pool *pgxpool.Pool, query string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), query, args...)
	require.NoError(t, err)
}

const hold, resume = `UPDATE subscriptions SET held_at = now()`, `UPDATE subscriptions SET held_at = NULL`

// TestAChangeIsSeenWithinASecond, whatever happens to the feed when it is made.
func TestAChangeIsSeenWithinASecond(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail, mend func(*proxy)
	}{
		"all is well":         {func(*proxy) {}, func(*proxy) {}},
		"the feed is lost":    {func(p *proxy) { p.set(losing) }, func(p *proxy) { p.set(passing) }},
		"the feed is held":    {func(p *proxy) { p.set(holding) }, func(p *proxy) { p.set(passing) }},
		"the feed is cut":     {(*proxy).cut, func(*proxy) {}},
		"the feed is refused": {(*proxy).refuse, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := storetest.NewURL(t)
			pool := open(t, url)
			seed(t, pool)
			feedURL, proxy := through(t, url)
			p, other := start(t, pool, url, feedURL), start(t, pool, url, url)
			p.awaitMemory(t, "u_1", true)
			other.awaitMemory(t, "u_1", true)
			c.fail(proxy)
			exec(t, pool, hold)
			require.Positive(t, p.requireSeen(t, "u_1", false, 2*time.Second))
			other.awaitMemory(t, "u_1", false)
			if c.mend == nil {
				require.Positive(t, p.Stats().Fallbacks)
				return
			}
			c.mend(proxy)
			p.awaitMemory(t, "u_1", false)
			exec(t, pool, resume)
			require.Positive(t, p.requireSeen(t, "u_1", true, 2*time.Second))
		})
	}
}

// TestTheDatabaseIsRestarted kills PostgreSQL, which starts again with its feed emptied.
func TestTheDatabaseIsRestarted(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "postgres")
	run := func(port int) *devstack.Postgres {
		server, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{DataDir: folder, Port: port, Database: "termkeeper"})
		require.NoError(t, err)
		return server
	}
	server := run(0)
	url := server.URL("termkeeper")
	_, err := migrations.Up(t.Context(), url)
	require.NoError(t, err)
	pool := open(t, url)
	seed(t, pool)
	p := start(t, pool, url, url)
	p.awaitMemory(t, "u_1", true)
	exec(t, pool, hold)
	exec(t, pool, resume)
	server.Kill()
	require.Zero(t, p.requireSeen(t, "u_1", true, 2*time.Second), "nobody can know")
	server = run(server.Port())
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })
	require.Eventually(t, func() bool {
		_, err := pool.Exec(t.Context(), hold)
		return err == nil
	}, patience, time.Millisecond)
	require.Positive(t, p.requireSeen(t, "u_1", false, 3*time.Second))
	p.awaitMemory(t, "u_1", false)
}

// TestTheDatabaseIsGone: memory falls silent rather than old, also for a term that ends meanwhile.
func TestTheDatabaseIsGone(t *testing.T) {
	t.Parallel()
	url := storetest.NewURL(t)
	pool := open(t, url)
	seed(t, pool)
	proxied, proxy := through(t, url)
	p := start(t, pool, proxied, proxied)
	p.awaitMemory(t, "u_1", true)
	var end time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `UPDATE subscriptions SET expires_at = clock_timestamp() + interval '1 second' RETURNING expires_at`).Scan(&end))
	proxy.set(losing)
	gone := time.Now()
	for time.Since(gone) < 2*time.Second {
		shown, err := p.store.Now(t.Context())
		require.NoError(t, err)
		begun := time.Now()
		allowed, at, err := p.ask(t, "u_1")
		if err != nil {
			continue
		}
		require.Less(t, begun.Sub(gone), promise, "an answer from nowhere")
		require.False(t, at.Before(shown))
		require.False(t, allowed && !at.Before(end))
	}
	_, _, err := p.ask(t, "u_1")
	require.Error(t, err)
	require.True(t, store.Unavailable(err), err)
}

// TestAnEndInMemoryIsExact: an answer that was asked for after the end is no, by the database's clock; a renewal is not
// kept out by a remembered no; and the mark of the job is shown.
func TestAnEndInMemoryIsExact(t *testing.T) {
	t.Parallel()
	url := storetest.NewURL(t)
	pool := open(t, url)
	seed(t, pool)
	p := start(t, pool, url, url)
	var end time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `UPDATE subscriptions SET expires_at = clock_timestamp() + interval '1500 milliseconds' RETURNING expires_at`).Scan(&end))
	p.awaitMemory(t, "u_1", true)
	for shown := end.Add(-1); shown.Before(end.Add(200 * time.Millisecond)); {
		var err error
		shown, err = p.store.Now(t.Context())
		require.NoError(t, err)
		allowed, at, err := p.ask(t, "u_1")
		if err != nil {
			continue // a busy machine
		}
		require.False(t, at.Before(shown), "%s before %s", at, shown)
		require.Equal(t, at.Before(end), allowed)
	}
	p.awaitMemory(t, "u_1", false)
	now, err := p.store.Now(t.Context())
	require.NoError(t, err)
	expired, err := p.store.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 10, false)
	require.NoError(t, err)
	require.Equal(t, 1, expired.Count)
	require.Eventually(t, func() bool {
		holdings, _, err := p.Holdings(t.Context(), []string{"u_1"})
		return err == nil && holdings["u_1"][0].Status == subscription.Expired
	}, patience, 5*time.Millisecond)
	exec(t, pool, `UPDATE subscriptions SET status = 'active', expired_at = NULL, expires_at = now() + interval '1 hour'`)
	require.Positive(t, p.requireSeen(t, "u_1", true, 1500*time.Millisecond))
	p.awaitMemory(t, "u_1", true)

	// Somebody without a subscription is remembered too, and not for longer than they have none.
	p.awaitMemory(t, "u_2", false)
	exec(t, pool, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_2', 'pro', 'trialing', 'infinity')`)
	require.Positive(t, p.requireSeen(t, "u_2", true, 1500*time.Millisecond))
}
