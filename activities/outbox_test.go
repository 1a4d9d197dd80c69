package activities_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/activities"
	"termkeeper/internal/simulator"
	"termkeeper/internal/store"
)

// again makes everything due at once, as if the pauses were over.
func (b *bench) again() {
	b.t.Helper()
	b.exec(`UPDATE deliveries SET next_attempt_at = now() WHERE status = 'pending'`)
	b.exec(`UPDATE delivery_channels SET paused_until = NULL`)
}

func (b *bench) deliveries() string {
	b.t.Helper()
	return b.text(`SELECT coalesce(string_agg(status || ' ' || n, ', ' ORDER BY status), '') FROM (SELECT status, count(*) n FROM deliveries GROUP BY 1) d`)
}

func TestFactsBecomeMails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	b.due(40)
	b.exec(`UPDATE subscriptions SET cancel_at_period_end = true WHERE user_id = 'u_2'`)
	b.exec(`UPDATE users SET locale = 'zh-CN' WHERE id = 'u_3'`)
	b.exec(`UPDATE users SET email = NULL WHERE id = 'u_4'`)
	b.expired()
	tally := b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, activities.Tally{Scanned: 79, Changed: 79}, tally, "40 facts, 39 mails")
	require.Equal(t, "sent 39", b.deliveries())
	byTo := map[string]simulator.Message{}
	for _, m := range sim.Messages() {
		byTo[m.To] = m
	}
	require.Len(t, byTo, 39)
	for i := 1; i <= 40; i++ {
		if to := fmt.Sprintf("u%d@example.com", i); i != 4 {
			require.Equal(t, b.text(`SELECT message_id FROM deliveries WHERE target = $1`, to), byTo[to].MessageID)
		}
	}
	require.NotEqual(t, byTo["u1@example.com"].Subject, byTo["u2@example.com"].Subject, "expired asks to renew, ended does not")
	require.Contains(t, byTo["u3@example.com"].Text, "您好")

	require.Zero(t, b.deliver(b.outbox(sim.SMTPURL())))
	require.Len(t, sim.Messages(), 39)
}

func TestMailThatIsPutOffComesLaterUnderTheSameID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	b.due(1)
	b.expired()
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtRcpt, Code: 450}))
	b.deliver(o)
	require.Equal(t, "pending 1", b.deliveries())
	require.Equal(t, 1, b.count(`SELECT attempts FROM deliveries WHERE next_attempt_at > now() + interval '5 seconds'`))
	id := b.text(`SELECT message_id FROM deliveries`)
	b.deliver(o)
	require.Empty(t, sim.Messages(), "not before its time")
	b.again()
	b.deliver(o)
	require.Equal(t, "sent 1", b.deliveries())
	require.Equal(t, id, sim.Messages()[0].MessageID)

	b.exec(`UPDATE deliveries SET status = 'pending', finished_at = NULL, attempts = 11, next_attempt_at = now()`)
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtData, Code: 451}))
	b.deliver(o)
	require.Equal(t, "dead 1", b.deliveries(), "after twelve attempts a person must look")
}

func TestRefusedMailIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	b.due(2)
	b.expired()
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtRcpt, Code: 550}))
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, "dead 1, sent 1", b.deliveries())
	require.NotContains(t, b.text(`SELECT last_error FROM deliveries WHERE status = 'dead'`), "@example.com")
}

func TestMailsThatCannotBeWrittenStopNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	b.due(4)
	b.exec(`UPDATE users SET name = E'Eve\r\nBcc: all@example.com' WHERE id = 'u_2'`)
	b.exec(`UPDATE users SET email = 'not an address' WHERE id = 'u_3'`)
	b.expired()
	tally := b.deliver(b.outbox(sim.SMTPURL()))
	require.EqualValues(t, 2, tally.Failed)
	require.Equal(t, "dead 2, sent 2", b.deliveries())
	require.Len(t, sim.Messages(), 2)
}

func TestOutageUsesNoAttemptsUp(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(20)
	b.expired()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := "smtp://" + listener.Addr().String()
	require.NoError(t, listener.Close())
	b.deliver(b.outbox(nobody))
	require.Equal(t, "pending 20", b.deliveries())
	require.Zero(t, b.count(`SELECT sum(attempts) FROM deliveries`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM delivery_channels WHERE channel = 'email' AND paused_until > updated_at`))
	sim := b.sink()
	b.again()
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, "sent 20", b.deliveries())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM delivery_channels WHERE channel = 'email' AND failures = 0 AND paused_until IS NULL`))
}

func TestMailOfUnknownOutcomeIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	b.due(1)
	b.expired()
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.CutAfterData, Count: 2}))
	b.deliver(o)
	require.Equal(t, "pending 1", b.deliveries())
	b.again()
	b.deliver(o)
	require.Equal(t, "dead 1", b.deliveries(), "once more, not for ever")
	require.Len(t, sim.Messages(), 2)
	require.Equal(t, sim.Messages()[0].MessageID, sim.Messages()[1].MessageID, "so that the receiver can tell")
}

func TestNoNoticeAfterARenewal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	b.due(2)
	b.expired()
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtHello, Code: 421, Count: 16}))
	b.deliver(o)
	require.Equal(t, "pending 2", b.deliveries())
	b.exec(`UPDATE subscriptions SET status = 'active', expired_at = NULL, expires_at = now() + interval '30 days' WHERE user_id = 'u_1'`)
	b.again()
	sim = b.sink()
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, "sent 1, superseded 1", b.deliveries())
	require.Len(t, sim.Messages(), 1)
	require.Equal(t, "u2@example.com", sim.Messages()[0].To)
}

func TestPoisonFactIsDeferredAndStopsNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	b.due(30)
	b.expired()
	b.exec(`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.user_id = 'u_7' THEN RAISE EXCEPTION 'canary'; END IF; RETURN NEW; END $$`)
	b.exec(`CREATE TRIGGER poison BEFORE INSERT ON deliveries FOR EACH ROW EXECUTE FUNCTION poison()`)
	tally := b.deliver(o)
	require.EqualValues(t, 1, tally.Failed)
	require.Equal(t, "sent 29", b.deliveries())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM outbox WHERE status = 'pending' AND user_id = 'u_7' AND attempts = 1 AND next_attempt_at > now() AND last_error NOT LIKE '%canary%'`))
	require.Zero(t, b.deliver(o))
	b.exec(`DROP TRIGGER poison ON deliveries`)
	b.exec(`UPDATE outbox SET next_attempt_at = now() WHERE status = 'pending'`)
	b.deliver(o)
	require.Equal(t, "sent 30", b.deliveries())
}

func TestLapsedLeaseIsTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	b.due(1)
	b.expired()
	now, err := b.store.Now(t.Context())
	require.NoError(t, err)
	_, err = b.store.DispatchFacts(t.Context(), now, true, "", 10)
	require.NoError(t, err)
	dead, err := b.store.ClaimMails(t.Context(), now, "dead", 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, dead, 1)
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Empty(t, sim.Messages(), "while the lease holds nobody else sends it")
	b.exec(`UPDATE deliveries SET leased_until = now() - interval '1 second'`)
	b.deliver(b.outbox(sim.SMTPURL()))
	require.Equal(t, "sent 1", b.deliveries())
	require.ErrorIs(t, b.store.FinishDelivery(t.Context(), dead[0], store.DeliveryDead, "late"), store.ErrConflict)
}

func TestTwoDeliverersSendEachMailOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	b.due(120)
	b.expired()
	done := make(chan error, 2)
	for range cap(done) {
		o := b.outbox(sim.SMTPURL())
		go func() {
			_, err := b.run(b.environment(), o.Deliver, manual("outbox-delivery"))
			done <- err
		}()
	}
	for range cap(done) {
		require.NoError(t, <-done)
	}
	require.Equal(t, "sent 120", b.deliveries())
	require.Len(t, sim.Messages(), 120)
}

func TestWithoutAMailServerFactsAreStillDispatched(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.due(3)
	b.expired()
	o := &activities.Outbox{Store: b.store, Owner: "test", Runs: b.runs}
	require.Equal(t, activities.Tally{Scanned: 3, Changed: 3}, b.deliver(o))
	require.Empty(t, b.deliveries())
}

func TestDeliveryIsWokenByNewFacts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sim := b.sink()
	o := b.outbox(sim.SMTPURL())
	done := make(chan error, 1)
	go func() {
		_, err := b.run(b.environment(), o.Deliver, scheduled("outbox-delivery", longCadence))
		done <- err
	}()
	require.Eventually(t, func() bool { return b.schedule.askedTimes() > 0 }, 10*time.Second, time.Millisecond, "it waits")
	b.due(1)
	now, err := b.store.Now(t.Context())
	require.NoError(t, err)
	marked, err := b.store.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 10, false)
	require.NoError(t, err)
	require.Equal(t, 1, marked.Count)
	require.Eventually(t, func() bool { return len(sim.Messages()) == 1 }, 10*time.Second, 5*time.Millisecond)
	b.schedule.set(func(s *schedule) { s.paused = true })
	require.NoError(t, <-done)
}
