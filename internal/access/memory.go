package access

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"termkeeper/internal/subscription"
)

const (
	// shards keep the checks of one process from waiting for each other.
	shards = 64
	// maxWeight bounds the memory: a user weighs one and each of their subscriptions one more, which is some 700 bytes. With
	// one subscription each that is 200,000 users in some 150 MB.
	maxWeight = 400_000
)

// memory is what users hold, as it was read from the database. Each answer compares it with the clock, so an end needs
// no forgetting. Users without a subscription are remembered too.
type memory struct {
	seed   maphash.Seed
	shards [shards]shard
	budget int // weight of one shard

	mu    sync.Mutex
	plans map[string]subscription.Holding // by key, for its key and features: one copy for all
}

type shard struct {
	mu         sync.RWMutex
	users      map[string][]subscription.Holding
	weight     int
	generation uint64 // raised whenever a user of the shard is forgotten, known or not

	hits, misses atomic.Uint64
	_            [64]byte // the next shard has cache lines of its own
}

func newMemory(weight int) *memory {
	m := &memory{seed: maphash.MakeSeed(), budget: weight / shards, plans: map[string]subscription.Holding{}}
	for i := range m.shards {
		m.shards[i].users = map[string][]subscription.Holding{}
	}
	return m
}

func (m *memory) shardOf(user string) *shard {
	return &m.shards[maphash.String(m.seed, user)%shards]
}

// find is what the user holds. What it returns is shared and must not be written to. Where the user is not known,
// generation is for keep.
func (m *memory) find(user string) (holdings []subscription.Holding, generation uint64, known bool) {
	s := m.shardOf(user)
	s.mu.RLock()
	holdings, known = s.users[user]
	generation = s.generation
	s.mu.RUnlock()
	if known {
		s.hits.Add(1)
	} else {
		s.misses.Add(1)
	}
	return holdings, generation, known
}

// keep remembers what was read after find returned the generation, unless something was forgotten meanwhile: the reading
// may be from before the change that this was about.
func (m *memory) keep(user string, generation uint64, holdings []subscription.Holding) {
	kept := m.compact(holdings)
	weight := 1 + len(kept)
	s := m.shardOf(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != generation || weight > m.budget {
		return
	}
	s.drop(user)
	for other := range s.users { // in no order
		if s.weight+weight <= m.budget {
			break
		}
		s.drop(other)
	}
	s.users[strings.Clone(user)] = kept // not a piece of a request
	s.weight += weight
}

// compact copies: others read the same answer of the database. Plans are shared by all who have them.
func (m *memory) compact(holdings []subscription.Holding) []subscription.Holding {
	kept := slices.Clone(holdings)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range kept {
		plan, known := m.plans[kept[i].PlanKey]
		if !known || !slices.Equal(plan.Features, kept[i].Features) {
			plan = kept[i]
			m.plans[plan.PlanKey] = subscription.Holding{Subscription: subscription.Subscription{PlanKey: plan.PlanKey}, Features: plan.Features}
		}
		kept[i].PlanKey, kept[i].Features = plan.PlanKey, plan.Features
	}
	return kept
}

func (m *memory) forgetUser(user string) {
	s := m.shardOf(user)
	s.mu.Lock()
	s.generation++
	s.drop(user)
	s.mu.Unlock()
}

// forgetPlan forgets all who have the plan. It looks at everybody, because plans seldom change.
func (m *memory) forgetPlan(key string) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.generation++
		for user, holdings := range s.users {
			if slices.ContainsFunc(holdings, func(h subscription.Holding) bool { return h.PlanKey == key }) {
				s.drop(user)
			}
		}
		s.mu.Unlock()
	}
}

func (m *memory) forgetAll() {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.generation++
		s.users, s.weight = map[string][]subscription.Holding{}, 0
		s.mu.Unlock()
	}
	m.mu.Lock()
	clear(m.plans)
	m.mu.Unlock()
}

// drop is called under the lock.
func (s *shard) drop(user string) {
	if holdings, known := s.users[user]; known {
		delete(s.users, user)
		s.weight -= 1 + len(holdings)
	}
}
