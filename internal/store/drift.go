package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// What was done about a difference.
const (
	DriftRepaired    = "repaired"
	DriftQuarantined = "quarantined" // somebody must say first what is missing
	DriftNone        = "none"        // Finding.Reason says why not
)

// Finding is a difference between the provider and us. ID and the instants are the database's.
type Finding struct {
	ID             string
	Kind, Action   string
	ExternalID     string // of the object that it is about
	SubscriptionID string
	UserID         string
	EventID        string // of a missing event
	Ours, Theirs   map[string]string
	Cause          string // why it came to differ; "" is not known
	Reason         string // why nothing was repaired
	WaitsFor       []string
	FoundAt        time.Time
	SeenAt         time.Time
	ResolvedAt     time.Time // of one that was not repaired: when it was gone
}

const insertRepaired = `INSERT INTO drift_findings (id, kind, action, external_id, subscription_id, user_id, event_id, ours, theirs, cause, reason)
VALUES ($1, $2, 'repaired', $3, $4, $5, $6, $7, $8, $9, $10)`

// upsertFinding: a difference that stays is one row, however often it is found.
const upsertFinding = `INSERT INTO drift_findings AS d (id, kind, action, external_id, subscription_id, user_id, event_id, ours, theirs, cause, reason, waits_for)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (external_id, kind, coalesce(event_id, '')) WHERE action <> 'repaired' AND resolved_at IS NULL
DO UPDATE SET seen_at = now(), action = excluded.action, ours = excluded.ours, theirs = excluded.theirs, reason = excluded.reason,
	cause = coalesce(excluded.cause, d.cause), waits_for = excluded.waits_for, subscription_id = excluded.subscription_id, user_id = excluded.user_id
RETURNING d.id = $1`

// resolveFindings closes what was open about subscriptions, but for the kind that was found again.
const resolveFindings = `UPDATE drift_findings f SET resolved_at = now() FROM unnest($1::text[], $2::text[]) AS u(external_id, kind)
WHERE f.external_id = u.external_id AND f.kind <> u.kind AND f.action <> 'repaired' AND f.resolved_at IS NULL AND f.event_id IS NULL`

func (f Finding) sides() (ours, theirs []byte, err error) {
	for _, side := range []struct {
		from map[string]string
		to   *[]byte
	}{{f.Ours, &ours}, {f.Theirs, &theirs}} {
		if side.from == nil {
			continue
		}
		if *side.to, err = json.Marshal(side.from); err != nil {
			return nil, nil, fmt.Errorf("writing a finding about %s: %w", f.ExternalID, err)
		}
	}
	return ours, theirs, nil
}

func queueRepaired(batch *pgx.Batch, f Finding) error {
	ours, theirs, err := f.sides()
	if err != nil {
		return err
	}
	batch.Queue(insertRepaired, NewID(), f.Kind, f.ExternalID, text(f.SubscriptionID), text(f.UserID), text(f.EventID), ours, theirs, text(f.Cause), text(f.Reason)).
		Exec(mustAffect(1))
	return nil
}

// queueFindings writes differences that were not repaired. fresh is told of those that were not open before.
func queueFindings(batch *pgx.Batch, list []Finding, fresh func(Finding)) error {
	for _, f := range list {
		ours, theirs, err := f.sides()
		if err != nil {
			return err
		}
		batch.Queue(upsertFinding, NewID(), f.Kind, f.Action, f.ExternalID, text(f.SubscriptionID), text(f.UserID), text(f.EventID), ours, theirs,
			text(f.Cause), text(f.Reason), f.WaitsFor).QueryRow(func(row pgx.Row) error {
			var isNew bool
			if err := row.Scan(&isNew); err != nil {
				return err
			}
			if isNew {
				fresh(f)
			}
			return nil
		})
	}
	return nil
}

// RecordFindings writes differences that were not repaired, or not yet.
func (s *Store) RecordFindings(ctx context.Context, list []Finding) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		if err := queueFindings(batch, list, func(Finding) {}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("writing findings: %w", err)
	}
	return nil
}

