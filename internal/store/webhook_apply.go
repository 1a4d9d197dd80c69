package store

import (
	"cmp"
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
	// Asks: it was left as it is, still leased, because the provider is to be asked first. Version is that of the row after
	// the group, 0 where there is none; SettleSubscription goes on from it.
	Asks    bool
	Version int64
	// Retry: it was left as it is, still leased, because it cannot be applied without the provider's answer.
	Retry bool
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

const usersByCheckout = `SELECT subscription_id, user_id FROM stripe_checkouts WHERE subscription_id = ANY ($1::text[])`

// finishEvents names the object where a row that was seeded by hand does not: Refold looks for the events of an object.
// A quarantined event is tried again after an hour even if nothing is known to have changed: the provider may tell more.
const finishEvents = `UPDATE payment_webhook_events e SET status = u.status, reason = u.reason, waits_for = NULL, last_error = NULL,
	object_id = coalesce(e.object_id, u.object_id),
	next_attempt_at = CASE WHEN u.status = 'quarantined' THEN now() + interval '1 hour' ELSE e.next_attempt_at END,
	processed_at = CASE WHEN u.status = 'processed' THEN clock_timestamp() END, leased_until = NULL, lease_owner = NULL
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS u(id, status, reason, object_id) WHERE e.id = u.id`

const setWaitsFor = `UPDATE payment_webhook_events SET waits_for = $2 WHERE id = $1`

const learnCustomers = `INSERT INTO stripe_customers (customer_id, user_id)
SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT (customer_id) DO NOTHING`

// fillUsers fills in what is empty; what a person has set stays.
const fillUsers = `INSERT INTO users AS t (id, email, name) SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
ON CONFLICT (id) DO UPDATE SET email = coalesce(t.email, excluded.email), name = coalesce(t.name, excluded.name), updated_at = now()
WHERE (t.email IS NULL AND excluded.email IS NOT NULL) OR (t.name IS NULL AND excluded.name IS NOT NULL)`

// ApplySubscriptionNews applies a group of events in one transaction: effects, history and the marks on the events are
// there together or not at all. An event whose order only the provider can tell is left leased, and its result Asks. Deadlocks and
// rows that another process wrote meanwhile are tried again here. Any other error means that nothing of the group was done.
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
	checkouts map[string]string // user by subscription
}

func newKnown() known {
	return known{
		ours: map[string]bool{}, rows: map[string]subscription.Subscription{}, plans: map[string]subscription.Plan{},
		customers: map[string]string{}, checkouts: map[string]string{},
	}
}

func applyNews(ctx context.Context, tx pgx.Tx, group []SubscriptionNews, owner string, leeway time.Duration) ([]NewsResult, error) {
	have, err := readKnown(ctx, tx, group, owner)
	if err != nil {
		return nil, err
	}
	// Older news first: the result is the same in any order, the history reads better in this one.
	order := slices.Clone(group)
	slices.SortStableFunc(order, func(a, b SubscriptionNews) int { return a.News.Created.Compare(b.News.Created) })
	folded := fold{have: have, leeway: leeway, writes: map[string]*write{}, actor: ActorStripe}
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
	folded.version()
	return folded.results, nil
}

func readKnown(ctx context.Context, tx pgx.Tx, group []SubscriptionNews, owner string) (known, error) {
	have := newKnown()
	var events, externals, prices, customers, nobodys []string
	for _, n := range group {
		events, externals = append(events, n.EventID), append(externals, n.Provider.ExternalID)
		prices = append(prices, n.Provider.PriceIDs...)
		if n.Provider.UserID == "" {
			customers, nobodys = append(customers, n.Provider.CustomerID), append(nobodys, n.Provider.ExternalID)
		}
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
	have.lockRows(batch, externals)
	have.readPlans(batch, prices)
	have.readOwners(batch, customers, nobodys)
	batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&have.now) })
	err := tx.SendBatch(ctx, batch).Close()
	have.now = have.now.UTC()
	return have, err
}

func (k *known) lockRows(batch *pgx.Batch, externals []string) {
	batch.Queue(lockByExternalID, externals).Query(func(rows pgx.Rows) error {
		list, err := collectSubscriptions(rows, nil)
		for _, s := range list {
			k.rows[s.ExternalID] = s
		}
		return err
	})
}

func (k *known) readPlans(batch *pgx.Batch, prices []string) {
	batch.Queue(plansByPrice, prices).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var p subscription.Plan
			var grace float64
			var sells []string
			if err := rows.Scan(&p.Key, &grace, &sells); err != nil {
				return err
			}
			p.Grace = seconds(grace)
			for _, price := range sells {
				if _, taken := k.plans[price]; !taken {
					k.plans[price] = p
				}
			}
		}
		return rows.Err()
	})
}

