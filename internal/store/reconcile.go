package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"termkeeper/internal/subscription"
)

// The parts of a sweep, in their order.
const (
	PhaseSweep  = "sweep"  // the provider's subscriptions, page by page
	PhaseUnseen = "unseen" // ours that were not among them
)

// ReconcileState is how far the reconciliation has come. Zero fields say that nothing is under way.
type ReconcileState struct {
	NotBefore time.Time // the provider is not to be asked before
	// EventsFrom: events that were created before it have all been looked at. EventsUntil and EventsAfter are the bound and the
	// position of the pass under way.
	EventsFrom, EventsUntil time.Time
	EventsAfter             string
	UndeliveredAfter        string // position of the pass through the undelivered events
	SweptOn                 string // calendar day of the last sweep that was begun, as 2026-12-01
	Phase, PhaseAfter       string // part of the sweep under way and the position in it
}

// ReconcileLock is held by the one run, of all processes, that reconciles now. It ends with the connection that took it, so
// a process that is killed leaves none behind, and one that has lost it can write no progress any more.
type ReconcileLock struct{ conn *pgxpool.Conn }

const (
	lockReconcile   = `SELECT pg_try_advisory_lock(hashtextextended('termkeeper subscription-reconcile', 0))`
	unlockReconcile = `SELECT pg_advisory_unlock(hashtextextended('termkeeper subscription-reconcile', 0))`
)

// LockReconcile takes the lock, or returns nil where another run has it. The caller releases it.
func (s *Store) LockReconcile(ctx context.Context) (*ReconcileLock, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("taking the lock of the reconciliation: %w", err)
	}
	var taken bool
	if err := conn.QueryRow(ctx, lockReconcile).Scan(&taken); err != nil {
		conn.Release()
		return nil, fmt.Errorf("taking the lock of the reconciliation: %w", err)
	}
	if !taken {
		conn.Release()
		return nil, nil //nolint:nilnil // no lock is an ordinary answer
	}
	return &ReconcileLock{conn}, nil
}

// Release gives the lock back, also when ctx has ended.
func (l *ReconcileLock) Release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if _, err := l.conn.Exec(ctx, unlockReconcile); err != nil {
		l.conn.Conn().Close(ctx) // the lock ends with the connection, which the pool then throws away
	}
	l.conn.Release()
}

const reconcileState = `SELECT not_before, events_from, events_until, coalesce(events_after, ''), coalesce(undelivered_after, ''),
	coalesce(to_char(swept_on, 'YYYY-MM-DD'), ''), coalesce(phase, ''), coalesce(phase_after, ''), clock_timestamp()
FROM reconcile_state WHERE provider = 'stripe'`

// State is how far the reconciliation has come, and the database's clock.
func (l *ReconcileLock) State(ctx context.Context) (state ReconcileState, now time.Time, err error) {
	var notBefore, from, until pgtype.Timestamptz
	err = l.conn.QueryRow(ctx, reconcileState).Scan(&notBefore, &from, &until, &state.EventsAfter, &state.UndeliveredAfter,
		&state.SweptOn, &state.Phase, &state.PhaseAfter, &now)
	if err != nil {
		return state, now, fmt.Errorf("reading how far the reconciliation has come: %w", err)
	}
	state.NotBefore, state.EventsFrom, state.EventsUntil = instant(notBefore), instant(from), instant(until)
	return state, now.UTC(), nil
}

const saveReconcileState = `UPDATE reconcile_state SET not_before = $1, events_from = $2, events_until = $3, events_after = $4, undelivered_after = $5,
	swept_on = $6::date, phase = $7, phase_after = $8, updated_at = now() WHERE provider = 'stripe'`

func (s ReconcileState) queue(batch *pgx.Batch) {
	batch.Queue(saveReconcileState, timestamptz(s.NotBefore), timestamptz(s.EventsFrom), timestamptz(s.EventsUntil), text(s.EventsAfter),
		text(s.UndeliveredAfter), text(s.SweptOn), text(s.Phase), text(s.PhaseAfter))
}

// Save keeps how far the reconciliation has come.
func (l *ReconcileLock) Save(ctx context.Context, state ReconcileState) error {
	_, err := l.SavePage(ctx, state, ReconcilePage{})
	return err
}