// settleEventFindings says of each missing event what became of it once it was there. What is still to be applied stays as it is.
const settleEventFindings = `UPDATE drift_findings f SET action = n.action, reason = n.reason, resolved_at = n.resolved_at,
	subscription_id = coalesce(f.subscription_id, (SELECT s.id FROM subscriptions s WHERE s.external_id = f.external_id))
FROM (SELECT o.id,
		CASE WHEN e.status = 'processed' AND e.reason IS NULL THEN 'repaired' WHEN e.status = 'quarantined' THEN 'quarantined' ELSE 'none' END AS action,
		CASE e.status WHEN 'processed' THEN 'it changed nothing: ' || e.reason WHEN 'ignored' THEN 'it is only kept: ' || coalesce(e.reason, 'unused')
			WHEN 'quarantined' THEN coalesce(e.reason, 'it is quarantined') ELSE 'it cannot be applied' END AS reason,
		CASE WHEN e.status IN ('processed', 'ignored') THEN now() END AS resolved_at
	FROM drift_findings o JOIN payment_webhook_events e ON e.provider = 'stripe' AND e.external_event_id = o.event_id
	WHERE o.event_id IS NOT NULL AND o.action <> 'repaired' AND o.resolved_at IS NULL AND e.status <> 'pending') n
WHERE f.id = n.id AND (f.action, f.reason) IS DISTINCT FROM (n.action, n.reason)
RETURNING f.kind, f.action`

// SettleEventFindings says of missing events that were stored since what became of them. It returns those that it says something new of.
func (s *Store) SettleEventFindings(ctx context.Context) ([]Finding, error) {
	rows, err := s.pool.Query(ctx, settleEventFindings)
	if err != nil {
		return nil, fmt.Errorf("settling findings about events: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Finding, error) {
		var f Finding
		err := row.Scan(&f.Kind, &f.Action)
		return f, err
	})
	if err != nil {
		return nil, fmt.Errorf("settling findings about events: %w", err)
	}
	return list, nil
}

// driftCauses: an event that was never delivered and is still without effect tells more than one that waits here. The types are those
// of the index.
const driftCauses = `SELECT DISTINCT ON (c.external_id) c.external_id, c.cause FROM (
	SELECT f.external_id, 'event ' || f.event_id || ' was not delivered' AS cause, 0 AS rank, f.found_at AS at FROM drift_findings f
	WHERE f.external_id = ANY ($1::text[]) AND f.event_id IS NOT NULL AND f.action <> 'repaired' AND f.resolved_at IS NULL
	UNION ALL
	SELECT e.object_id, 'event ' || e.external_event_id || CASE e.status WHEN 'pending' THEN ' waits to be applied' WHEN 'failed' THEN ' could not be applied'
		ELSE ' is quarantined' END, 1, e.received_at FROM payment_webhook_events e
	WHERE e.object_id = ANY ($1::text[]) AND e.type IN ('customer.subscription.created', 'customer.subscription.updated', 'customer.subscription.deleted',
			'customer.subscription.paused', 'customer.subscription.resumed', 'customer.subscription.trial_will_end')
		AND e.status IN ('pending', 'failed', 'quarantined')) AS c
ORDER BY c.external_id, c.rank, c.at DESC`

