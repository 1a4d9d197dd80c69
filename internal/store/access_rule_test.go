package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/subscription"
)

// TestTheRuleIsOneInGoAndSQL holds subscription.Gives, AccessUntil and the SQL function gives_access together, on random
// terms and at every edge of them, one microsecond before and after.
func TestTheRuleIsOneInGoAndSQL(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key) VALUES ('pro')`)
	require.NoError(t, err)
	s := store.New(pool)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		user := fmt.Sprintf("u_%d", n)
		for i := range 5 {
			insertTerms(t, r, pool, user, i)
		}
		holdings, at, err := s.Holdings(t.Context(), []string{user})
		require.NoError(t, err)
		require.Len(t, holdings[user], 5)
		require.WithinDuration(t, time.Now(), at, time.Minute)
		var instants []time.Time
		for _, h := range holdings[user] {
			for _, edge := range []time.Time{h.StartedAt, h.ExpiresAt, h.LeewayUntil, h.GraceUntil, h.CompUntil, h.AccessUntil()} {
				if !edge.IsZero() && !subscription.IsForever(edge) {
					instants = append(instants, edge.Add(-time.Microsecond), edge, edge.Add(time.Microsecond))
				}
			}
		}
		for _, at := range instants {
			gives := sqlGives(t, pool, user, at)
			for _, h := range holdings[user] {
				require.Equal(t, gives[h.ID].gives, h.Gives(at), "%+v at %s", h, at)
				require.Equal(t, gives[h.ID].until, pgInstant(h.AccessUntil()))
			}
		}
	})
}

type sqlAnswer struct {
	gives bool
	until pgtype.Timestamptz
}

func sqlGives(t *testing.T, pool *pgxpool.Pool, user string, at time.Time) map[string]sqlAnswer {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT s.id::text, gives_access(s, $2), s.access_until FROM subscriptions s WHERE s.user_id = $1`, user, at)
	require.NoError(t, err)
	defer rows.Close()
	answers := map[string]sqlAnswer{}
	for rows.Next() {
		var id string
		var a sqlAnswer
		require.NoError(t, rows.Scan(&id, &a.gives, &a.until))
		a.until.Time = a.until.Time.UTC()
		answers[id] = a
	}
	require.NoError(t, rows.Err())
	return answers
}

func pgInstant(at time.Time) pgtype.Timestamptz {
	if subscription.IsForever(at) {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true, Time: time.Time{}.UTC()}
	}
	return pgtype.Timestamptz{Time: at, Valid: true}
}

func insertTerms(t *testing.T, r *rapid.T, pool *pgxpool.Pool, user string, i int) {
	t.Helper()
	base := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	instant := func(name string, absent bool) pgtype.Timestamptz {
		kind := rapid.IntRange(0, 9).Draw(r, name+"_kind")
		switch {
		case absent && kind < 4:
			return pgtype.Timestamptz{}
		case kind == 9 && name != "started":
			return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
		}
		// Few distinct instants, so that ends and starts meet.
		return pgtype.Timestamptz{Time: base.Add(time.Duration(rapid.IntRange(-3, 3).Draw(r, name)) * time.Microsecond), Valid: true}
	}
	status := rapid.SampledFrom([]string{"trialing", "active", "past_due", "paused", "canceled", "expired"}).Draw(r, "status")
	var held pgtype.Timestamptz
	if rapid.IntRange(0, 4).Draw(r, "held") == 0 {
		held = pgtype.Timestamptz{Time: base, Valid: true}
	}
	_, err := pool.Exec(t.Context(), `INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at, leeway_until, grace_period_ends_at, comp_until, held_at)
		VALUES ($1, 'pro', $2, $3, $4, $5, $6, $7, $8)`, user, status, instant("started", false), instant("expires", false),
		instant("leeway", true), instant("grace", true), instant("comp", true), held)
	require.NoError(t, err, i)
}
