package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/subscription"
)

// SubscriptionNews is a webhook event about a subscription, read and ready to be applied.
type SubscriptionNews struct {
	EventID  string
	Provider subscription.Provider
	News     subscription.News // Received is filled in by the database's clock when it is applied
}

// NewsResult says what became of one event.
type NewsResult struct {
	EventID string
	Skip    subscription.Skip
	Lost    bool // somebody else has the event now; nothing was done
}

// ActorStripe is the actor of changes that a Stripe event made.
const ActorStripe = "stripe"

// lockLeasedEvents is the fence: only what is still ours is applied, and its row is locked until the effect is committed.
// The status is looked at outside the condition: in it, PostgreSQL takes the small index of pending events, which does not
// begin with the id, and walks all of it.
const lockLeasedEvents = `SELECT id, status = 'pending' AND lease_owner IS NOT DISTINCT FROM $2 FROM payment_webhook_events WHERE id = ANY ($1::uuid[])
ORDER BY id FOR UPDATE`

// lockByExternalID locks in the order of ids, as every writer of several rows does.
const lockByExternalID = `SELECT ` + subscriptionColumns + ` FROM subscriptions s WHERE s.external_id = ANY ($1::text[]) ORDER BY s.id FOR UPDATE`

const plansByPrice = `SELECT key, extract(epoch FROM grace_period)::float8 AS grace, stripe_price_ids FROM plans WHERE stripe_price_ids && $1::text[] ORDER BY key`

const usersByCustomer = `SELECT customer_id, user_id FROM stripe_customers WHERE customer_id = ANY ($1::text[])`

const finishEvents = `UPDATE payment_webhook_events e SET status = u.status, reason = u.reason, waits_for = NULL, last_error = NULL,
	processed_at = CASE WHEN u.status = 'processed' THEN clock_timestamp() END, leased_until = NULL, lease_owner = NULL
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u(id, status, reason) WHERE e.id = u.id`

const setWaitsFor = `UPDATE payment_webhook_events SET waits_for = $2 WHERE id = $1`

const learnCustomers = `INSERT INTO stripe_customers (customer_id, user_id)
SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT (customer_id) DO NOTHING`

// fillUsers fills in what is empty; what a person has set stays.
const fillUsers = `INSERT INTO users AS t (id, email, name) SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
ON CONFLICT (id) DO UPDATE SET email = coalesce(t.email, excluded.email), name = coalesce(t.name, excluded.name), updated_at = now()
WHERE (t.email IS NULL AND excluded.email IS NOT NULL) OR (t.name IS NULL AND excluded.name IS NOT NULL)`

// ApplySubscriptionNews applies a group of events in one transaction: effects, history and the marks on the events are
// there together or not at all. Deadlocks and rows that another process wrote meanwhile are tried again here. Any other
// error means that nothing of the group was done.
func (s *Store) ApplySubscriptionNews(ctx context.Context, group []SubscriptionNews, owner string, leeway time.Duration) ([]NewsResult, error) {
	const tries = 5
	for try := 1; ; try++ {
		var results []NewsResult
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			var err error
			results, err = applyNews(ctx, tx, group, owner, leeway)
			if err == nil {
				failpoint.Hit("apply_before_commit")
			}
			return err
		})
		if err == nil {
			return results, nil
		}
		if try == tries || (!again(err) && !errors.Is(err, ErrConflict)) {
			return nil, fmt.Errorf("applying %d webhook events: %w", len(group), err)
		}
	}
}

// known is what the database knows about a group of news.
type known struct {
	now       time.Time
	ours      map[string]bool // event ids that are still leased to us
	rows      map[string]subscription.Subscription
	plans     map[string]subscription.Plan // by price
	customers map[string]string
}

func applyNews(ctx context.Context, tx pgx.Tx, group []SubscriptionNews, owner string, leeway time.Duration) ([]NewsResult, error) {
	have, err := readKnown(ctx, tx, group, owner)
	if err != nil {
		return nil, err
	}
	// Older news first: the result is the same in any order, the history reads better in this one.
	order := slices.Clone(group)
	slices.SortStableFunc(order, func(a, b SubscriptionNews) int { return a.News.Created.Compare(b.News.Created) })
	folded := fold{have: have, leeway: leeway, writes: map[string]*write{}}
	for _, n := range order {
		folded.add(n)
	}
	if err := writeSubscriptions(ctx, tx, folded.list(), have.now); err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	folded.queue(batch)
	if batch.Len() > 0 {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return nil, err
		}
	}
	return folded.results, nil
}

func readKnown(ctx context.Context, tx pgx.Tx, group []SubscriptionNews, owner string) (known, error) {
	have := known{ours: map[string]bool{}, rows: map[string]subscription.Subscription{}, plans: map[string]subscription.Plan{}, customers: map[string]string{}}
	var events, externals, prices, customers []string
	for _, n := range group {
		events, externals = append(events, n.EventID), append(externals, n.Provider.ExternalID)
		prices, customers = append(prices, n.Provider.PriceIDs...), append(customers, n.Provider.CustomerID)
	}
	batch := &pgx.Batch{}
	batch.Queue(lockLeasedEvents, events, owner).Query(func(rows pgx.Rows) error {
		var id string
		var ours bool
		_, err := pgx.ForEachRow(rows, []any{&id, &ours}, func() error {
			have.ours[id] = ours
			return nil
		})
		return err
	})
	batch.Queue(lockByExternalID, externals).Query(func(rows pgx.Rows) error {
		list, err := collectSubscriptions(rows, nil)
		for _, s := range list {
			have.rows[s.ExternalID] = s
		}
		return err
	})
	batch.Queue(plansByPrice, prices).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var p subscription.Plan
			var grace float64
			var sells []string
			if err := rows.Scan(&p.Key, &grace, &sells); err != nil {
				return err
			}
			p.Grace = time.Duration(grace * float64(time.Second))
			for _, price := range sells {
				if _, taken := have.plans[price]; !taken {
					have.plans[price] = p
				}
			}
		}
		return rows.Err()
	})
	batch.Queue(usersByCustomer, customers).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var customer, user string
			if err := rows.Scan(&customer, &user); err != nil {
				return err
			}
			have.customers[customer] = user
		}
		return rows.Err()
	})
	batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&have.now) })
	err := tx.SendBatch(ctx, batch).Close()
	have.now = have.now.UTC()
	return have, err
}

