package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/subscription"
)

const (
	// refoldable is how old a row may be whose terms are worked out anew from all that the provider said of it. Payloads are
	// kept as long.
	refoldable = 30 * 24 * time.Hour
	// mostSaid bounds what is read of one subscription.
	mostSaid = 500
)

// Question is a subscription whose events asked for the provider's answer.
type Question struct {
	ExternalID string
	Version    int64 // of the row before the provider was asked; 0 when there was none
	// News are the events that ask, leased. Without any, what is known about its user has changed.
	News   []SubscriptionNews
	Answer *Truth // nil when there is none
	Tried  bool   // the provider was asked; without an Answer it may answer later
}

// Read turns the stored body of an event into what it says. An error means that it says nothing.
type Read func(payload []byte) (subscription.Provider, subscription.News, error)

// lockAskingEvents is lockLeasedEvents with the instants of receipt.
const lockAskingEvents = `SELECT id, status = 'pending' AND lease_owner IS NOT DISTINCT FROM $2, received_at FROM payment_webhook_events
WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE`

// eventsOfObject: an ignored one was of another account or mode. The types are those of the index.
const eventsOfObject = `SELECT id, payload, received_at, status = 'processed' FROM payment_webhook_events
WHERE object_id = $1 AND type IN ('customer.subscription.created', 'customer.subscription.updated', 'customer.subscription.deleted',
	'customer.subscription.paused', 'customer.subscription.resumed', 'customer.subscription.trial_will_end')
	AND status <> 'ignored' ORDER BY id LIMIT $2`

// SettleSubscription applies what was found out about one subscription, with the marks on the events that asked, in one
// transaction. ErrConflict when the row has moved since the question was put: the provider is to be asked again.
func (s *Store) SettleSubscription(ctx context.Context, q Question, owner string, leeway time.Duration, read Read) ([]NewsResult, error) {
	var results []NewsResult
	settle := func(tx pgx.Tx) error {
		var err error
		results, err = settleQuestion(ctx, tx, q, owner, leeway, read)
		if err == nil {
			failpoint.Hit("apply_before_commit")
		}
		return err
	}
	err := pgx.BeginFunc(ctx, s.pool, settle)
	if err != nil && again(err) { // a deadlock
		err = pgx.BeginFunc(ctx, s.pool, settle)
	}
	switch {
	case errors.Is(err, ErrConflict):
		return nil, ErrConflict
	case err != nil:
		return nil, fmt.Errorf("settling %s: %w", q.ExternalID, err)
	}
	return results, nil
}

func settleQuestion(ctx context.Context, tx pgx.Tx, q Question, owner string, leeway time.Duration, read Read) ([]NewsResult, error) {
	a, err := readAsked(ctx, tx, q, owner, read)
	if err != nil {
		return nil, err
	}
	folded := fold{have: a.have, leeway: leeway, writes: map[string]*write{}, actor: ActorStripe}
	if len(q.News) > 0 && len(a.question.Asks) == 0 { // somebody else has all of the events
		for _, n := range q.News {
			folded.add(n)
		}
		return folded.results, nil
	}
	var current *subscription.Subscription
	row, exists := a.have.rows[q.ExternalID]
	if exists {
		current = &row
	}
	if row.Version != q.Version {
		return nil, ErrConflict
	}
	outcome := subscription.Settle(current, a.question, a.have.now, leeway)
	var said subscription.Provider // from which to learn whose customer it is
	if q.Answer != nil {
		said = a.have.owned(q.Answer.Provider)
	}
	folded.take(q.ExternalID, current, said, outcome)
	for i, n := range q.News {
		folded.settled(n, a.event[i], outcome, q)
	}
	if err := writeSubscriptions(ctx, tx, folded.list(), a.have.now); err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	if q.Answer != nil && (outcome.Skip == subscription.SkipNone || outcome.Skip == subscription.SkipStale) {
		if err := queueTruth(batch, *q.Answer, a.have.now); err != nil {
			return nil, err
		}
	}
	folded.queue(batch)
	if batch.Len() == 0 {
		return folded.results, nil
	}
	return folded.results, tx.SendBatch(ctx, batch).Close()
}

// asked is a question with all that the database knows about it.
type asked struct {
	have     known
	question subscription.Question
	event    []*subscription.Observation // of each event of the question; nil where it is not ours any more
}

