-- What the provider said, kept so that the terms can be worked out anew in the order in which it was said.
-- No transaction: the tables with events and subscriptions are large and in use, so their indexes are built while others
-- read and write. What a broken-off attempt left behind is made anew.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS provider_truths (
    id          uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    external_id text        NOT NULL,
    said_at     timestamptz NOT NULL,
    asked_at    timestamptz NOT NULL,
    fetched     boolean     NOT NULL,
    object      jsonb       NOT NULL
);
COMMENT ON TABLE provider_truths IS 'What is known of subscriptions at the provider beside their events: answers to fetches and actions of ours, and ends that follow from the deletion of a customer.';
COMMENT ON COLUMN provider_truths.external_id IS 'Id of the subscription at the provider.';
COMMENT ON COLUMN provider_truths.said_at IS 'The second in which the call began, by the provider''s clock; of what follows from an event, its created.';
COMMENT ON COLUMN provider_truths.asked_at IS 'When the call began, by our clock. An event that was stored before is in the answer.';
COMMENT ON COLUMN provider_truths.fetched IS 'The provider answered; else it follows from an event about something else.';
CREATE INDEX IF NOT EXISTS provider_truths_external_id ON provider_truths (external_id, asked_at);

CREATE TABLE IF NOT EXISTS stripe_checkouts (
    subscription_id text PRIMARY KEY CHECK (subscription_id <> ''),
    user_id         text        NOT NULL CHECK (user_id <> ''),
    session_id      text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stripe_checkouts IS 'Whose subscription it is by the checkout session that made it. metadata.user_id of the subscription itself counts before.';

-- These two wait for transactions that began before them, not for readers and writers, so they may wait long.
SET lock_timeout = '60s';
DROP INDEX CONCURRENTLY IF EXISTS payment_webhook_events_subscription;
CREATE INDEX CONCURRENTLY payment_webhook_events_subscription ON payment_webhook_events (object_id)
    WHERE type IN ('customer.subscription.created', 'customer.subscription.updated', 'customer.subscription.deleted');
DROP INDEX CONCURRENTLY IF EXISTS subscriptions_customer;
CREATE INDEX CONCURRENTLY subscriptions_customer ON subscriptions (provider_customer_id) WHERE provider_customer_id IS NOT NULL;
RESET lock_timeout;

-- +goose Down
DROP INDEX IF EXISTS subscriptions_customer;
DROP INDEX IF EXISTS payment_webhook_events_subscription;
DROP TABLE IF EXISTS stripe_checkouts, provider_truths;
