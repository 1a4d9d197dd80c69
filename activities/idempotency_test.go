package activities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/activities"
	"termkeeper/internal/store"
)

func TestCleanUpRemovesWhatIsOldAndNothingElse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`INSERT INTO idempotency_keys (id, api_key_id, method, path, key, body_hash, claim, leased_until, response_status, response_body, created_at)
		SELECT sha256(i::text::bytea), gen_random_uuid(), 'POST', '/v1/plans', i::text, sha256(''), gen_random_uuid(), now() - interval '23 hours',
			CASE WHEN i % 2 = 0 THEN 201 END, CASE WHEN i % 2 = 0 THEN 'x'::bytea END,
			now() - interval '24 hours' + CASE WHEN i <= 250 THEN interval '0' ELSE interval '1 minute' END
		FROM generate_series(1, 300) i`)
	b.exec(`INSERT INTO payment_webhook_events (external_event_id, type, payload, status, received_at)
		SELECT s || '-' || age, 'x', '{}', s, now() - age::interval
		FROM unnest('{pending,processed,ignored,quarantined,failed}'::text[]) s, unnest('{29 days 23:59,30 days,364 days 23:59,365 days}'::text[]) age`)
	run := manual("idempotency-cleanup")
	run.Batch, run.MaxBatch = 7, 20
	idempotency := &activities.Idempotency{Store: b.store, Runs: b.runs}
	tally, err := b.run(b.environment(), idempotency.CleanUpKeys, run)
	require.NoError(t, err)
	// 250 keys; the bodies of two states of three ages; the two that are a year old.
	require.Equal(t, activities.Tally{Scanned: 258, Changed: 258}, tally)
	require.Equal(t, 50, b.count(`SELECT count(*) FROM idempotency_keys WHERE created_at > now() - interval '24 hours'`), "with and without an answer")
	require.Equal(t, 50, b.count(`SELECT count(*) FROM idempotency_keys`))
	require.Equal(t, 12, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status IN ('pending', 'quarantined', 'failed') AND payload = '{}'`), "what is still to be applied stays")
	require.Equal(t, 6, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status IN ('processed', 'ignored')`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM payment_webhook_events WHERE status IN ('processed', 'ignored') AND payload = '{}'`))
	require.Zero(t, b.count(`SELECT count(*) FROM payment_webhook_events WHERE payload = '' AND received_at > now() - interval '30 days'`))
	b.exec(`DELETE FROM job_runs`) // the run id is always the same here
	tally, err = b.run(b.environment(), idempotency.CleanUpKeys, run)
	require.NoError(t, err)
	require.Zero(t, tally)
	require.Equal(t, store.OutcomeEmpty, b.text(`SELECT outcome FROM job_runs`))
}
