-- Outgoing webhooks: who is told of facts by HTTP, and what became of each call.
-- No transaction: deliveries is large and in use, so its index is built while others read and write. What a broken-off
-- attempt left behind is made anew.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS webhook_endpoints (
    id              uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    url             text        NOT NULL CHECK (url <> ''),
    topics          text[]      NOT NULL CHECK (cardinality(topics) > 0),
    secret          bytea       NOT NULL,
    previous_secret bytea,
    previous_until  timestamptz,
    status          text        NOT NULL DEFAULT 'enabled' CHECK (status IN ('enabled', 'disabled', 'deleted')),
    disabled_reason text CHECK (disabled_reason IN ('operator', 'gone', 'failing')),
    disabled_at     timestamptz,
    failures        integer     NOT NULL DEFAULT 0,
    failing_since   timestamptz,
    paused_until    timestamptz,
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT webhook_endpoints_previous_secret_has_an_end CHECK ((previous_secret IS NULL) = (previous_until IS NULL)),
    CONSTRAINT webhook_endpoints_disabled_says_why CHECK (status <> 'disabled' OR (disabled_reason IS NOT NULL AND disabled_at IS NOT NULL)),
    CONSTRAINT webhook_endpoints_enabled_is_not_disabled CHECK (status <> 'enabled' OR (disabled_reason IS NULL AND disabled_at IS NULL))
);
COMMENT ON TABLE webhook_endpoints IS 'Who is told of facts by HTTP. A deleted one stays, because deliveries name it.';
COMMENT ON COLUMN webhook_endpoints.topics IS 'Topics it wants: a whole one, a prefix like access.*, or * for all.';
COMMENT ON COLUMN webhook_endpoints.secret IS 'The signing secret, sealed by AES-GCM with TERMKEEPER_SECRET_KEY for this row.';
COMMENT ON COLUMN webhook_endpoints.previous_secret IS 'The secret before the last rotation, sealed too. It signs beside the new one until previous_until.';
COMMENT ON COLUMN webhook_endpoints.disabled_reason IS 'operator: by a person; gone: it answered 410; failing: nothing but failures for days.';
COMMENT ON COLUMN webhook_endpoints.failures IS 'How often in a row it could not take anything; 0 when it did last. Calls at the same time count once.';
COMMENT ON COLUMN webhook_endpoints.failing_since IS 'Since when nothing but failures came of it.';
COMMENT ON COLUMN webhook_endpoints.paused_until IS 'It is not called before: an endpoint that is down burns no attempts of its deliveries.';

ALTER TABLE deliveries ADD COLUMN IF NOT EXISTS refusals integer NOT NULL DEFAULT 0, ADD COLUMN IF NOT EXISTS response_status integer;
COMMENT ON COLUMN deliveries.target IS 'The address of a mail; the id of the endpoint of a webhook.';
COMMENT ON COLUMN deliveries.refusals IS 'Of a webhook: how many of its attempts failed by what it says, and not because its endpoint was down.';
COMMENT ON COLUMN deliveries.response_status IS 'Of a webhook: the HTTP status of the last answer; null when there was none.';

-- These wait for transactions that began before them, not for readers and writers, so they may wait long.
SET lock_timeout = '60s';
DROP INDEX CONCURRENTLY IF EXISTS deliveries_due_webhook;
CREATE INDEX CONCURRENTLY deliveries_due_webhook ON deliveries (target, next_attempt_at, id) WHERE status = 'pending' AND channel = 'webhook';
COMMENT ON INDEX deliveries_due_webhook IS 'What each endpoint waits for, so that one with a long queue does not stand before the others.';

-- The ones before held both channels: mails would be looked for among the calls that wait for an endpoint that is down. The
-- program before goes by deliveries_by_status meanwhile.
DROP INDEX CONCURRENTLY IF EXISTS deliveries_due_mail;
CREATE INDEX CONCURRENTLY deliveries_due_mail ON deliveries (next_attempt_at, id) WHERE status = 'pending' AND channel = 'email';
DROP INDEX CONCURRENTLY IF EXISTS deliveries_urgent_mail;
CREATE INDEX CONCURRENTLY deliveries_urgent_mail ON deliveries (next_attempt_at, id)
    WHERE status = 'pending' AND channel = 'email' AND topic IN ('access.started', 'payment.failed', 'payment.recovered');
COMMENT ON INDEX deliveries_urgent_mail IS 'Answers to what a person or their bank just did. They do not wait behind the thousands that a scan can make at once.';
DROP INDEX CONCURRENTLY IF EXISTS deliveries_due;
DROP INDEX CONCURRENTLY IF EXISTS deliveries_due_urgent;
RESET lock_timeout;

-- +goose Down
CREATE INDEX IF NOT EXISTS deliveries_due ON deliveries (next_attempt_at, id) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS deliveries_due_urgent ON deliveries (next_attempt_at, id)
    WHERE status = 'pending' AND topic IN ('access.started', 'payment.failed', 'payment.recovered');
DROP INDEX IF EXISTS deliveries_urgent_mail;
DROP INDEX IF EXISTS deliveries_due_mail;
DROP INDEX IF EXISTS deliveries_due_webhook;
ALTER TABLE deliveries DROP COLUMN IF EXISTS response_status, DROP COLUMN IF EXISTS refusals;
DROP TABLE IF EXISTS webhook_endpoints;