// DriftCauses says why subscriptions may differ, as far as stored events tell, by the provider's id.
func (s *Store) DriftCauses(ctx context.Context, externalIDs []string) (map[string]string, error) {
	causes := map[string]string{}
	rows, err := s.pool.Query(ctx, driftCauses, externalIDs)
	if err == nil {
		var id, cause string
		_, err = pgx.ForEachRow(rows, []any{&id, &cause}, func() error {
			causes[id] = cause
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("looking for causes of drift: %w", err)
	}
	return causes, nil
}

const tellRepaired = `WITH told AS (UPDATE drift_findings SET alerted_at = now() WHERE action = 'repaired' AND alerted_at IS NULL RETURNING id, kind)
SELECT kind, count(*)::int, max(id::text), now() FROM told GROUP BY kind`

// TellDrift writes the fact alert.drift about all repairs that nobody was told of yet, and returns how many there are.
func (s *Store) TellDrift(ctx context.Context) (repaired int, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		repaired = 0
		rows, err := tx.Query(ctx, tellRepaired)
		if err != nil {
			return err
		}
		kinds, newest := map[string]int{}, ""
		var kind, last string
		var n int
		var now time.Time
		_, err = pgx.ForEachRow(rows, []any{&kind, &n, &last, &now}, func() error {
			kinds[kind], newest = n, max(newest, last)
			repaired += n
			return nil
		})
		if err != nil || repaired == 0 {
			return err
		}
		batch := &pgx.Batch{}
		alert := Fact{Topic: "alert.drift", Key: "alert.drift:" + newest, Payload: map[string]any{"repaired": repaired, "kinds": kinds}}
		if err := queueFacts(batch, now.UTC(), []Fact{alert}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("telling of drift: %w", err)
	}
	return repaired, nil
}

const countDrift = `SELECT kind, action, count(*)::int FROM drift_findings WHERE found_at >= $1 AND found_at < $2 GROUP BY kind, action ORDER BY kind, action`

const countOpenDrift = `SELECT count(*)::int FROM drift_findings WHERE action <> 'repaired' AND resolved_at IS NULL`

// DriftWeek is a week of the calendar that drift is reported of.
type DriftWeek struct {
	Name     string // as 2026-W49
	From, To time.Time
}

// ReportDrift writes the fact report.drift about a week, once.
func (s *Store) ReportDrift(ctx context.Context, week DriftWeek) error {
	key := "report.drift:" + week.Name
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var told bool
		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM outbox WHERE dedupe_key = $1), now()`, key).Scan(&told, &now); err != nil || told {
			return err
		}
		type count struct {
			Kind   string `json:"kind"`
			Action string `json:"action"`
			Count  int    `json:"count"`
		}
		rows, err := tx.Query(ctx, countDrift, week.From, week.To)
		if err != nil {
			return err
		}
		counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[count])
		if err != nil {
			return err
		}
		var open int
		if err := tx.QueryRow(ctx, countOpenDrift).Scan(&open); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		report := Fact{Topic: "report.drift", Key: key, Payload: map[string]any{
			"week": week.Name, "from": week.From.UTC(), "to": week.To.UTC(), "counts": counts, "open": open,
		}}
		if err := queueFacts(batch, now.UTC(), []Fact{report}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("reporting the drift of %s: %w", week.Name, err)
	}
	return nil
}

// FindingFilter narrows a list. Empty fields do not narrow. From is included, To is not.
type FindingFilter struct {
	Kind, Action string
	From, To     time.Time
}

// findingRow is a row of the list.
type findingRow struct {
	ID             string
	Kind           string
	Action         string
	ExternalID     string
	SubscriptionID *string
	UserID         *string
	EventID        *string
	Ours           map[string]string
	Theirs         map[string]string
	Cause          *string
	Reason         *string
	FoundAt        time.Time
	SeenAt         time.Time
	ResolvedAt     *time.Time
}

const findingColumns = `f.id, f.kind, f.action, f.external_id, f.subscription_id, f.user_id, f.event_id, f.ours, f.theirs, f.cause, f.reason,
	f.found_at, f.seen_at, f.resolved_at`

// Findings is one page of at most limit findings with ids before the given one, newest first.
func (s *Store) Findings(ctx context.Context, filter FindingFilter, before string, limit int) ([]Finding, error) {
	var query strings.Builder
	query.WriteString(`SELECT ` + findingColumns + ` FROM drift_findings f WHERE true`)
	var args []any
	where := func(condition string, use bool, v any) {
		if use {
			args = append(args, v)
			fmt.Fprintf(&query, " AND %s $%d", condition, len(args))
		}
	}
	where("f.kind =", filter.Kind != "", filter.Kind)
	where("f.action =", filter.Action != "", filter.Action)
	where("f.found_at >=", !filter.From.IsZero(), filter.From)
	where("f.found_at <", !filter.To.IsZero(), filter.To)
	where("f.id <", before != "", before)
	args = append(args, limit)
	fmt.Fprintf(&query, " ORDER BY f.id DESC LIMIT $%d", len(args))
	rows, err := s.pool.Query(ctx, query.String(), args...)
	if err != nil {
		return nil, fmt.Errorf("listing findings: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[findingRow])
	if err != nil {
		return nil, fmt.Errorf("listing findings: %w", err)
	}
	findings := make([]Finding, len(list))
	for i, r := range list {
		findings[i] = Finding{
			ID: r.ID, Kind: r.Kind, Action: r.Action, ExternalID: r.ExternalID, SubscriptionID: value(r.SubscriptionID), UserID: value(r.UserID),
			EventID: value(r.EventID), Ours: r.Ours, Theirs: r.Theirs, Cause: value(r.Cause), Reason: value(r.Reason), FoundAt: r.FoundAt.UTC(), SeenAt: r.SeenAt.UTC(),
		}
		if r.ResolvedAt != nil {
			findings[i].ResolvedAt = r.ResolvedAt.UTC()
		}
	}
	return findings, nil
}
