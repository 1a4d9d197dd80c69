package e2e

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/secret"
)

// A worker is killed while it calls an endpoint. Killed before, the call comes once; killed after it and before the mark, it
// comes once more under the same webhook-id, by which the receiver knows it again.
func TestWorkerIsKilledWhileItCallsAnEndpoint(t *testing.T) {
	t.Parallel()
	for place, calls := range map[string]int{"webhook_before_send": 1, "webhook_sent_before_mark": 2} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var verifier *standardwebhooks.Webhook
			var ids []string
			var forged error
			receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				ids = append(ids, r.Header.Get("webhook-id"))
				forged = errors.Join(forged, verifier.Verify(body, r.Header))
			}))
			t.Cleanup(receiver.Close)
			s := newSystemWithJobs(t)
			s.environ = append(s.environ, "TERMKEEPER_SECRET_KEY="+secret.NewKey().Reveal(),
				"TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=1s", "TERMKEEPER_JOB_OUTBOX_DELIVERY_EVERY=1s")
			s.plan(t)
			a := s.startAPI(t)
			var made struct{ Secret string }
			a.want(t, http.StatusCreated, http.MethodPost, "/v1/webhook-endpoints",
				map[string]any{"url": receiver.URL + "/hooks", "topics": []string{"access.*"}}).decode(t, &made)
			var err error
			mu.Lock()
			verifier, err = standardwebhooks.NewWebhook(made.Secret)
			mu.Unlock()
			require.NoError(t, err)
			s.dueAt(t, 1, now())

			p := s.program("TERMKEEPER_FAILPOINT=" + place)
			p.build = failpoints
			requireKilled(t, p.start(t, "worker"))
			came := func() int {
				mu.Lock()
				defer mu.Unlock()
				return len(ids)
			}
			require.Equal(t, calls-1, came())
			require.Equal(t, "sending", s.text(t, `SELECT status FROM deliveries`), "its lease keeps everybody off")
			// The lease would pass within a minute; the test does not wait for it.
			require.Positive(t, s.count(t, `SELECT count(*) FROM deliveries WHERE leased_until BETWEEN now() AND now() + interval '2 minutes'`))
			s.exec(t, `UPDATE deliveries SET leased_until = now()`)
			s.startWorker(t)
			await(t, "the call is marked", func() error {
				if status := s.text(t, `SELECT status FROM deliveries`); status != "sent" {
					return errors.New(status)
				}
				return nil
			})
			s.awaitWholeRun(t, "outbox-delivery")
			require.Equal(t, calls, came())
			mu.Lock()
			defer mu.Unlock()
			require.NoError(t, forged)
			for _, id := range ids {
				require.Equal(t, s.text(t, `SELECT message_id FROM deliveries`), id)
			}
			var log struct {
				Data []struct {
					ResponseStatus int `json:"response_status"`
					URL            string
				}
			}
			a.want(t, http.StatusOK, http.MethodGet, "/v1/deliveries?channel=webhook", nil).decode(t, &log)
			require.Len(t, log.Data, 1)
			require.Equal(t, http.StatusOK, log.Data[0].ResponseStatus)
			require.Equal(t, receiver.URL+"/hooks", log.Data[0].URL)
		})
	}
}