// fold applies news one after the other to the rows as they will be.
type fold struct {
	have    known
	leeway  time.Duration
	writes  map[string]*write // by external id
	order   []string
	results []NewsResult
	waits   map[string][]string // what a quarantined event waits for
	links   map[string]string   // customer → user
	contact map[string]subscription.Provider
}

func (f *fold) add(n SubscriptionNews) {
	if !f.have.ours[n.EventID] {
		f.results = append(f.results, NewsResult{EventID: n.EventID, Lost: true})
		return
	}
	p, key := n.Provider, n.Provider.ExternalID
	var current *subscription.Subscription
	if w := f.writes[key]; w != nil {
		current = &w.next
	} else if row, ok := f.have.rows[key]; ok {
		current = &row
	}
	metadataUser := p.UserID
	if p.UserID == "" && current == nil {
		p.UserID = f.have.customers[p.CustomerID]
	}
	n.News.Received = f.have.now
	if n.News.Created.IsZero() {
		n.News.Created = f.have.now.Truncate(time.Second)
	}
	outcome := subscription.Apply(current, p, n.News, f.plan(p), f.leeway)
	switch {
	case outcome.Skip == subscription.SkipNone:
		f.write(key, outcome)
		if current == nil && metadataUser != "" && p.CustomerID != "" {
			f.learn(p)
		}
	case outcome.Mark && current != nil && !current.NeedsReconcile:
		marked := *current
		marked.NeedsReconcile = true
		f.write(key, subscription.Outcome{Next: marked})
	}
	switch outcome.Skip {
	case subscription.SkipPlanUnmapped:
		f.wait(n.EventID, p.PriceIDs)
	case subscription.SkipUserUnmapped:
		f.wait(n.EventID, []string{p.CustomerID})
	default: // waits for nothing
	}
	f.results = append(f.results, NewsResult{EventID: n.EventID, Skip: outcome.Skip})
}

// plan is the plan of the first price that maps.
func (f *fold) plan(p subscription.Provider) *subscription.Plan {
	for _, price := range p.PriceIDs {
		if plan, ok := f.have.plans[price]; ok {
			return &plan
		}
	}
	return nil
}

func (f *fold) write(key string, o subscription.Outcome) {
	w := f.writes[key]
	if w == nil {
		w = &write{actor: ActorStripe}
		if row, ok := f.have.rows[key]; ok {
			w.prev = &row
		} else {
			o.Next.ID = NewID()
		}
		f.writes[key] = w
		f.order = append(f.order, key)
	}
	w.next = o.Next
	w.changes = append(w.changes, o.Changes...)
}

func (f *fold) learn(p subscription.Provider) {
	if f.links == nil {
		f.links, f.contact = map[string]string{}, map[string]subscription.Provider{}
	}
	f.links[p.CustomerID] = p.UserID
	if p.Email != "" || p.Name != "" {
		f.contact[p.UserID] = p
	}
}

func (f *fold) wait(eventID string, missing []string) {
	if f.waits == nil {
		f.waits = map[string][]string{}
	}
	f.waits[eventID] = missing
}

// list is what is to be written, in the order of external ids: two processes that make the same rows wait for each
// other and never deadlock.
func (f *fold) list() []write {
	slices.Sort(f.order)
	list := make([]write, len(f.order))
	for i, key := range f.order {
		list[i] = *f.writes[key]
	}
	return list
}

// queue adds the marks on the events and what was learned about customers.
func (f *fold) queue(batch *pgx.Batch) {
	var ids, statuses []string
	var reasons []*string
	for _, r := range f.results {
		if r.Lost {
			continue
		}
		status := "processed"
		if r.Skip.Quarantine() {
			status = "quarantined"
		}
		ids, statuses, reasons = append(ids, r.EventID), append(statuses, status), append(reasons, text(string(r.Skip)))
	}
	if len(ids) > 0 {
		batch.Queue(finishEvents, ids, statuses, reasons)
	}
	for id, waits := range f.waits {
		batch.Queue(setWaitsFor, id, waits)
	}
	if len(f.links) > 0 {
		var customers, users []string
		for _, customer := range slices.Sorted(maps.Keys(f.links)) {
			customers, users = append(customers, customer), append(users, f.links[customer])
		}
		batch.Queue(learnCustomers, customers, users)
	}
	if len(f.contact) > 0 {
		var users []string
		var emails, names []*string
		for _, user := range slices.Sorted(maps.Keys(f.contact)) {
			users, emails, names = append(users, user), append(emails, text(f.contact[user].Email)), append(names, text(f.contact[user].Name))
		}
		batch.Queue(fillUsers, users, emails, names)
	}
}