// BeginSweep is Save for a state that begins a sweep: nothing has been seen in it yet.
func (l *ReconcileLock) BeginSweep(ctx context.Context, state ReconcileState) error {
	return l.write(ctx, state, func(batch *pgx.Batch) error {
		batch.Queue(`DELETE FROM reconcile_seen`)
		return nil
	})
}

// ReconcilePage is what a page came to, beside its repairs, which are committed before.
type ReconcilePage struct {
	Seen     []string  // subscriptions that the provider listed, by its id
	Compared []string  // subscriptions that were compared: what was open about them and is not among Findings is resolved
	Findings []Finding // differences that were not repaired
}

const insertSeen = `INSERT INTO reconcile_seen (external_id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`

// SavePage keeps a page together with the state after it. It returns those of its findings that were not open before.
func (l *ReconcileLock) SavePage(ctx context.Context, state ReconcileState, page ReconcilePage) (fresh []Finding, err error) {
	err = l.write(ctx, state, func(batch *pgx.Batch) error {
		fresh = nil
		if len(page.Seen) > 0 {
			batch.Queue(insertSeen, page.Seen)
		}
		if len(page.Compared) > 0 {
			kinds := make(map[string]string, len(page.Findings))
			for _, f := range page.Findings {
				kinds[f.ExternalID] = f.Kind
			}
			still := make([]string, len(page.Compared))
			for i, id := range page.Compared {
				still[i] = kinds[id]
			}
			batch.Queue(resolveFindings, page.Compared, still)
		}
		return queueFindings(batch, page.Findings, func(f Finding) { fresh = append(fresh, f) })
	})
	return fresh, err
}

// write saves the state with what queue adds, in one transaction of the connection that holds the lock.
func (l *ReconcileLock) write(ctx context.Context, state ReconcileState, queue func(*pgx.Batch) error) error {
	err := pgx.BeginFunc(ctx, l.conn, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		state.queue(batch)
		if err := queue(batch); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("keeping how far the reconciliation has come: %w", err)
	}
	return nil
}

// toAsk are rows whose truth is in doubt, and subscriptions whose mapping was missing and exists now. A row about which the
// provider could not say what helps waits an hour, so that many of them do not stand in front of all else in each run.
const toAsk = `SELECT external_id FROM (
	SELECT s.external_id FROM subscriptions s WHERE s.needs_reconcile AND s.provider = 'stripe'
		AND NOT EXISTS (SELECT 1 FROM drift_findings o WHERE o.external_id = s.external_id AND o.action <> 'repaired' AND o.resolved_at IS NULL
			AND o.event_id IS NULL AND o.seen_at > clock_timestamp() - interval '1 hour')
	UNION
	SELECT f.external_id FROM drift_findings f WHERE f.action = 'quarantined' AND f.resolved_at IS NULL AND f.event_id IS NULL AND (
		(f.kind = 'plan_unmapped' AND EXISTS (SELECT 1 FROM plans p WHERE p.stripe_price_ids && f.waits_for)) OR
		(f.kind = 'user_unmapped' AND (EXISTS (SELECT 1 FROM stripe_customers c WHERE c.customer_id = ANY (f.waits_for))
			OR EXISTS (SELECT 1 FROM stripe_checkouts k WHERE k.subscription_id = f.external_id))))) AS a
WHERE a.external_id > $1 ORDER BY a.external_id LIMIT $2`

// SubscriptionsToAsk are at most limit subscriptions of the provider, by its id and after the given one, about which it is to be asked.
func (s *Store) SubscriptionsToAsk(ctx context.Context, after string, limit int) ([]string, error) {
	return s.externalIDs(ctx, "looking for subscriptions to ask about", toAsk, after, limit)
}

// unseen walks the unique index of the external ids, once a day. A row that was heard of since the sweep was listed is asked for
// as well: that is few.
const unseen = `SELECT s.external_id FROM subscriptions s
WHERE s.provider = 'stripe' AND s.external_id > $1
	AND (s.status IN ('trialing', 'active', 'past_due', 'paused') OR s.access_until > clock_timestamp() - $3::interval OR s.expired_at > clock_timestamp() - $3::interval)
	AND NOT EXISTS (SELECT 1 FROM reconcile_seen r WHERE r.external_id = s.external_id)
ORDER BY s.external_id LIMIT $2`

// UnseenSubscriptions are at most limit live or recently ended subscriptions of the provider, by its id and after the given
// one, that it did not list in the sweep.
func (s *Store) UnseenSubscriptions(ctx context.Context, after string, limit int) ([]string, error) {
	return s.externalIDs(ctx, "looking for subscriptions that the provider did not list", unseen, after, limit, subscription.RecoveryHorizon)
}

