package e2e

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// A worker is killed while it sends a mail. Killed before, the mail comes once; killed after it and before the mark, it
// comes once more under the same id, which is all that anybody can promise about a server that does not compare ids.
func TestWorkerIsKilledWhileItSendsAMail(t *testing.T) {
	t.Parallel()
	for place, mails := range map[string]int{"mail_before_send": 1, "mail_sent_before_mark": 2} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			sim, err := simulator.Start(t.Context(), simulator.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, sim.Close(t.Context())) })
			s := newSystemWithJobs(t)
			s.environ = append(s.environ, "SMTP_URL="+sim.SMTPURL(),
				"TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=1s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=1s")
			s.plan(t)
			s.exec(t, `INSERT INTO users (id, email) VALUES ('u_1', 'u_1@example.org')`)
			s.dueAt(t, 1, now())

			p := s.program("TERMKEEPER_FAILPOINT=" + place)
			p.build = failpoints
			doomed := p.start(t, "worker")
			requireKilled(t, doomed)
			require.Len(t, sim.Messages(), mails-1)
			require.Equal(t, "sending", s.text(t, `SELECT status FROM deliveries`), "its lease keeps everybody off")
			// The lease would pass within a minute; the test does not wait for it.
			require.Positive(t, s.count(t, `SELECT count(*) FROM deliveries WHERE leased_until BETWEEN now() AND now() + interval '2 minutes'`))
			s.exec(t, `UPDATE deliveries SET leased_until = now()`)
			s.startWorker(t)
			await(t, "the mail is marked", func() error {
				if status := s.text(t, `SELECT status FROM deliveries`); status != "sent" {
					return errors.New(status)
				}
				return nil
			})
			s.awaitWholeRun(t, "outbox-delivery")
			messages := sim.Messages()
			require.Len(t, messages, mails)
			for _, m := range messages {
				require.Equal(t, messages[0].MessageID, m.MessageID)
			}
			s.requireExpired(t, 1)
		})
	}
}
