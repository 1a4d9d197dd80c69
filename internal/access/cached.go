package access

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

const (
	// pollEvery is from the beginning of one poll of the feed to that of the next, unless it takes longer. Half of it is
	// what a change usually takes to be seen.
	pollEvery = 25 * time.Millisecond
	// maxSilence is how long memory may answer after the last poll that came back was sent. A change is seen within a second;
	// the rest of that second is for an answer under way.
	maxSilence = 900 * time.Millisecond
	// pollTimeout gives a session up that does not answer. Memory has fallen silent before.
	pollTimeout = 3 * time.Second
	// reconnectPause is between two attempts to begin a session.
	reconnectPause = 100 * time.Millisecond
)

// Cached answers from memory while the feed of changes proves that memory is fresh, and like its Reader while it does not.
type Cached struct {
	reader *Reader
	memory *memory
	proof  atomic.Pointer[proof] // nil without a session

	fallbacks atomic.Uint64 // checks answered by the reader because the feed was silent
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// proof says that memory lacks no change that was committed before sent.
type proof struct {
	sent  time.Time // before the poll was sent; monotonic
	clock clock
}

// NewCached puts a memory before the reader. It follows the feed on one connection of feed's pool, until Close.
func NewCached(reader *Reader, feed *store.Store, log *zap.Logger) *Cached {
	ctx, stop := context.WithCancel(context.Background())
	c := &Cached{reader: reader, memory: newMemory(maxWeight), stop: stop}
	c.running.Go(func() { c.follow(ctx, feed, log) })
	return c
}

// Close ends the feed. It is called once, after the callers have stopped and before the reader is closed.
func (c *Cached) Close() {
	c.stop()
	c.running.Wait()
}

// Holdings is what the users have, with an instant of the database's clock. The instant is not before the call, by that
// clock, and every change that was committed more than a second before the call is in what they have. What it returns
// must not be written to.
func (c *Cached) Holdings(ctx context.Context, userIDs []string) (map[string][]subscription.Holding, time.Time, error) {
	p, now := c.proven()
	if p == nil {
		return c.reader.Holdings(ctx, userIDs)
	}
	found := make(map[string][]subscription.Holding, len(userIDs))
	var unknown []string
	var generations []uint64
	for _, user := range userIDs {
		holdings, generation, known := c.memory.find(user)
		if !known {
			unknown, generations = append(unknown, user), append(generations, generation)
			continue
		}
		found[user] = holdings
	}
	if len(unknown) == 0 {
		return found, p.clock.at(now), nil
	}
	read, at, err := c.reader.Holdings(ctx, unknown)
	if err != nil {
		return nil, time.Time{}, err
	}
	for i, user := range unknown {
		c.memory.keep(user, generations[i], read[user])
		found[user] = read[user]
	}
	return found, at, nil
}

// Holding is Holdings of one user. From memory it allocates nothing.
func (c *Cached) Holding(ctx context.Context, userID string) ([]subscription.Holding, time.Time, error) {
	p, now := c.proven()
	if p == nil {
		return c.reader.Holding(ctx, userID)
	}
	holdings, generation, known := c.memory.find(userID)
	if known {
		return holdings, p.clock.at(now), nil
	}
	holdings, at, err := c.reader.Holding(ctx, userID)
	if err != nil {
		return nil, time.Time{}, err
	}
	c.memory.keep(userID, generation, holdings)
	return holdings, at, nil
}

// proven is the proof that memory is fresh now, or nil.
func (c *Cached) proven() (*proof, time.Time) {
	p := c.proof.Load()
	now := time.Now() // after the proof was taken: its age is never too small
	if p == nil || now.Sub(p.sent) >= maxSilence {
		c.fallbacks.Add(1)
		return nil, now
	}
	return p, now
}

// follow keeps a session with the feed, one after the other.
func (c *Cached) follow(ctx context.Context, feed *store.Store, log *zap.Logger) {
	silent := false
	for {
		err := c.session(ctx, feed, func() {
			if silent {
				log.Info("the feed of changes is back; access checks are answered from memory")
				silent = false
			}
		})
		c.proof.Store(nil)
		if ctx.Err() != nil {
			return
		}
		if !silent {
			log.Warn("the feed of changes is gone; access checks are answered from the database", zap.Error(err))
			silent = true
		}
		select {
		case <-time.After(reconnectPause):
		case <-ctx.Done():
			return
		}
	}
}

// session follows the feed until it breaks. What is in memory when a session begins may be older than what the feed tells
// of, so it is forgotten; within a session a silence, however long, loses nothing.
func (c *Cached) session(ctx context.Context, feed *store.Store, begun func()) error {
	sent := time.Now()
	changes, k, err := c.begin(ctx, feed, sent)
	if err != nil {
		return err
	}
	defer changes.Close()
	begun()
	pause := time.NewTimer(pollEvery)
	defer pause.Stop()
	for {
		c.proof.Store(&proof{sent: sent, clock: k})
		pause.Reset(time.Until(sent.Add(pollEvery)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		sent = time.Now()
		if k, err = c.poll(ctx, changes, k, sent); err != nil {
			return err
		}
	}
}

func (c *Cached) begin(ctx context.Context, feed *store.Store, sent time.Time) (*store.AccessFeed, clock, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	changes, at, err := feed.OpenAccessFeed(ctx)
	if err != nil {
		return nil, clock{}, err
	}
	c.memory.forgetAll()
	return changes, clock{asked: sent, read: at}, nil
}

// poll forgets what has changed. It returns the better of two readings of the database's clock.
func (c *Cached) poll(ctx context.Context, changes *store.AccessFeed, k clock, sent time.Time) (clock, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	p, err := changes.Poll(ctx, c.forget)
	if err != nil {
		return clock{}, err
	}
	if p.Lost {
		c.memory.forgetAll()
	}
	return k.better(clock{asked: sent, read: p.At}, time.Now()), nil
}

func (c *Cached) forget(change store.AccessChange) {
	switch {
	case len(change.UserIDs) > 0:
		for _, user := range change.UserIDs {
			c.memory.forgetUser(user)
		}
	case change.PlanKey != "":
		c.memory.forgetPlan(change.PlanKey)
	default:
		c.memory.forgetAll()
	}
}

// Stats are for metrics.
type Stats struct {
	Hits, Misses uint64        // users found in memory, or not
	Fallbacks    uint64        // questions answered from the database because the feed was silent
	Users        int           // in memory
	FeedAge      time.Duration // since the last poll that came back was sent; negative without a session
}

// Stats counts since the start.
func (c *Cached) Stats() Stats {
	s := Stats{Fallbacks: c.fallbacks.Load(), FeedAge: -1}
	for i := range c.memory.shards {
		one := &c.memory.shards[i]
		s.Hits += one.hits.Load()
		s.Misses += one.misses.Load()
		one.mu.RLock()
		s.Users += len(one.users)
		one.mu.RUnlock()
	}
	if p := c.proof.Load(); p != nil {
		s.FeedAge = time.Since(p.sent)
	}
	return s
}
