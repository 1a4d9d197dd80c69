-- Orders and the money behind them, and who did what.

-- +goose Up
CREATE TABLE payment_orders (
    id                  uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    user_id             text        NOT NULL CHECK (user_id <> ''),
    plan_key            text        NOT NULL REFERENCES plans (key),
    status              text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'paid', 'fulfilling', 'fulfilled', 'expired', 'canceled', 'failed',
                                                                                 'refunding', 'refunded', 'review')),
    amount              bigint      NOT NULL CHECK (amount > 0),
    currency            char(3)     NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    late_payment        text        NOT NULL DEFAULT 'fulfil' CHECK (late_payment IN ('fulfil', 'refund', 'review')),
    duration            interval CHECK (duration > interval '0'),
    expires_at          timestamptz NOT NULL,
    paid_at             timestamptz,
    finished_at         timestamptz,
    provider            text        NOT NULL DEFAULT 'stripe' CHECK (provider IN ('stripe')),
    provider_session_id text UNIQUE,
    checkout_url        text,
    subscription_id     uuid,
    reason              text,
    attempts            integer     NOT NULL DEFAULT 0,
    next_attempt_at     timestamptz NOT NULL DEFAULT now(),
    asked_at            timestamptz,
    unanswered_since    timestamptz,
    not_found           integer     NOT NULL DEFAULT 0,
    not_found_since     timestamptz,
    last_error          text,
    leased_until        timestamptz,
    lease_owner         text,
    version             bigint      NOT NULL DEFAULT 1,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT payment_orders_lease_is_whole CHECK ((leased_until IS NULL) = (lease_owner IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE payment_orders IS 'What users want to pay once. An order ends by what the provider says, never by silence.';
COMMENT ON COLUMN payment_orders.amount IS 'Minor units of currency. What is paid must equal it.';
COMMENT ON COLUMN payment_orders.late_payment IS 'What becomes of a payment that shows up after the order expired or was canceled.';
COMMENT ON COLUMN payment_orders.duration IS 'The time that was sold; null: the plan''s own at fulfilment, for ever where that has none.';
COMMENT ON COLUMN payment_orders.expires_at IS 'The deadline for paying. After it the checkout is closed at the provider first, then here.';
COMMENT ON COLUMN payment_orders.finished_at IS 'When it reached the state it is in for good.';
COMMENT ON COLUMN payment_orders.subscription_id IS 'The subscription that it paid for.';
COMMENT ON COLUMN payment_orders.reason IS 'Why it is in its state, where that is not the ordinary course.';
COMMENT ON COLUMN payment_orders.attempts IS 'How often the provider was asked in vain, or without news, since the last news.';
COMMENT ON COLUMN payment_orders.next_attempt_at IS 'When the jobs ask the provider next.';
COMMENT ON COLUMN payment_orders.asked_at IS 'When the provider was asked last.';
COMMENT ON COLUMN payment_orders.unanswered_since IS 'Since when the provider has not answered; null when it did.';
COMMENT ON COLUMN payment_orders.not_found IS 'How often in a row the provider did not know the checkout.';
COMMENT ON COLUMN payment_orders.version IS 'The fence: raised by every write; a write names the version it read.';
CREATE INDEX payment_orders_user ON payment_orders (user_id, id);
CREATE INDEX payment_orders_by_status ON payment_orders (status, id);
CREATE INDEX payment_orders_to_ask ON payment_orders (next_attempt_at, id) WHERE status = 'pending';
CREATE INDEX payment_orders_overdue ON payment_orders (expires_at, id) WHERE status = 'pending';
CREATE INDEX payment_orders_unfinished ON payment_orders (leased_until, id) WHERE status IN ('paid', 'fulfilling', 'refunding');

CREATE TABLE order_fulfilments (
    order_id        uuid PRIMARY KEY REFERENCES payment_orders (id),
    subscription_id uuid        NOT NULL,
    from_at         timestamptz NOT NULL,
    until_at        timestamptz NOT NULL CHECK (until_at > from_at),
    at              timestamptz NOT NULL DEFAULT now(),
    taken_back_at   timestamptz
);
COMMENT ON TABLE order_fulfilments IS 'What each order gave, once: written in the transaction that moves the end of the subscription.';
COMMENT ON COLUMN order_fulfilments.taken_back_at IS 'When a refund took the rest of the time back.';

CREATE TABLE payments (
    id              uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    provider        text        NOT NULL DEFAULT 'stripe' CHECK (provider IN ('stripe')),
    external_id     text        NOT NULL CHECK (external_id <> ''),
    order_id        uuid REFERENCES payment_orders (id),
    subscription_id text,
    invoice_id      text,
    customer_id     text,
    charge_id       text,
    period_start    timestamptz,
    period_end      timestamptz,
    amount          bigint      NOT NULL CHECK (amount >= 0),
    currency        char(3)     NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    captured_at     timestamptz,
    refunded_amount bigint      NOT NULL DEFAULT 0 CHECK (refunded_amount >= 0),
    state           text CHECK (state IN ('fulfilled', 'refunding', 'refunded', 'review')),
    reason          text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (provider, external_id)
);
COMMENT ON TABLE payments IS 'Money that a provider captured, one row per payment.';
COMMENT ON COLUMN payments.external_id IS 'Id of the payment intent at the provider.';
COMMENT ON COLUMN payments.subscription_id IS 'Id of the provider''s subscription that it paid for; null for an order.';
COMMENT ON COLUMN payments.period_end IS 'End of the period that it paid for; null when it is not known or there is none.';
COMMENT ON COLUMN payments.refunded_amount IS 'Sum of the refunds, in minor units. It is worked out from refunds, not added up.';
COMMENT ON COLUMN payments.state IS 'What became of the money of an order. Null with captured_at set is what must not be; null for subscriptions.';
CREATE INDEX payments_order ON payments (order_id) WHERE order_id IS NOT NULL;
CREATE INDEX payments_invoice ON payments (invoice_id) WHERE invoice_id IS NOT NULL;
CREATE INDEX payments_charge ON payments (charge_id) WHERE charge_id IS NOT NULL;
CREATE INDEX payments_subscription ON payments (subscription_id, period_end) WHERE subscription_id IS NOT NULL;
CREATE INDEX payments_unsettled ON payments (captured_at) WHERE order_id IS NOT NULL AND captured_at IS NOT NULL AND state IS NULL;

CREATE TABLE refunds (
    provider    text        NOT NULL DEFAULT 'stripe' CHECK (provider IN ('stripe')),
    external_id text        NOT NULL,
    payment_id  text,
    charge_id   text,
    amount      bigint      NOT NULL CHECK (amount >= 0),
    currency    char(3)     NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    status      text        NOT NULL,
    refunded_at timestamptz NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, external_id)
);
COMMENT ON TABLE refunds IS 'Refunds by the provider''s id, so that two events about one refund count once.';
COMMENT ON COLUMN refunds.payment_id IS 'Id of the payment intent at the provider.';
COMMENT ON COLUMN refunds.status IS 'The provider''s own word: pending, requires_action, succeeded, failed or canceled.';
CREATE INDEX refunds_payment ON refunds (payment_id) WHERE payment_id IS NOT NULL;
CREATE INDEX refunds_charge ON refunds (charge_id) WHERE charge_id IS NOT NULL;

CREATE TABLE disputes (
    provider    text        NOT NULL DEFAULT 'stripe' CHECK (provider IN ('stripe')),
    external_id text        NOT NULL,
    payment_id  text,
    charge_id   text,
    amount      bigint      NOT NULL CHECK (amount >= 0),
    currency    char(3)     NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    status      text        NOT NULL,
    reason      text,
    opened_at   timestamptz NOT NULL,
    closed_at   timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, external_id)
);
COMMENT ON TABLE disputes IS 'Payments that a bank takes back, or wants to.';
COMMENT ON COLUMN disputes.status IS 'The provider''s own word, for instance needs_response, won or lost.';
CREATE INDEX disputes_payment ON disputes (payment_id) WHERE payment_id IS NOT NULL;

ALTER TABLE subscriptions ADD COLUMN disputed_at timestamptz;
COMMENT ON COLUMN subscriptions.disputed_at IS 'Since when a payment of the current period is disputed. Access goes on; what is lost follows the plan''s refund policy.';

CREATE TABLE audit_log (
    id           uuid PRIMARY KEY     DEFAULT gen_random_uuid(),
    at           timestamptz NOT NULL DEFAULT now(),
    actor        text        NOT NULL,
    action       text        NOT NULL,
    subject_type text        NOT NULL,
    subject_id   text        NOT NULL,
    detail       jsonb
);
COMMENT ON TABLE audit_log IS 'Append-only: who did what to whom and why, for what moves money.';
COMMENT ON COLUMN audit_log.actor IS 'The key of a person, stripe, or the job that did it.';
CREATE INDEX audit_log_subject ON audit_log (subject_type, subject_id, at);

-- +goose Down
DROP TABLE audit_log;
ALTER TABLE subscriptions DROP COLUMN disputed_at;
DROP TABLE disputes, refunds, payments, order_fulfilments, payment_orders;
