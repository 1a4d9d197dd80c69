package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/subscription"
)

// byHand is a memory whose feed is polled by the test, step by step.
type byHand struct {
	*Cached
	pool    *pgxpool.Pool
	store   *store.Store
	changes *store.AccessFeed
	clock   clock
}

func newByHand(t *testing.T) *byHand {
	t.Helper()
	pool := storetest.New(t)
	s := store.New(pool)
	reader := NewReader(s)
	t.Cleanup(reader.Close)
	h := &byHand{Cached: &Cached{reader: reader, memory: newMemory(maxWeight)}, pool: pool, store: s}
	sent := time.Now()
	var err error
	h.changes, h.clock, err = h.begin(t.Context(), s, sent)
	require.NoError(t, err)
	t.Cleanup(h.changes.Close)
	return h
}

// step polls once. The test decides when, so the age of the proof is none of its matter.
func (h *byHand) step(t *testing.T) {
	t.Helper()
	sent := time.Now()
	var err error
	h.clock, err = h.poll(t.Context(), h.changes, h.clock, sent)
	require.NoError(t, err)
}

// ask answers as if the last poll had just been sent, however long the machine made the test wait.
func (h *byHand) ask(t *testing.T, users ...string) map[string][]subscription.Holding {
	t.Helper()
	h.proof.Store(&proof{sent: time.Now().Add(time.Hour), clock: h.clock})
	var answer map[string][]subscription.Holding
	tried(t, func() (err error) {
		answer, _, err = h.Holdings(t.Context(), users)
		return err
	})
	return answer
}

// tried repeats what a busy machine did not answer in time.
func tried(t *testing.T, do func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if err = do(); err == nil {
			return
		}
	}
	require.NoError(t, err)
}

func (h *byHand) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	_, err := h.pool.Exec(t.Context(), query, args...)
	require.NoError(t, err)
}

func (h *byHand) known(user string) bool {
	_, _, known := h.memory.find(user)
	return known
}

const insertActive = `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ($1, $2, 'active', now() + interval '1 day')`

// TestAReadingThatRacedAChangeIsNotKept: the reading is from before the change, and the feed has told of the change before
// the reading came to be kept.
func TestAReadingThatRacedAChangeIsNotKept(t *testing.T) {
	t.Parallel()
	h := newByHand(t)
	h.exec(t, `INSERT INTO plans (key, features) VALUES ('pro', '{images}'), ('max', '{}')`)
	h.exec(t, insertActive, "u_1", "pro")
	h.step(t)
	read := func() (uint64, []subscription.Holding) {
		_, generation, known := h.memory.find("u_1")
		require.False(t, known)
		holdings, _, err := h.store.Holdings(t.Context(), []string{"u_1"})
		require.NoError(t, err)
		return generation, holdings["u_1"]
	}
	for name, change := range map[string]func(){
		"of the user":  func() { h.exec(t, `UPDATE subscriptions SET held_at = now() WHERE user_id = 'u_1'`) },
		"of the plan":  func() { h.exec(t, `UPDATE plans SET features = features || 'x'::text WHERE key = 'pro'`) },
		"of everybody": func() { h.memory.forgetAll() },
		"to another user": func() {
			h.exec(t, `UPDATE subscriptions SET user_id = 'u_2' WHERE user_id = 'u_1'`)
			h.exec(t, `UPDATE subscriptions SET user_id = 'u_1'`)
		},
	} {
		generation, holdings := read()
		change()
		h.step(t)
		h.memory.keep("u_1", generation, holdings)
		require.False(t, h.known("u_1"), name)

		// The feed tells of it after the reading was kept: then it is forgotten.
		generation, holdings = read()
		change()
		h.memory.keep("u_1", generation, holdings)
		h.step(t)
		require.False(t, h.known("u_1"), name)

		// Nothing has happened: it is kept.
		generation, holdings = read()
		h.step(t)
		h.memory.keep("u_1", generation, holdings)
		require.True(t, h.known("u_1"), name)
		h.memory.forgetUser("u_1")
	}
}

func TestAChangeForgetsThoseItConcerns(t *testing.T) {
	t.Parallel()
	h := newByHand(t)
	h.exec(t, `INSERT INTO plans (key, features) VALUES ('pro', '{images}'), ('max', '{images}')`)
	h.exec(t, insertActive, "u_pro", "pro")
	h.exec(t, insertActive, "u_max", "max")
	h.step(t)
	all := []string{"u_pro", "u_max", "u_none"}
	knownAfter := func(query string) (known []string) {
		h.ask(t, all...)
		for _, user := range all {
			require.True(t, h.known(user))
		}
		h.exec(t, query)
		h.step(t)
		for _, user := range all {
			if h.known(user) {
				known = append(known, user)
			}
		}
		return known
	}
	require.Equal(t, []string{"u_max", "u_none"}, knownAfter(`UPDATE plans SET features = '{video}' WHERE key = 'pro'`))
	require.Equal(t, []string{"video"}, h.ask(t, "u_pro")["u_pro"][0].Features)
	require.Equal(t, all, knownAfter(`UPDATE plans SET name = 'Pro'`))
	require.Equal(t, []string{"u_pro", "u_none"}, knownAfter(`UPDATE subscriptions SET status = 'canceled' WHERE user_id = 'u_max'`))
	require.Equal(t, []string{"u_max"}, knownAfter(`UPDATE subscriptions SET user_id = 'u_none' WHERE user_id = 'u_pro'`))
	require.Empty(t, h.ask(t, "u_pro")["u_pro"])
	require.Len(t, h.ask(t, "u_none")["u_none"], 1)
	require.Equal(t, []string{"u_pro", "u_max"}, knownAfter(`UPDATE subscriptions SET expires_at = 'infinity' WHERE user_id = 'u_none'`))
	require.True(t, subscription.IsForever(h.ask(t, "u_none")["u_none"][0].AccessUntil()))
	require.Empty(t, knownAfter(`TRUNCATE subscriptions`))
}