func readAsked(ctx context.Context, tx pgx.Tx, q Question, owner string, read Read) (*asked, error) {
	a := &asked{have: newKnown()}
	received := map[string]time.Time{}
	ids := make([]string, len(q.News))
	for i, n := range q.News {
		ids[i] = n.EventID
	}
	var said []subscription.Observation
	complete := true
	batch := &pgx.Batch{}
	batch.Queue(lockAskingEvents, ids, owner).Query(func(rows pgx.Rows) error {
		var id string
		var ours bool
		var at time.Time
		_, err := pgx.ForEachRow(rows, []any{&id, &ours, &at}, func() error {
			a.have.ours[id], received[id] = ours, at
			return nil
		})
		return err
	})
	a.have.lockRows(batch, []string{q.ExternalID})
	batch.Queue(eventsOfObject, q.ExternalID, mostSaid+1).Query(func(rows pgx.Rows) error {
		var err error
		said, complete, err = readSaid(rows, q.ExternalID, a.have.ours, read)
		return err
	})
	batch.Queue(truthsOf, q.ExternalID, mostSaid).Query(func(rows pgx.Rows) error {
		truths, err := pgx.CollectRows(rows, pgx.RowToStructByName[truthRow])
		for _, t := range truths {
			o, err := t.observation()
			complete = complete && err == nil
			said = append(said, o)
		}
		return err
	})
	batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&a.have.now) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	a.have.now = a.have.now.UTC()
	asks := make([]int, 0, len(q.News)) // their places in said
	place := make([]int, len(q.News))
	for i, n := range q.News {
		place[i] = -1
		if !a.have.ours[n.EventID] {
			continue
		}
		n.News.Received = received[n.EventID]
		place[i] = len(said)
		asks = append(asks, len(said))
		said = append(said, subscription.Observation{ID: n.EventID, Provider: n.Provider, News: n.News})
	}
	answer := -1
	if q.Answer != nil {
		answer = len(said)
		news := q.Answer.news(q.Answer.began(a.have.now))
		said = append(said, subscription.Observation{Provider: q.Answer.Provider, News: news})
	}
	if err := a.complete(ctx, tx, said); err != nil {
		return nil, err
	}
	a.event = make([]*subscription.Observation, len(q.News))
	for i, p := range place {
		if p >= 0 {
			a.event[i] = &said[p]
		}
	}
	for _, p := range asks {
		a.question.Asks = append(a.question.Asks, said[p])
	}
	slices.SortStableFunc(a.question.Asks, func(x, y subscription.Observation) int { return x.News.Created.Compare(y.News.Created) })
	if answer >= 0 {
		a.question.Answer = &said[answer]
	}
	if row, exists := a.have.rows[q.ExternalID]; exists && complete && allSaid(row, said, a.have.now) {
		a.question.Said = said
	}
	return a, nil
}

// complete adds to the observations which plan they are about and whose they may be.
func (a *asked) complete(ctx context.Context, tx pgx.Tx, said []subscription.Observation) error {
	var prices, customers, externals []string
	for _, o := range said {
		prices = append(prices, o.Provider.PriceIDs...)
		customers, externals = append(customers, o.Provider.CustomerID), append(externals, o.Provider.ExternalID)
	}
	batch := &pgx.Batch{}
	a.have.readPlans(batch, unique(prices))
	a.have.readOwners(batch, unique(customers), unique(externals))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	for i := range said {
		o := &said[i]
		o.Provider, o.Plan = a.have.owned(o.Provider), a.have.plan(o.Provider)
		if o.News.Created.IsZero() { // as new as its receipt
			o.News.Created = o.News.Received.Truncate(time.Second)
		}
	}
	return nil
}

func unique(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// readSaid reads the stored events of a subscription but those that ask, which are known already. One that somebody else has
// finished meanwhile does not ask any more: it was said. complete is false when there are too many, or one that was applied
// cannot be read any more.
func readSaid(rows pgx.Rows, externalID string, asking map[string]bool, read Read) (said []subscription.Observation, complete bool, err error) {
	complete = true
	stored := 0
	for rows.Next() {
		var id string
		var payload []byte
		var received time.Time
		var applied bool
		if err := rows.Scan(&id, &payload, &received, &applied); err != nil {
			return nil, false, err
		}
		stored++
		if asking[id] {
			continue
		}
		p, news, err := read(payload)
		if err != nil || p.ExternalID != externalID {
			complete = complete && !applied
			continue
		}
		news.Received = received
		said = append(said, subscription.Observation{ID: id, Provider: p, News: news, Applied: applied})
	}
	return said, complete && stored <= mostSaid, rows.Err()
}

// allSaid reports whether the row can only come from what was said: it is younger than what is kept, and it was made
// when something had been said already.
func allSaid(row subscription.Subscription, said []subscription.Observation, now time.Time) bool {
	if row.CreatedAt.Before(now.Add(-refoldable)) {
		return false
	}
	return slices.ContainsFunc(said, func(o subscription.Observation) bool { return !o.News.Received.After(row.CreatedAt) })
}

// take writes an outcome, or the mark that it asks for, and learns from what the provider said.
func (f *fold) take(key string, current *subscription.Subscription, p subscription.Provider, o subscription.Outcome) {
	switch {
	case o.Skip == subscription.SkipNone:
		o.Next.NeedsReconcile = o.Next.NeedsReconcile || o.Mark
		f.write(key, o)
		f.learn(p)
	case o.Mark && current != nil && !current.NeedsReconcile:
		marked := *current
		marked.NeedsReconcile = true
		f.write(key, subscription.Outcome{Next: marked})
	}
}

// settled says what becomes of an event that asked.
func (f *fold) settled(n SubscriptionNews, o *subscription.Observation, outcome subscription.Outcome, q Question) {
	result := NewsResult{EventID: n.EventID, Skip: outcome.Skip, Lost: o == nil}
	if o != nil && q.Answer == nil {
		var current *subscription.Subscription
		if row, ok := f.have.rows[q.ExternalID]; ok {
			current = &row
		}
		o.News.Received = f.have.now
		// What the payload lacks is its own matter, and not made good by what else is known.
		if own := subscription.Apply(current, o.Provider, o.News, o.Plan, f.leeway).Skip; own.Quarantine() || current == nil {
			result.Skip = own
		}
		result.Retry = q.Tried && (result.Skip == subscription.SkipPeriodMissing || result.Skip == subscription.SkipUnknownStatus)
	}
	switch missing := n.Provider; {
	case result.Skip == subscription.SkipPlanUnmapped && q.Answer != nil:
		f.wait(n.EventID, q.Answer.Provider.PriceIDs)
	case result.Skip == subscription.SkipPlanUnmapped:
		f.wait(n.EventID, missing.PriceIDs)
	case result.Skip == subscription.SkipUserUnmapped:
		f.wait(n.EventID, []string{missing.CustomerID})
	}
	f.results, f.objects = append(f.results, result), append(f.objects, q.ExternalID)
}
