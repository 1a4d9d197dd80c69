-- Work that follows from changes: events to apply, facts to tell, runs to account for.

-- +goose Up
CREATE TABLE payment_webhook_events (
    id                uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    provider          text        NOT NULL DEFAULT 'stripe',
    external_event_id text        NOT NULL,
    type              text        NOT NULL,
    api_version       text,
    livemode          boolean,
    object_id         text,
    event_created     timestamptz,
    status            text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processed', 'ignored', 'quarantined', 'failed')),
    reason            text,
    attempts          integer     NOT NULL DEFAULT 0,
    next_attempt_at   timestamptz NOT NULL DEFAULT now(),
    leased_until      timestamptz,
    lease_owner       text,
    last_error        text,
    waits_for         text[],
    received_at       timestamptz NOT NULL DEFAULT now(),
    processed_at      timestamptz,
    payload           bytea       NOT NULL,
    UNIQUE (provider, external_event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE payment_webhook_events IS 'Every signed event as it came. Stored first, applied after; "seen" is not "done".';
COMMENT ON COLUMN payment_webhook_events.payload IS 'The raw body. Bytes, not jsonb, which refuses \u0000 and would not keep the signature valid.';
COMMENT ON COLUMN payment_webhook_events.attempts IS 'How often the event was leased for applying.';
COMMENT ON COLUMN payment_webhook_events.reason IS 'Why it is ignored or quarantined, or why it changed nothing.';
COMMENT ON COLUMN payment_webhook_events.waits_for IS 'Of a quarantined event: the prices or the customer whose mapping is missing.';
CREATE INDEX payment_webhook_events_due ON payment_webhook_events (next_attempt_at, id) WHERE status = 'pending';
CREATE INDEX payment_webhook_events_quarantined ON payment_webhook_events (reason, id) WHERE status = 'quarantined';
CREATE INDEX payment_webhook_events_by_status ON payment_webhook_events (status, id);

CREATE TABLE outbox (
    id              uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    topic           text        NOT NULL,
    dedupe_key      text        NOT NULL UNIQUE,
    subscription_id uuid,
    user_id         text,
    kind            text,
    boundary        timestamptz,
    payload         jsonb,
    status          text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'dispatched')),
    attempts        integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    dispatched_at   timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox IS 'Facts, one each, written with the change they tell of. A row carries a state, not an offset, so a lower id that commits later is not lost.';
COMMENT ON COLUMN outbox.dedupe_key IS 'Names the business fact and its period.';
COMMENT ON COLUMN outbox.kind IS 'The variant of the topic, for instance expired or ended for access.ended.';
COMMENT ON COLUMN outbox.payload IS 'What was found out when the fact was dispatched, for instance still_has_access. Null until then: a jsonb per fact would cost the scans a third of their speed.';
COMMENT ON COLUMN outbox.next_attempt_at IS 'Set only on a fact whose dispatch failed; it is not looked at before.';
CREATE INDEX outbox_pending ON outbox (id) WHERE status = 'pending';
CREATE INDEX outbox_subscription ON outbox (subscription_id, id);

CREATE TABLE deliveries (
    id              uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    outbox_id       uuid        NOT NULL REFERENCES outbox (id),
    channel         text        NOT NULL CHECK (channel IN ('email', 'webhook')),
    target          text        NOT NULL,
    topic           text        NOT NULL,
    subscription_id uuid,
    user_id         text,
    status          text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sending', 'sent', 'superseded', 'dead')),
    attempts        integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    leased_until    timestamptz,
    lease_owner     text,
    version         bigint      NOT NULL DEFAULT 1,
    last_error      text,
    message_id      text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz,
    UNIQUE (outbox_id, channel, target),
    CONSTRAINT deliveries_sending_has_a_lease CHECK (status <> 'sending' OR (leased_until IS NOT NULL AND lease_owner IS NOT NULL)),
    CONSTRAINT deliveries_finished_at_belongs_to_ends CHECK ((status IN ('sent', 'superseded', 'dead')) = (finished_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE deliveries IS 'One row per fact and receiver. At least once, with one message id for all attempts.';
COMMENT ON COLUMN deliveries.version IS 'The fence: raised by each claim; the sender marks only what it claimed.';
CREATE INDEX deliveries_due ON deliveries (next_attempt_at, id) WHERE status = 'pending';
CREATE INDEX deliveries_leases ON deliveries (leased_until) WHERE status = 'sending';
CREATE INDEX deliveries_order ON deliveries (subscription_id, channel, target, id) WHERE status IN ('pending', 'sending');
CREATE INDEX deliveries_by_status ON deliveries (status, channel, id);

CREATE TABLE delivery_channels (
    channel      text PRIMARY KEY CHECK (channel IN ('email', 'webhook')),
    paused_until timestamptz,
    failures     integer     NOT NULL DEFAULT 0,
    last_error   text,
    updated_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE delivery_channels IS 'A channel that is down waits here as a whole, so that an outage burns no attempts of its messages.';
INSERT INTO delivery_channels (channel) VALUES ('email'), ('webhook');

CREATE TABLE job_runs (
    job          text        NOT NULL,
    run_id       text        NOT NULL,
    trigger      text        NOT NULL CHECK (trigger IN ('scheduled', 'manual', 'backfill')),
    scheduled_at timestamptz NOT NULL,
    published_at timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    deadline_at  timestamptz NOT NULL,
    finished_at  timestamptz,
    outcome      text CHECK (outcome IN ('ok', 'empty', 'failed', 'timed_out')),
    scanned      bigint      NOT NULL DEFAULT 0,
    changed      bigint      NOT NULL DEFAULT 0,
    skipped      bigint      NOT NULL DEFAULT 0,
    failed       bigint      NOT NULL DEFAULT 0,
    error        text,
    PRIMARY KEY (job, run_id),
    CONSTRAINT job_runs_finished_has_an_outcome CHECK ((finished_at IS NULL) = (outcome IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE job_runs IS 'One row per run of a job. scheduled to published is the scheduler''s delay, published to started is the queue''s.';
COMMENT ON COLUMN job_runs.run_id IS 'Run id of the Temporal workflow execution.';
COMMENT ON COLUMN job_runs.published_at IS 'Start of the workflow execution.';
COMMENT ON COLUMN job_runs.deadline_at IS 'After this the server has ended the run; the next one closes an unfinished row as timed_out.';
CREATE INDEX job_runs_recent ON job_runs (job, started_at DESC);
CREATE INDEX job_runs_open ON job_runs (job, deadline_at) WHERE finished_at IS NULL;
CREATE INDEX job_runs_empty ON job_runs (job, started_at) WHERE outcome = 'empty';

CREATE TABLE set_aside_rows (
    job             text        NOT NULL,
    row_id          uuid        NOT NULL,
    attempts        integer     NOT NULL DEFAULT 1,
    next_attempt_at timestamptz NOT NULL,
    last_error      text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, row_id)
);
COMMENT ON TABLE set_aside_rows IS 'Rows that made a batch fail by themselves. They are tried again alone and later, so that they block nobody.';

-- +goose Down
DROP TABLE set_aside_rows, job_runs, delivery_channels, deliveries, outbox, payment_webhook_events;
