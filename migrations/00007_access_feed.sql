-- The feed of changes by which API processes with TERMKEEPER_ACCESS_MODE=cached learn what to forget.

-- +goose Up
CREATE UNLOGGED TABLE access_changes (
    xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    user_ids text[],
    plan_key text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- Compressing thousands of ids takes longer than writing them.
ALTER TABLE access_changes ALTER COLUMN user_ids SET STORAGE EXTERNAL;
-- lock: the table is new.
CREATE INDEX access_changes_xid ON access_changes (xid);
COMMENT ON TABLE access_changes IS 'One row per statement that changed what access checks are answered from. Not logged: a crash that empties it also ends every session that reads it, and a reader with a new session begins with nothing.';
COMMENT ON COLUMN access_changes.xid IS 'The transaction. A reader takes the rows of those that its snapshot before did not see, so one that commits late is not lost.';
COMMENT ON COLUMN access_changes.user_ids IS 'Users whose subscriptions changed. Null together with plan_key: anybody''s.';
COMMENT ON COLUMN access_changes.plan_key IS 'Plan whose features changed.';

CREATE TABLE access_feed (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    trimmed   xid8        NOT NULL,
    marked    xid8        NOT NULL,
    marked_at timestamptz NOT NULL
);
INSERT INTO access_feed (trimmed, marked, marked_at) VALUES ('0', pg_snapshot_xmin(pg_current_snapshot()), now());
COMMENT ON TABLE access_feed IS 'How far access_changes is trimmed.';
COMMENT ON COLUMN access_feed.trimmed IS 'Rows of transactions before this one may be gone.';
COMMENT ON COLUMN access_feed.marked IS 'Every transaction before this one had ended at marked_at. It becomes trimmed some minutes later.';

-- +goose StatementBegin
CREATE FUNCTION tell_access_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    users text[];
BEGIN
    IF TG_OP = 'DELETE' THEN
        users := ARRAY(SELECT DISTINCT user_id FROM old_rows);
    ELSIF TG_OP <> 'TRUNCATE' THEN
        users := ARRAY(SELECT DISTINCT user_id FROM new_rows);
    END IF;
    IF TG_OP = 'TRUNCATE' OR cardinality(users) > 20000 THEN
        INSERT INTO access_changes DEFAULT VALUES;
    ELSIF cardinality(users) > 0 THEN
        INSERT INTO access_changes (user_ids) VALUES (users);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION tell_access_change IS 'One row per statement; one that touches more than 20000 users says that anybody''s may have changed. It tells of updates that change no answer too: comparing old with new would cost a batch of marks a tenth of its speed, forgetting a user in vain costs one read.';

-- +goose StatementBegin
CREATE FUNCTION tell_access_moved() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO access_changes (user_ids) VALUES (ARRAY[OLD.user_id]);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION tell_access_moved IS 'The user who had the subscription before; the statement tells of the one who has it now.';

-- +goose StatementBegin
CREATE FUNCTION tell_plan_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO access_changes (plan_key) VALUES (OLD.key), (NEW.key);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION tell_plan_change IS 'Row by row: plans are few and seldom changed.';

-- lock: a trigger waits for writers for a moment and keeps no reader waiting; it looks at no row.
CREATE TRIGGER tell_access_inserted AFTER INSERT ON subscriptions REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION tell_access_change();
-- lock: as above.
CREATE TRIGGER tell_access_updated AFTER UPDATE ON subscriptions REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION tell_access_change();
-- lock: as above.
CREATE TRIGGER tell_access_deleted AFTER DELETE ON subscriptions REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION tell_access_change();
-- lock: as above.
CREATE TRIGGER tell_access_truncated AFTER TRUNCATE ON subscriptions
    FOR EACH STATEMENT EXECUTE FUNCTION tell_access_change();
-- lock: as above.
CREATE TRIGGER tell_access_moved AFTER UPDATE OF user_id ON subscriptions
    FOR EACH ROW WHEN (OLD.user_id IS DISTINCT FROM NEW.user_id) EXECUTE FUNCTION tell_access_moved();
-- lock: as above.
CREATE TRIGGER tell_plan_updated AFTER UPDATE ON plans
    FOR EACH ROW WHEN (OLD.key IS DISTINCT FROM NEW.key OR OLD.features IS DISTINCT FROM NEW.features) EXECUTE FUNCTION tell_plan_change();
-- Also for those who switch triggers off for themselves by session_replication_role.
ALTER TABLE subscriptions
    ENABLE ALWAYS TRIGGER tell_access_inserted, ENABLE ALWAYS TRIGGER tell_access_updated, ENABLE ALWAYS TRIGGER tell_access_deleted,
    ENABLE ALWAYS TRIGGER tell_access_truncated, ENABLE ALWAYS TRIGGER tell_access_moved;
ALTER TABLE plans ENABLE ALWAYS TRIGGER tell_plan_updated;

-- +goose Down
DROP TRIGGER tell_plan_updated ON plans;
DROP TRIGGER tell_access_moved ON subscriptions;
DROP TRIGGER tell_access_truncated ON subscriptions;
DROP TRIGGER tell_access_deleted ON subscriptions;
DROP TRIGGER tell_access_updated ON subscriptions;
DROP TRIGGER tell_access_inserted ON subscriptions;
DROP FUNCTION tell_plan_change;
DROP FUNCTION tell_access_moved;
DROP FUNCTION tell_access_change;
DROP TABLE access_feed;
DROP TABLE access_changes;
