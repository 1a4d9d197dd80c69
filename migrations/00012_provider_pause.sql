-- One circuit for a payment provider that is down, for all processes.

-- +goose Up
CREATE TABLE provider_pauses (
    provider     text PRIMARY KEY CHECK (provider IN ('stripe')),
    paused_until timestamptz,
    failures     integer     NOT NULL DEFAULT 0,
    last_error   text,
    updated_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE provider_pauses IS 'A provider that does not answer is left alone as a whole for a while, so that an outage costs one question now and then and not one for each order.';
COMMENT ON COLUMN provider_pauses.failures IS 'How often in a row the jobs found it down; each doubles the pause.';
INSERT INTO provider_pauses (provider) VALUES ('stripe');

-- +goose Down
DROP TABLE provider_pauses;
