-- Who may use what until when, and what happened to it.

-- +goose Up
CREATE TABLE environment (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    name       text        NOT NULL CHECK (name IN ('development', 'staging', 'production')),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE environment IS 'The one environment this database belongs to. A process of another one refuses to start.';

CREATE TABLE api_keys (
    id         uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    name       text        NOT NULL CHECK (name <> ''),
    role       text        NOT NULL CHECK (role IN ('access', 'gateway', 'operator', 'admin')),
    key_hash   bytea       NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    prefix     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
COMMENT ON TABLE api_keys IS 'Keys of the HTTP API. Only the SHA-256 of a key is kept; the key has 256 random bits, so no salt is needed.';
COMMENT ON COLUMN api_keys.prefix IS 'The first characters of the key, so that a person can tell keys apart.';

CREATE TABLE users (
    id         text PRIMARY KEY CHECK (id <> ''),
    email      text,
    name       text,
    locale     text,
    time_zone  text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE users IS 'How to reach a user. A user needs no row here to have a subscription.';

CREATE TABLE plans (
    key              text PRIMARY KEY CHECK (key <> ''),
    name             text        NOT NULL DEFAULT '',
    features         text[]      NOT NULL DEFAULT '{}',
    stripe_price_ids text[]      NOT NULL DEFAULT '{}',
    price_amount     bigint CHECK (price_amount >= 0),
    price_currency   char(3) CHECK (price_currency ~ '^[A-Z]{3}$'),
    duration         interval CHECK (duration > interval '0'),
    grace_period     interval    NOT NULL DEFAULT interval '0' CHECK (grace_period >= interval '0'),
    refund_policy    text        NOT NULL DEFAULT 'keep' CHECK (refund_policy IN ('keep', 'end')),
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT plans_price_is_whole CHECK ((price_amount IS NULL) = (price_currency IS NULL))
);
COMMENT ON COLUMN plans.price_amount IS 'Minor units of price_currency.';
COMMENT ON COLUMN plans.stripe_price_ids IS 'Prices at Stripe that sell this plan.';
CREATE INDEX plans_stripe_price_ids ON plans USING gin (stripe_price_ids);

CREATE TABLE stripe_customers (
    customer_id text PRIMARY KEY CHECK (customer_id <> ''),
    user_id     text        NOT NULL CHECK (user_id <> ''),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stripe_customers IS 'Which user a Stripe customer is: set by hand, or learned from an event that named both.';
CREATE INDEX stripe_customers_user ON stripe_customers (user_id);

CREATE TABLE subscriptions (
    id                    uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    user_id               text        NOT NULL CHECK (user_id <> ''),
    plan_key              text        NOT NULL REFERENCES plans (key),
    status                text        NOT NULL CHECK (status IN ('trialing', 'active', 'past_due', 'paused', 'canceled', 'expired')),
    started_at            timestamptz NOT NULL DEFAULT now(),
    expires_at            timestamptz NOT NULL CHECK (expires_at > '-infinity'),
    leeway_until          timestamptz,
    grace_period_ends_at  timestamptz,
    comp_until            timestamptz,
    access_until          timestamptz NOT NULL GENERATED ALWAYS AS (GREATEST(expires_at, leeway_until, grace_period_ends_at, comp_until)) STORED,
    held_at               timestamptz,
    expired_at            timestamptz,
    cancel_at_period_end  boolean     NOT NULL DEFAULT false,
    provider              text CHECK (provider IN ('stripe')),
    external_id           text UNIQUE,
    provider_status       text,
    provider_customer_id  text,
    provider_period_start timestamptz,
    provider_period_end   timestamptz,
    truth_at              timestamptz,
    unpaid_since          timestamptz,
    needs_reconcile       boolean     NOT NULL DEFAULT false,
    version               bigint      NOT NULL DEFAULT 1,
    created_at            timestamptz NOT NULL DEFAULT now(),
    updated_at            timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT subscriptions_expired_at_belongs_to_expired CHECK (expired_at IS NULL OR status = 'expired'),
    CONSTRAINT subscriptions_expired_has_ended CHECK (status <> 'expired' OR expired_at IS NULL OR access_until <= expired_at),
    CONSTRAINT subscriptions_provider_has_external_id CHECK (provider IS NULL OR external_id IS NOT NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
COMMENT ON TABLE subscriptions IS 'The terms of access. status and access_until against the clock decide; the marks made by jobs are bookkeeping.';
COMMENT ON COLUMN subscriptions.expires_at IS 'End of the paid (or given) term; infinity for a lifetime.';
COMMENT ON COLUMN subscriptions.leeway_until IS 'A subscription that renews by itself keeps access until here, because the news of its renewal can only come after its end.';
COMMENT ON COLUMN subscriptions.grace_period_ends_at IS 'End of the grace after a renewal that was not paid.';
COMMENT ON COLUMN subscriptions.comp_until IS 'Time given by an operator on top of a provider''s term.';
COMMENT ON COLUMN subscriptions.held_at IS 'Set while an operator holds the subscription. No event and no job lifts it.';
COMMENT ON COLUMN subscriptions.cancel_at_period_end IS 'It is set to end: it does not renew.';
COMMENT ON COLUMN subscriptions.truth_at IS 'How new the provider''s facts in this row are, to the second.';
COMMENT ON COLUMN subscriptions.unpaid_since IS 'Where the unpaid term of the running past-due episode began; null outside one.';
COMMENT ON COLUMN subscriptions.needs_reconcile IS 'The order of two events could not be told; the next reconciliation asks the provider.';
COMMENT ON COLUMN subscriptions.version IS 'Raised by every write; a write by compare-and-set names the version it read.';
CREATE INDEX subscriptions_user ON subscriptions (user_id, id);
CREATE INDEX subscriptions_due ON subscriptions (access_until, id) WHERE status IN ('trialing', 'active', 'past_due');
CREATE INDEX subscriptions_needs_reconcile ON subscriptions (id) WHERE needs_reconcile;

-- +goose StatementBegin
CREATE FUNCTION gives_access(s subscriptions, t timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT s.status IN ('trialing', 'active', 'past_due') AND s.held_at IS NULL AND s.started_at <= t AND t < s.access_until $$;
-- +goose StatementEnd
COMMENT ON FUNCTION gives_access IS 'The access rule in SQL. The same rule in Go is subscription.Subscription.Gives; a property test holds them together.';

-- +goose StatementBegin
CREATE FUNCTION uuid_v7(t timestamptz) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM t) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid $$;
-- +goose StatementEnd
COMMENT ON FUNCTION uuid_v7 IS 'A UUID of version 7 (RFC 9562) for the instant t: milliseconds first, so that new rows sit together in an index.';

CREATE TABLE subscription_events (
    id              uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    subscription_id uuid        NOT NULL,
    event_type      text        NOT NULL CHECK (event_type IN ('created', 'renewed', 'past_due', 'recovered', 'expired', 'ended', 'canceled', 'uncanceled',
                                                               'paused', 'resumed', 'extended', 'plan_changed', 'reminded_7d', 'reminded_3d', 'reminded_1d')),
    boundary        timestamptz,
    at              timestamptz NOT NULL DEFAULT now(),
    actor           text        NOT NULL DEFAULT 'system',
    detail          jsonb
);
COMMENT ON TABLE subscription_events IS 'Append-only history. No foreign key: it outlives what it tells of, and a batch of marks would pay for one look-up per row.';
COMMENT ON COLUMN subscription_events.boundary IS 'The end that the entry speaks of.';
COMMENT ON COLUMN subscription_events.detail IS 'The terms as they were after the change, under "terms", and what the type needs beside them. Null for marks made by jobs, which change no term.';
CREATE UNIQUE INDEX subscription_events_once ON subscription_events (subscription_id, event_type, boundary)
    WHERE event_type IN ('created', 'expired', 'ended', 'reminded_7d', 'reminded_3d', 'reminded_1d');
CREATE INDEX subscription_events_history ON subscription_events (subscription_id, at, id);

-- +goose Down
DROP TABLE subscription_events;
DROP FUNCTION gives_access;
DROP FUNCTION uuid_v7;
DROP TABLE subscriptions, stripe_customers, plans, users, api_keys, environment;
