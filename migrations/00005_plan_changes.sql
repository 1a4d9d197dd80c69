-- A plan that is to come with the next renewal.

-- +goose Up
ALTER TABLE subscriptions ADD COLUMN next_plan_key text;
-- Not checked for the rows that are there: it is null in all of them.
ALTER TABLE subscriptions ADD CONSTRAINT subscriptions_next_plan_exists FOREIGN KEY (next_plan_key) REFERENCES plans (key) NOT VALID;
COMMENT ON COLUMN subscriptions.next_plan_key IS 'The plan from the next renewal on; null when none was chosen.';

-- +goose Down
ALTER TABLE subscriptions DROP COLUMN next_plan_key;
