-- Which payment is for which invoice and period, so that a refund or a dispute is judged by what it takes back.
-- No transaction: the table of events is large and in use, so its index is built while others read and write. What a
-- broken-off attempt left behind is made anew.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS stripe_invoices (
    id              text PRIMARY KEY CHECK (id <> ''),
    subscription_id text        NOT NULL CHECK (subscription_id <> ''),
    customer_id     text,
    period_start    timestamptz,
    period_end      timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stripe_invoices IS 'Paid invoices of subscriptions. In the newer payload shape the invoice does not name its payment and the payment not its invoice, so each is kept until the other is heard of.';
COMMENT ON COLUMN stripe_invoices.period_end IS 'Earliest end of the periods that it charges for in advance; null for one of 0, of prorations or of usage alone: a refund of that takes no time back.';

ALTER TABLE payments ADD COLUMN IF NOT EXISTS charge_refunded_amount bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN payments.charge_refunded_amount IS 'The most that the charge itself was heard to say was given back, in minor units. It counts where the refunds themselves were not heard of.';
COMMENT ON COLUMN payments.state IS 'What became of the money of an order. Null with captured_at set is what must not be; null for subscriptions, whose terms tell it.';

ALTER TABLE provider_truths ADD COLUMN IF NOT EXISTS refunded_until timestamptz;
COMMENT ON COLUMN provider_truths.refunded_until IS 'It is no answer: the period that ends here was paid back and that ended the subscription. It holds only while no later period began.';

COMMENT ON COLUMN subscriptions.disputed_at IS 'Since when a payment of it is disputed, or was, and the dispute was not won. Access goes on; what is lost follows the plan''s refund policy.';

-- It waits for transactions that began before it, not for readers and writers, so it may wait long.
SET lock_timeout = '60s';
DROP INDEX CONCURRENTLY IF EXISTS payment_webhook_events_news;
CREATE INDEX CONCURRENTLY payment_webhook_events_news ON payment_webhook_events (object_id)
    WHERE type IN ('customer.subscription.created', 'customer.subscription.updated', 'customer.subscription.deleted', 'customer.subscription.paused',
                   'customer.subscription.resumed', 'customer.subscription.trial_will_end');
DROP INDEX CONCURRENTLY IF EXISTS payment_webhook_events_subscription;
RESET lock_timeout;

-- +goose Down
CREATE INDEX IF NOT EXISTS payment_webhook_events_subscription ON payment_webhook_events (object_id)
    WHERE type IN ('customer.subscription.created', 'customer.subscription.updated', 'customer.subscription.deleted');
DROP INDEX IF EXISTS payment_webhook_events_news;
ALTER TABLE provider_truths DROP COLUMN IF EXISTS refunded_until;
ALTER TABLE payments DROP COLUMN IF EXISTS charge_refunded_amount;
DROP TABLE IF EXISTS stripe_invoices;
