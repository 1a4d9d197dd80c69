-- Money that is being given back can be counted without reading all that was ever paid.

-- +goose Up
-- lock: the table came with this release and has no rows yet.
CREATE INDEX payments_refunding ON payments (captured_at) WHERE order_id IS NOT NULL AND captured_at IS NOT NULL AND state = 'refunding';

-- +goose Down
DROP INDEX payments_refunding;
