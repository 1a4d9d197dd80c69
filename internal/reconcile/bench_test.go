package reconcile_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/reconcile"
	"termkeeper/internal/secret"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// bench is a reconciler between a database and a provider.
type bench struct {
	testing.TB
	*provider
	pool *pgxpool.Pool
	reconcile.Reconciler

	mu    sync.Mutex
	found map[string]int // by kind and action
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{TB: t, provider: newProvider(t), pool: storetest.New(t), found: map[string]int{}}
	client := payment.NewClient(secret.NewText("sk_test_1"), b.URL)
	t.Cleanup(client.Close)
	s := store.New(b.pool)
	in := intake.New(s, intake.Settings{Owner: "test", Leeway: time.Hour, Fetch: client.Subscription}, zap.NewNop())
	t.Cleanup(func() { require.NoError(t, in.Drain(context.WithoutCancel(t.Context()))) })
	b.Reconciler = reconcile.Reconciler{Store: s, Intake: in, Provider: client, Log: zap.NewNop(), Settings: reconcile.Settings{
		Leeway: time.Hour, Zone: time.UTC, OnFinding: func(kind, action string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.found[kind+" "+action]++
		},
	}}
	b.exec(`INSERT INTO plans (key, stripe_price_ids, grace_period) VALUES ('pro', '{price_pro}', '72 hours'), ('team', '{price_team}', '72 hours')`)
	return b
}

func (b *bench) exec(query string, args ...any) {
	b.Helper()
	_, err := b.pool.Exec(b.Context(), query, args...)
	require.NoError(b, err)
}

func (b *bench) count(query string, args ...any) (n int) {
	b.Helper()
	require.NoError(b, b.pool.QueryRow(b.Context(), query, args...).Scan(&n))
	return n
}

func (b *bench) text(query string, args ...any) (s string) {
	b.Helper()
	require.NoError(b, b.pool.QueryRow(b.Context(), query, args...).Scan(&s))
	return s
}

func stay(context.Context) bool { return false }

// run is a whole run that must end well.
func (b *bench) run() reconcile.Tally {
	b.Helper()
	tally, err := b.Run(b.Context(), stay)
	require.NoError(b, err)
	return tally
}

// seed has subscriptions at the provider, and rows for them as their events would have made them, an hour ago.
func (b *bench) seed(list ...sub) {
	b.Helper()
	for _, s := range list {
		_, _, err := b.Store.ApplyTruth(b.Context(), b.truth(s), time.Hour)
		require.NoError(b, err)
	}
	b.do(func() { b.subs = append(b.subs, list...) })
}

func (b *bench) truth(s sub) store.Truth {
	b.Helper()
	said, err := payment.Subscription(encoded(b.TB, s))
	require.NoError(b, err)
	return store.Truth{Provider: said, Asked: time.Now().UTC().Add(-time.Hour).Truncate(time.Second), Actor: store.ActorStripe}
}

// change changes a subscription at the provider alone.
func (b *bench) change(id string, fields sub) {
	b.do(func() {
		i := slices.IndexFunc(b.subs, func(s sub) bool { return s.id() == id })
		b.subs[i] = b.subs[i].with(fields)
	})
}

// versions are those of all rows by external id.
func (b *bench) versions() map[string]int64 {
	b.Helper()
	rows, err := b.pool.Query(b.Context(), `SELECT external_id, version FROM subscriptions`)
	require.NoError(b, err)
	versions := map[string]int64{}
	var id string
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&id, &version}, func() error { versions[id] = version; return nil })
	require.NoError(b, err)
	return versions
}

// tomorrow lets the next run sweep again.
func (b *bench) tomorrow() { b.exec(`UPDATE reconcile_state SET swept_on = swept_on - 1`) }

func (b *bench) ids(query string) []string {
	b.Helper()
	rows, err := b.pool.Query(b.Context(), query)
	require.NoError(b, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b, err)
	return ids
}