// TestMemoryIsBounded: it forgets somebody for each who comes, and counts right whatever happens.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		const budget = 20
		m := newMemory(budget * shards)
		for range 400 {
			user := fmt.Sprint(rapid.IntRange(0, 3000).Draw(r, "user"))
			switch rapid.IntRange(0, 9).Draw(r, "what") {
			case 0:
				m.forgetUser(user)
			case 1:
				m.forgetPlan("a")
			default:
				_, generation, _ := m.find(user)
				m.keep(user, generation, make([]subscription.Holding, rapid.IntRange(0, budget).Draw(r, "holdings")))
			}
		}
		for i := range m.shards {
			weight := 0
			for _, holdings := range m.shards[i].users {
				weight += 1 + len(holdings)
			}
			require.Equal(t, weight, m.shards[i].weight)
			require.LessOrEqual(t, weight, budget)
		}
	})
}

// TestMemoryAnswersLikeTheDatabase plays random histories of writes, by methods of the store and in plain SQL, some in
// transactions that commit late, with questions in between. After each poll of the feed memory and database agree.
func TestMemoryAnswersLikeTheDatabase(t *testing.T) {
	t.Parallel()
	h := newByHand(t)
	h.exec(t, `INSERT INTO plans (key, features) VALUES ('pro', '{images}'), ('max', '{images,video}')`)
	users := []string{"u_0", "u_1", "u_2", "u_3"}
	compare := func() {
		h.step(t)
		before := h.Stats()
		inMemory := h.ask(t, users...)
		var inDatabase map[string][]subscription.Holding
		tried(t, func() (err error) {
			inDatabase, _, err = h.reader.Holdings(t.Context(), users)
			return err
		})
		for _, user := range users {
			byID := func(a, b subscription.Holding) int { return strings.Compare(a.ID, b.ID) }
			want, got := slices.SortedFunc(slices.Values(inDatabase[user]), byID), slices.SortedFunc(slices.Values(inMemory[user]), byID)
			require.Equal(t, want, got, user)
		}
		if before.Users == len(users) {
			require.Equal(t, before.Misses, h.Stats().Misses)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		h.exec(t, `DELETE FROM subscriptions`)
		var late []pgx.Tx
		defer func() {
			for _, tx := range late {
				_ = tx.Rollback(context.WithoutCancel(t.Context()))
			}
		}()
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			user := rapid.SampledFrom(users).Draw(r, "user")
			plan := rapid.SampledFrom([]string{"pro", "max"}).Draw(r, "plan")
			switch rapid.IntRange(0, 9).Draw(r, "what") {
			case 0:
				_, err := h.store.CreateSubscription(t.Context(), subscription.Subscription{
					UserID: user, PlanKey: plan, Status: subscription.Active, ExpiresAt: time.Now().Add(time.Duration(rapid.IntRange(-1, 1).Draw(r, "hours")) * time.Hour),
				}, "test")
				require.NoError(t, err)
			case 1:
				h.exec(t, `UPDATE subscriptions SET held_at = CASE WHEN held_at IS NULL THEN now() END WHERE user_id = $1`, user)
			case 2:
				if len(late) == 0 { // one at a time: they would wait for each other's locks
					tx, err := h.pool.Begin(t.Context())
					require.NoError(t, err)
					late = append(late, tx)
					_, err = tx.Exec(t.Context(), insertActive, user, plan)
					require.NoError(t, err)
				}
			case 3:
				if len(late) > 0 {
					require.NoError(t, late[0].Commit(t.Context()))
					late = nil
				}
			case 4:
				now, err := h.store.Now(t.Context())
				require.NoError(t, err)
				_, err = h.store.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 100, false)
				require.NoError(t, err)
			case 5:
				h.exec(t, `UPDATE subscriptions SET user_id = $2 WHERE user_id = $1`, user, rapid.SampledFrom(users).Draw(r, "to"))
			case 6:
				_, err := h.store.ChangePlan(t.Context(), plan, func(p *store.Plan) error {
					p.Features = []string{rapid.SampledFrom([]string{"images", "video"}).Draw(r, "feature")}
					return nil
				})
				require.NoError(t, err)
			case 7:
				h.exec(t, `DELETE FROM subscriptions WHERE user_id = $1`, user)
			case 8:
				h.ask(t, user) // what it remembers now may be changed before the next poll
			default:
				compare()
			}
		}
		compare()
	})
}
