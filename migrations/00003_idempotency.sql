-- Keys of repeated writes, what is kept how long, plans for a lifetime, and questions about the past.
-- Each statement can be run again: the indexes are made beside the work of older processes, which no transaction allows.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS idempotency_keys (
    id              bytea PRIMARY KEY CHECK (length(id) = 32),
    api_key_id      uuid        NOT NULL,
    method          text        NOT NULL,
    path            text        NOT NULL,
    key             text        NOT NULL,
    body_hash       bytea       NOT NULL CHECK (length(body_hash) = 32),
    claim           uuid        NOT NULL,
    leased_until    timestamptz NOT NULL,
    response_status integer CHECK (response_status BETWEEN 200 AND 499),
    response_body   bytea,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT idempotency_keys_answer_is_whole CHECK ((response_status IS NULL) = (response_body IS NULL))
);
COMMENT ON TABLE idempotency_keys IS 'One row per Idempotency-Key of a write: who works on it, and after that the answer. Kept for 24 hours.';
COMMENT ON COLUMN idempotency_keys.id IS 'SHA-256 of API key, method, path and key: their length has no bound that an index could hold.';
COMMENT ON COLUMN idempotency_keys.body_hash IS 'SHA-256 of the request''s body. Another body under the same key is refused.';
COMMENT ON COLUMN idempotency_keys.claim IS 'The fence: a new one with each claim. The answer is written only by the holder of the claim, with the effect in one transaction.';
COMMENT ON COLUMN idempotency_keys.leased_until IS 'Past it, a request without an answer counts as dead, and the next one with the key takes over.';
COMMENT ON COLUMN idempotency_keys.response_status IS 'Null while the request runs.';
CREATE INDEX IF NOT EXISTS idempotency_keys_age ON idempotency_keys (created_at);

ALTER TABLE plans ADD COLUMN IF NOT EXISTS lifetime boolean NOT NULL DEFAULT false;
ALTER TABLE plans DROP CONSTRAINT IF EXISTS plans_lifetime_has_no_duration,
    ADD CONSTRAINT plans_lifetime_has_no_duration CHECK (NOT (lifetime AND duration IS NOT NULL));
COMMENT ON COLUMN plans.lifetime IS 'A subscription of this plan that names no end of its own has none.';

ALTER TABLE subscription_events DROP CONSTRAINT IF EXISTS subscription_events_event_type_check,
    ADD CONSTRAINT subscription_events_event_type_check CHECK (event_type IN (
        'created', 'renewed', 'past_due', 'recovered', 'expired', 'ended', 'canceled', 'uncanceled', 'paused', 'resumed', 'extended',
        'plan_changed', 'reminded_7d', 'reminded_3d', 'reminded_1d', 'changed')) NOT VALID;
ALTER TABLE subscription_events VALIDATE CONSTRAINT subscription_events_event_type_check;

-- Making an index concurrently waits for the transactions under way and keeps nobody waiting; one that was interrupted is
-- left behind invalid and made again.
SET lock_timeout = '1h';
DROP INDEX CONCURRENTLY IF EXISTS subscription_events_user;
CREATE INDEX CONCURRENTLY subscription_events_user ON subscription_events ((detail -> 'terms' ->> 'user_id')) WHERE detail IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS payment_webhook_events_full;
CREATE INDEX CONCURRENTLY payment_webhook_events_full ON payment_webhook_events (received_at)
    WHERE status IN ('processed', 'ignored') AND octet_length(payload) > 0;
DROP INDEX CONCURRENTLY IF EXISTS payment_webhook_events_emptied;
CREATE INDEX CONCURRENTLY payment_webhook_events_emptied ON payment_webhook_events (received_at)
    WHERE status IN ('processed', 'ignored') AND octet_length(payload) = 0;
RESET lock_timeout;
COMMENT ON INDEX subscription_events_user IS 'Finds every subscription that ever was a user''s, for questions about the past.';

-- +goose Down
DROP INDEX IF EXISTS subscription_events_user, payment_webhook_events_full, payment_webhook_events_emptied;
DELETE FROM subscription_events WHERE event_type = 'changed';
ALTER TABLE subscription_events DROP CONSTRAINT subscription_events_event_type_check,
    ADD CONSTRAINT subscription_events_event_type_check CHECK (event_type IN (
        'created', 'renewed', 'past_due', 'recovered', 'expired', 'ended', 'canceled', 'uncanceled', 'paused', 'resumed', 'extended',
        'plan_changed', 'reminded_7d', 'reminded_3d', 'reminded_1d'));
ALTER TABLE plans DROP COLUMN IF EXISTS lifetime;
DROP TABLE IF EXISTS idempotency_keys;
