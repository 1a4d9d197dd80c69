package activities_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// mailed are the topics of which there is a mail, with a state of the subscription in which it is true.
var mailed = map[string]string{ //nolint:gochecknoglobals // a constant table
	"access.started":     `status = 'active'`,
	"access.ended":       `status = 'expired', expires_at = now() - interval '1 minute'`,
	"access.ending_soon": `status = 'active'`,
	"payment.failed":     `status = 'past_due'`,
	"payment.recovered":  `status = 'active'`,
}

// fact makes n users, each with a subscription in the state that the topic tells of, and its fact.
func (b *bench) fact(topic string, n int) {
	b.t.Helper()
	b.exec(`INSERT INTO users (id, email) SELECT 'u_' || i, 'u' || i || '@example.com' FROM generate_series(1, $1::int) i`, n)
	b.exec(`INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at)
		SELECT 'u_' || i, 'pro', 'active', now() - interval '2 days', now() + interval '2 days' FROM generate_series(1, $1::int) i`, n)
	b.exec(`UPDATE subscriptions SET ` + mailed[topic])
	b.exec(`INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary)
		SELECT uuid_v7(clock_timestamp()), $1, $1 || id, id, user_id, CASE $1 WHEN 'access.ended' THEN 'expired' END, access_until FROM subscriptions`, topic)
}

// Each kind of mail goes through the faults that any mail may meet: put off, refused for good, cut after its end, a name
// with a line break, an address that is none. Nobody else's mail is held up by them.
func TestEveryKindOfMailMeetsEveryFault(t *testing.T) {
	t.Parallel()
	for topic := range mailed {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			sim := b.sink()
			o := b.outbox(sim.SMTPURL())
			b.fact(topic, 6)
			b.exec(`UPDATE users SET name = E'Eve\r\nBcc: all@example.com' WHERE id = 'u_1'`)
			b.exec(`UPDATE users SET email = 'not an address' WHERE id = 'u_2'`)
			b.exec(`UPDATE users SET locale = 'xx', time_zone = 'No/Where' WHERE id = 'u_3'`)
			require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtRcpt, Code: 550}))
			require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtData, Code: 451}))
			require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.CutAfterData}))
			b.deliver(o)
			require.Equal(t, "dead 3, pending 2, sent 1", b.deliveries(), "two that cannot be written and one refused; one put off and one of unknown outcome")
			b.again()
			b.exec(`DELETE FROM job_runs`)
			b.deliver(o)
			require.Equal(t, "dead 3, sent 3", b.deliveries())
			ids := map[string]int{}
			for _, m := range sim.Messages() {
				ids[m.MessageID]++
				require.NotContains(t, m.To, "all@example.com")
			}
			require.Len(t, ids, 3)
			require.Len(t, sim.Messages(), 4, "the one whose outcome was unknown came twice, under one id")
		})
	}
}

// A mail that is put off holds up the later ones of its subscription, and nobody else's.
func TestMailsOfOneSubscriptionComeInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	b.fact("payment.failed", 2)
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtRcpt, Code: 450, Count: 2}))
	b.deliver(o)
	require.Equal(t, "pending 2", b.deliveries())
	b.exec(`INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary)
		SELECT uuid_v7(clock_timestamp()), 'access.ending_soon', 'soon' || id, id, user_id, '1d', access_until FROM subscriptions WHERE user_id = 'u_1'`)
	b.exec(`UPDATE deliveries SET next_attempt_at = now() WHERE user_id = 'u_2'`)
	b.exec(`DELETE FROM job_runs`)
	b.deliver(o)
	require.Equal(t, "pending 2, sent 1", b.deliveries())
	b.again()
	b.exec(`DELETE FROM job_runs`)
	b.deliver(o)
	require.Equal(t, "sent 3", b.deliveries())
	require.Equal(t, "payment.failed access.ending_soon", b.text(`SELECT string_agg(topic, ' ' ORDER BY finished_at) FROM deliveries WHERE user_id = 'u_1'`))
}

// A server that is away for far longer than a message has attempts.
func TestLongOutageEndsNoMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.fact("payment.failed", 20)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := b.outbox("smtp://" + listener.Addr().String())
	require.NoError(t, listener.Close())
	for range 30 {
		b.exec(`DELETE FROM job_runs`)
		b.deliver(nobody)
		b.again()
	}
	require.Equal(t, "pending 20", b.deliveries())
	require.Zero(t, b.count(`SELECT sum(attempts) FROM deliveries`))
	sim := b.sink()
	b.exec(`DELETE FROM job_runs`)
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, "sent 20", b.deliveries())
}

// What is urgent and new overtakes a backlog, and the backlog moves on.
func TestUrgentMailOvertakesABacklog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	const backlog = 2000
	b.fact("access.ending_soon", backlog)
	o := b.outbox(sim.SMTPURL())
	done := make(chan error, 1)
	go func() {
		_, err := b.run(b.environment(), o.Deliver, manual("outbox-delivery"))
		done <- err
	}()
	require.Eventually(t, func() bool { return len(sim.Messages()) > 20 }, 20*time.Second, time.Millisecond)
	b.exec(`UPDATE subscriptions SET status = 'past_due' WHERE user_id = 'u_1'`)
	b.exec(`INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, boundary)
		SELECT uuid_v7(clock_timestamp()), 'payment.failed', 'urgent', id, user_id, access_until FROM subscriptions WHERE user_id = 'u_1'`)
	require.NoError(t, <-done)
	require.Equal(t, backlog+1, b.count(`SELECT count(*) FROM deliveries WHERE status = 'sent'`))
	after := b.count(`SELECT count(*) FROM deliveries WHERE finished_at > (SELECT finished_at FROM deliveries WHERE topic = 'payment.failed')`)
	require.Greater(t, after, backlog/10, "it did not wait for the end of the backlog")
}

// A hundred thousand mails that wait, and what the next claim takes.
func TestClaimIsFairInAHugeBacklog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`INSERT INTO outbox (topic, dedupe_key, status) VALUES ('access.ending_soon', 'all', 'dispatched')`)
	b.exec(`INSERT INTO deliveries (outbox_id, channel, target, topic, subscription_id, message_id, next_attempt_at)
		SELECT id, 'email', i || '@example.com', topic, gen_random_uuid(), i, now() - interval '1 hour' FROM outbox CROSS JOIN generate_series(1, 100000) i`)
	b.fact("payment.failed", 100)
	now, err := b.store.Now(t.Context())
	require.NoError(t, err)
	for cursor := ""; ; {
		d, err := b.store.DispatchFacts(t.Context(), now, true, cursor, 5000)
		require.NoError(t, err)
		if d.Facts == 0 {
			break
		}
		cursor = d.Cursor
	}
	claimed, err := b.store.ClaimMails(t.Context(), now, "test", 16, time.Minute)
	require.NoError(t, err)
	require.Len(t, claimed, 16)
	require.Equal(t, 12, b.count(`SELECT count(*) FROM deliveries WHERE status = 'sending' AND topic = 'payment.failed'`))
	require.Equal(t, 4, b.count(`SELECT count(*) FROM deliveries WHERE status = 'sending' AND topic = 'access.ending_soon'`))
}