func (s *Store) externalIDs(ctx context.Context, doing, query string, args ...any) ([]string, error) {
	rows, err := s.pool.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return ids, nil
}

// Known is what the database knows about subscriptions of the provider.
type Known struct{ known }

// At is the database's clock when it was read.
func (k *Known) At() time.Time { return k.now }

// Of adds to the provider's object whose it may be, and finds our row and the plan that its prices sell; nil where there is none.
func (k *Known) Of(p subscription.Provider) (subscription.Provider, *subscription.Subscription, *subscription.Plan) {
	p = k.owned(p)
	if row, ok := k.rows[p.ExternalID]; ok {
		return p, &row, k.plan(p)
	}
	return p, nil, k.plan(p)
}

// KnownOf reads what is known about what the provider said, without a lock.
func (s *Store) KnownOf(ctx context.Context, said []subscription.Provider) (*Known, error) {
	k := &Known{newKnown()}
	var externals, prices, customers []string
	for _, p := range said {
		externals, prices, customers = append(externals, p.ExternalID), append(prices, p.PriceIDs...), append(customers, p.CustomerID)
	}
	batch := &pgx.Batch{}
	batch.Queue(subscriptionsByExternalID, externals).Query(func(rows pgx.Rows) error {
		list, err := collectSubscriptions(rows, nil)
		for _, row := range list {
			k.rows[row.ExternalID] = row
		}
		return err
	})
	k.readPlans(batch, unique(prices))
	k.readOwners(batch, unique(customers), externals)
	batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&k.now) })
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("reading what is known of the provider's subscriptions: %w", err)
	}
	k.now = k.now.UTC()
	return k, nil
}

const lockVersion = `SELECT version FROM subscriptions WHERE external_id = $1 FOR UPDATE`

// errMoved ends a repair whose row is not the one that was compared.
var errMoved = errors.New("the row has moved")

// RepairDrift applies the provider's answer to the row that was compared with it, t.Version, and writes the finding with it, in
// one transaction. repaired is false when the row has moved since: then nothing was done, and the provider is to be asked again.
func (s *Store) RepairDrift(ctx context.Context, t Truth, f Finding, leeway time.Duration) (repaired bool, err error) {
	err = s.againOnConflict(ctx, func(tx pgx.Tx) error {
		var version int64
		if err := tx.QueryRow(ctx, lockVersion, t.Provider.ExternalID).Scan(&version); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if version != t.Version {
			return errMoved
		}
		after, skip, err := applyTruth(ctx, tx, t, leeway)
		switch {
		case err != nil:
			return err
		case skip != subscription.SkipNone:
			return errMoved
		}
		f.Action, f.SubscriptionID, f.UserID = DriftRepaired, after.ID, after.UserID
		batch := &pgx.Batch{}
		batch.Queue(resolveFindings, []string{f.ExternalID}, []string{""})
		if err := queueRepaired(batch, f); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	switch {
	case errors.Is(err, errMoved):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("repairing %s: %w", f.ExternalID, err)
	}
	return true, nil
}

const missingEvents = `SELECT u.id FROM unnest($1::text[]) AS u(id)
WHERE NOT EXISTS (SELECT 1 FROM payment_webhook_events e WHERE e.provider = 'stripe' AND e.external_event_id = u.id)`

// MissingEvents are those of the provider's events that are not stored.
func (s *Store) MissingEvents(ctx context.Context, externalIDs []string) ([]string, error) {
	return s.externalIDs(ctx, "looking for missing events", missingEvents, externalIDs)
}

const eventsPending = `SELECT EXISTS (SELECT 1 FROM payment_webhook_events WHERE provider = 'stripe' AND external_event_id = ANY ($1::text[]) AND status = 'pending')`

// EventsPending reports whether any of the provider's events is still to be applied.
func (s *Store) EventsPending(ctx context.Context, externalIDs []string) (bool, error) {
	var pending bool
	if err := s.pool.QueryRow(ctx, eventsPending, externalIDs).Scan(&pending); err != nil {
		return false, fmt.Errorf("looking for pending events: %w", err)
	}
	return pending, nil
}

// mustAffect turns the number of rows into an error where it is not the one that is wanted.
func mustAffect(n int64) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != n {
			return ErrConflict
		}
		return nil
	}
}
