-- Reconciliation with the payment provider: how far it has come, and what it found.

-- +goose Up
CREATE TABLE reconcile_state (
    provider          text PRIMARY KEY CHECK (provider IN ('stripe')),
    not_before        timestamptz,
    events_from       timestamptz,
    events_until      timestamptz,
    events_after      text,
    undelivered_after text,
    swept_on          date,
    phase             text CHECK (phase IN ('sweep', 'unseen')),
    phase_after       text,
    updated_at        timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT reconcile_state_page_has_a_pass CHECK (events_after IS NULL OR events_until IS NOT NULL),
    CONSTRAINT reconcile_state_page_has_a_phase CHECK (phase_after IS NULL OR phase IS NOT NULL)
);
COMMENT ON TABLE reconcile_state IS 'How far the reconciliation with a provider has come, written after each page, so that a run that is killed is gone on with.';
COMMENT ON COLUMN reconcile_state.not_before IS 'The provider had too much to do and said when to come again.';
COMMENT ON COLUMN reconcile_state.events_from IS 'Events that were created before this instant of the provider''s have all been looked at.';
COMMENT ON COLUMN reconcile_state.events_until IS 'Upper bound of the pass through the events that is under way; null when none is.';
COMMENT ON COLUMN reconcile_state.events_after IS 'The last event of the last page of that pass. Pages go from new to old.';
COMMENT ON COLUMN reconcile_state.undelivered_after IS 'The last event of the last page of an unfinished pass through the undelivered events.';
COMMENT ON COLUMN reconcile_state.swept_on IS 'Calendar day of the last sweep that was begun.';
COMMENT ON COLUMN reconcile_state.phase IS 'The part of the sweep that is under way: the provider''s subscriptions (sweep), then ours that were not among them (unseen); null when none is.';
COMMENT ON COLUMN reconcile_state.phase_after IS 'The last subscription of the last page of that part.';
INSERT INTO reconcile_state (provider) VALUES ('stripe');

CREATE TABLE reconcile_seen (
    external_id text PRIMARY KEY
);
COMMENT ON TABLE reconcile_seen IS 'Subscriptions that the provider listed in the sweep that is under way, by its id. Emptied when the next one begins.';

CREATE TABLE drift_findings (
    id              uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    provider        text        NOT NULL DEFAULT 'stripe' CHECK (provider IN ('stripe')),
    kind            text        NOT NULL CHECK (kind <> ''),
    action          text        NOT NULL CHECK (action IN ('repaired', 'quarantined', 'none')),
    external_id     text        NOT NULL,
    subscription_id uuid,
    user_id         text,
    event_id        text,
    ours            jsonb,
    theirs          jsonb,
    cause           text,
    reason          text,
    waits_for       text[],
    found_at        timestamptz NOT NULL DEFAULT now(),
    seen_at         timestamptz NOT NULL DEFAULT now(),
    resolved_at     timestamptz,
    alerted_at      timestamptz,
    CONSTRAINT drift_findings_unrepaired_has_a_reason CHECK (action = 'repaired' OR reason IS NOT NULL)
);
COMMENT ON TABLE drift_findings IS 'Every difference between the provider and us that reconciliation found, and what was done about it.';
COMMENT ON COLUMN drift_findings.kind IS 'What differed, in one word.';
COMMENT ON COLUMN drift_findings.external_id IS 'The object at the provider that it is about: a subscription, or what an event is about.';
COMMENT ON COLUMN drift_findings.event_id IS 'Of a missing event: its id at the provider.';
COMMENT ON COLUMN drift_findings.ours IS 'The fields that differed, as they were here.';
COMMENT ON COLUMN drift_findings.theirs IS 'The same fields as they follow from what the provider says.';
COMMENT ON COLUMN drift_findings.cause IS 'Why it came to differ, where that is known.';
COMMENT ON COLUMN drift_findings.reason IS 'Why nothing was repaired, or what else is to be known.';
COMMENT ON COLUMN drift_findings.waits_for IS 'Of a quarantined one: the prices or the customer whose mapping is missing.';
COMMENT ON COLUMN drift_findings.seen_at IS 'When it was found again last. One that is not repaired is found by every sweep and stays one row.';
COMMENT ON COLUMN drift_findings.resolved_at IS 'When a difference that had not been repaired was gone.';
COMMENT ON COLUMN drift_findings.alerted_at IS 'When operators were told of a repair.';
CREATE INDEX drift_findings_found ON drift_findings (found_at);
CREATE INDEX drift_findings_kind ON drift_findings (kind, id);
CREATE INDEX drift_findings_action ON drift_findings (action, id);
CREATE INDEX drift_findings_object ON drift_findings (external_id, id);
CREATE UNIQUE INDEX drift_findings_open ON drift_findings (external_id, kind, coalesce(event_id, '')) WHERE action <> 'repaired' AND resolved_at IS NULL;
CREATE INDEX drift_findings_to_tell ON drift_findings (id) WHERE action = 'repaired' AND alerted_at IS NULL;

-- +goose Down
DROP TABLE drift_findings, reconcile_seen, reconcile_state;