// readOwners looks for whose the subscriptions are that do not say it themselves.
func (k *known) readOwners(batch *pgx.Batch, customers, externals []string) {
	if len(externals) == 0 {
		return
	}
	into := func(users map[string]string) func(pgx.Rows) error {
		return func(rows pgx.Rows) error {
			var key, user string
			_, err := pgx.ForEachRow(rows, []any{&key, &user}, func() error {
				users[key] = user
				return nil
			})
			return err
		}
	}
	batch.Queue(usersByCustomer, customers).Query(into(k.customers))
	batch.Queue(usersByCheckout, externals).Query(into(k.checkouts))
}

// owned adds to the provider's object what is known about whose it is.
func (k *known) owned(p subscription.Provider) subscription.Provider {
	p.CheckoutUserID, p.LinkedUserID = k.checkouts[p.ExternalID], k.customers[p.CustomerID]
	return p
}

// plan is the plan of the first price that maps.
func (k *known) plan(p subscription.Provider) *subscription.Plan {
	for _, price := range p.PriceIDs {
		if plan, ok := k.plans[price]; ok {
			return &plan
		}
	}
	return nil
}

// fold applies news one after the other to the rows as they will be.
type fold struct {
	have    known
	leeway  time.Duration
	actor   string
	note    string
	writes  map[string]*write // by external id
	order   []string
	results []NewsResult
	objects []string            // the subscription of each result
	waits   map[string][]string // what a quarantined event waits for
	links   map[string]string   // customer → user
	contact map[string]subscription.Provider
}

func (f *fold) add(n SubscriptionNews) {
	key := n.Provider.ExternalID
	if !f.have.ours[n.EventID] {
		f.results, f.objects = append(f.results, NewsResult{EventID: n.EventID, Lost: true}), append(f.objects, key)
		return
	}
	var current *subscription.Subscription
	if w := f.writes[key]; w != nil {
		current = &w.next
	} else if row, ok := f.have.rows[key]; ok {
		current = &row
	}
	p := f.have.owned(n.Provider)
	n.News.Received = f.have.now
	if n.News.Created.IsZero() {
		n.News.Created = f.have.now.Truncate(time.Second)
	}
	outcome := subscription.Apply(current, p, n.News, f.have.plan(p), f.leeway)
	if outcome.Fetch {
		f.results = append(f.results, NewsResult{EventID: n.EventID, Asks: true})
		f.objects = append(f.objects, key)
		return
	}
	if outcome.Skip == subscription.SkipNone {
		f.write(key, outcome)
		if current == nil {
			f.learn(p)
		}
	}
	if outcome.Skip == subscription.SkipPlanUnmapped {
		f.wait(n.EventID, p.PriceIDs)
	}
	f.results = append(f.results, NewsResult{EventID: n.EventID, Skip: outcome.Skip})
	f.objects = append(f.objects, key)
}

// version tells the events that ask which version their row has now.
func (f *fold) version() {
	for i, r := range f.results {
		if !r.Asks {
			continue
		}
		key := f.objects[i]
		f.results[i].Version = f.have.rows[key].Version
		if f.writes[key] != nil {
			f.results[i].Version++
		}
	}
}

func (f *fold) write(key string, o subscription.Outcome) {
	w := f.writes[key]
	if w == nil {
		w = &write{actor: f.actor, note: f.note}
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

// learn remembers whose customer it is, where the provider said that, and how to reach the user.
func (f *fold) learn(p subscription.Provider) {
	if f.links == nil {
		f.links, f.contact = map[string]string{}, map[string]subscription.Provider{}
	}
	user := cmp.Or(p.UserID, p.CheckoutUserID, p.CustomerUserID)
	if user != "" && p.CustomerID != "" {
		f.links[p.CustomerID] = user
	}
	if user = cmp.Or(user, p.LinkedUserID); user != "" && (p.Email != "" || p.Name != "") {
		f.contact[user] = p
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
	var ids, statuses, objects []string
	var reasons []*string
	for i, r := range f.results {
		if r.Lost || r.Asks || r.Retry {
			continue
		}
		status := "processed"
		if r.Skip.Quarantine() {
			status = "quarantined"
		}
		ids, statuses, reasons = append(ids, r.EventID), append(statuses, status), append(reasons, text(string(r.Skip)))
		objects = append(objects, f.objects[i])
	}
	if len(ids) > 0 {
		batch.Queue(finishEvents, ids, statuses, reasons, objects)
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
