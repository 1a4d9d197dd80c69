package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/proto"

	"termkeeper/internal/simulator"
)

// What must stay in the database: it is planted there, and everything is made to fail with it in its mouth.
const (
	canaryUser     = "canary-user"
	canaryMail     = "canary-mail@example.org"
	canaryName     = "Canary Nameless"
	canaryCustomer = "canary-customer@example.org"
	canaryStripe   = "sk_test_canary_key_of_stripe"
)

// Histories of workflows are read by more people than the database, and so are logs and metrics. Jobs do their work and
// fail, on rows, on a whole statement, on the mail server and on the provider, with secrets and persons in each error.
func TestHistoriesLogsAndMetricsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(t.Context())) })
	s := newSystem(t)
	temporal := s.useTemporal(t)
	s.environ = append(s.environ, "SMTP_URL="+sim.SMTPURL(), "STRIPE_API_KEY="+canaryStripe, "STRIPE_API_BASE="+sim.StripeURL())
	s.environ = append(s.environ, everyJob("1s")...)
	s.plan(t)
	// One row that no batch can have, by a message with its user; and later a whole statement that nothing can be done about.
	s.exec(t, `CREATE FUNCTION tell_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.user_id = TG_ARGV[0] THEN
			RAISE EXCEPTION 'the user % is %', NEW.user_id, (SELECT email || ' ' || name FROM users WHERE id = NEW.user_id) USING ERRCODE = TG_ARGV[1];
		END IF;
		RETURN NEW;
	END $$`)
	s.exec(t, `CREATE TRIGGER poison BEFORE UPDATE ON subscriptions FOR EACH ROW EXECUTE FUNCTION tell_all('canary-user-poison', 'P0001')`)
	s.exec(t, `CREATE TRIGGER broken BEFORE INSERT ON deliveries FOR EACH ROW EXECUTE FUNCTION tell_all('canary-user', 'TK001')`)
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtRcpt, Code: 450}))

	api := s.startAPI(t)
	for _, user := range []string{canaryUser, canaryUser + "-poison"} {
		api.want(t, http.StatusCreated, http.MethodPut, "/v1/users/"+user, map[string]any{"email": canaryMail, "name": canaryName})
		api.subscribe(t, user, time.Now().Add(time.Second))
	}
	// An event that only waits, one with a wrong signature, and one that cannot be read.
	waits := stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
		ID: "sub_unmapped", PriceID: "price_unknown", PeriodStart: now(), PeriodEnd: now().Add(day),
		Customer: &simulator.CustomerFixture{ID: "cus_canary", Email: canaryCustomer},
	})
	api.send(t, waits)
	s.awaitEvent(t, waits)
	forged := api.caller
	forged.secret = "whsec_of_somebody_else_altogether"
	for _, sender := range []struct {
		caller
		body string
	}{{forged, string(waits.body)}, {api.caller, `{"id": "evt_x", "email": "` + canaryCustomer + `"`}} {
		_, a, err := sender.trySend(t.Context(), event{"evt_x", []byte(sender.body)})
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, a.status)
		require.NotContains(t, string(a.body), canaryCustomer)
	}
	worker := s.startWorker(t)
	ops := worker.entry(t, "worker starts")["ops_addr"].(string)

	awaitEvery(t, lookSeldom, "a job has failed as a whole, and a row by itself", func() error {
		if n := s.count(t, `SELECT count(*) FROM job_runs WHERE outcome = 'failed'`); n == 0 {
			return errors.New("no job has")
		}
		if n := s.count(t, `SELECT count(*) FROM subscriptions WHERE status <> 'expired'`); n != 1 {
			return fmt.Errorf("%d rows are left", n)
		}
		return nil
	})
	failed := awaitHistories(t, temporal, "TK001")
	s.exec(t, `DROP TRIGGER broken ON deliveries`)
	awaitEvery(t, lookSeldom, "the mail server has refused a message", func() error {
		if s.count(t, `SELECT count(*) FROM deliveries WHERE attempts > 0`) == 0 {
			return errors.New("none was tried")
		}
		return nil
	})
	s.exec(t, `UPDATE deliveries SET next_attempt_at = now() WHERE status = 'pending'`)
	awaitEvery(t, lookSeldom, "mails are sent", func() error {
		if s.count(t, `SELECT count(*) FROM deliveries WHERE status = 'sent'`) == 0 {
			return errors.New("none is")
		}
		return nil
	})
	require.Contains(t, sim.Messages()[0].Text, canaryName, "the person was told, so the canaries were in the hands of the jobs")
	for _, job := range jobs {
		s.awaitWholeRun(t, job.id)
	}

	places := map[string]string{
		"histories of failures": failed, "histories": histories(t, temporal),
		"metrics of the worker": scrape(t, ops), "metrics of the API": scrape(t, api.ops),
		"statements": s.text(t, `SELECT string_agg(query, E'\n') FROM pg_stat_activity WHERE datname = current_database() AND application_name <> ''`),
	}
	worker.stops(t, syscall.SIGTERM)
	api.stops(t, syscall.SIGTERM)
	for name, p := range map[string]*process{"log of the worker": worker, "log of the API": api.process} {
		text, err := os.ReadFile(p.log)
		require.NoError(t, err)
		places[name] = string(text)
	}
	for name, text := range places {
		require.NotEmpty(t, text, name)
		for _, canary := range []string{canaryMail, canaryName, canaryCustomer, canaryStripe, webhookSecret, s.key, canaryUser} {
			at := strings.Index(text, canary)
			require.Negative(t, at, "%s: %q", name, text[max(0, at-300):max(0, min(len(text), at+100))])
		}
	}
}

// awaitHistories waits until the histories tell of something, and returns them.
func awaitHistories(t *testing.T, temporal client.Client, of string) string {
	t.Helper()
	var text string
	awaitEvery(t, lookSeldom, "the histories tell of "+of, func() error {
		if text = histories(t, temporal); !strings.Contains(text, of) {
			return errors.New("they do not")
		}
		return nil
	})
	return text
}

// histories is all that Temporal keeps of the runs of a namespace and of the attempts under way: inputs, results,
// failures, memos and details of heartbeats. A payload is in it as it is, not encoded.
func histories(t *testing.T, temporal client.Client) string {
	t.Helper()
	var all strings.Builder
	write := func(m proto.Message) {
		raw, err := proto.Marshal(m)
		require.NoError(t, err)
		all.Write(raw)
	}
	listed, err := temporal.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.NextPageToken, "more runs than one page holds")
	for _, run := range listed.Executions {
		write(run)
		id, runID := run.Execution.WorkflowId, run.Execution.RunId
		described, err := temporal.DescribeWorkflow(t.Context(), id, runID)
		require.NoError(t, err)
		write(described.RawResponse)
		for history := temporal.GetWorkflowHistory(t.Context(), id, runID, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); history.HasNext(); {
			event, err := history.Next()
			require.NoError(t, err)
			write(event)
		}
	}
	return all.String()
}

// scrape is the page of metrics of a process.
func scrape(t *testing.T, ops string) string {
	t.Helper()
	response, err := http.Get("http://" + ops + "/metrics") //nolint:noctx // It answers at once.
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(text)
}
