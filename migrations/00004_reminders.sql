-- Reminders of an end that is near, and the order of facts within a millisecond.
-- No transaction: both tables are large and in use, so their indexes are built while others read and write. What a
-- broken-off attempt left behind is made anew.

-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE subscriptions ADD COLUMN IF NOT EXISTS reminder_boundary timestamptz, ADD COLUMN IF NOT EXISTS reminder_at timestamptz;
COMMENT ON COLUMN subscriptions.reminder_boundary IS 'The access_until for which reminder_at holds. Where it is another one, the end was moved and the reminders begin anew; so no writer of terms needs to know of them.';
COMMENT ON COLUMN subscriptions.reminder_at IS 'When the job subscription-reminders looks at the row next; infinity when this end needs no more reminder. The ledger of what was told is the history.';

-- These wait for transactions that began before them, not for readers and writers, so they may wait long.
SET lock_timeout = '60s';
DROP INDEX CONCURRENTLY IF EXISTS subscriptions_ending;
CREATE INDEX CONCURRENTLY subscriptions_ending ON subscriptions (access_until, id)
    WHERE status IN ('trialing', 'active', 'past_due') AND held_at IS NULL AND leeway_until IS NULL AND reminder_boundary IS DISTINCT FROM access_until;
COMMENT ON INDEX subscriptions_ending IS 'What ends without renewing by itself and was not looked at yet. A row that was marked as expired gets no entry here, so the expiry pays nothing for it.';

DROP INDEX CONCURRENTLY IF EXISTS subscriptions_reminder;
CREATE INDEX CONCURRENTLY subscriptions_reminder ON subscriptions (reminder_at, id)
    WHERE status IN ('trialing', 'active', 'past_due') AND held_at IS NULL AND leeway_until IS NULL AND reminder_boundary = access_until;

DROP INDEX CONCURRENTLY IF EXISTS deliveries_due_urgent;
CREATE INDEX CONCURRENTLY deliveries_due_urgent ON deliveries (next_attempt_at, id)
    WHERE status = 'pending' AND topic IN ('access.started', 'payment.failed', 'payment.recovered');
COMMENT ON INDEX deliveries_due_urgent IS 'Answers to what a person or their bank just did. They do not wait behind the thousands that a scan can make at once.';
RESET lock_timeout;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION uuid_v7(t timestamptz) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT encode(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((date_part('epoch', t) * 1000000)::bigint / 1000) FROM 3)
            || int2send((28672 + (date_part('epoch', t) * 1000000)::bigint % 1000 * 4096 / 1000)::int2) FROM 1 FOR 8), 'hex')::uuid $$;
-- +goose StatementEnd
COMMENT ON FUNCTION uuid_v7 IS 'A UUID of version 7 (RFC 9562, 6.2 method 3) for the instant t: milliseconds, then the fraction to a quarter of a microsecond, so that ids are in the order of their instants.';

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION uuid_v7(t timestamptz) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM t) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid $$;
-- +goose StatementEnd
DROP INDEX IF EXISTS deliveries_due_urgent;
DROP INDEX IF EXISTS subscriptions_reminder;
DROP INDEX IF EXISTS subscriptions_ending;
ALTER TABLE subscriptions DROP COLUMN IF EXISTS reminder_at, DROP COLUMN IF EXISTS reminder_boundary;
