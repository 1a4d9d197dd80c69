package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/conformance"
)

// conform tries orders of events against the instance at a URL.
func (s *system) conform(t *testing.T, url string, args ...string) (said, conformance.Report) {
	t.Helper()
	args = append([]string{"conformance", "--url", url, "--secret", webhookSecret, "--json"}, args...)
	out := program{environ: []string{"TERMKEEPER_API_KEY=" + s.key}}.run(t, args...)
	var report conformance.Report
	if out.stdout != "" {
		require.NoError(t, json.Unmarshal([]byte(out.stdout), &report), "%s", out.stdout)
	}
	return out, report
}

// freeAddress is one that nobody listens on. The instance must know where its provider will be before it is there.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

// TestConformance sends the events of all lives in many orders to an API with its worker, which has no provider to ask.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := newSystemWithJobs(t)
	a := s.startAPI(t)
	s.startWorker(t)
	out, report := s.conform(t, a.url, "--limit", "6", "--seed", "4")
	require.Equal(t, exitDone, out.code, "%s%s", out.stdout, out.stderr)
	require.Empty(t, report.Differences)
	require.Len(t, report.Lives, 2*len(conformance.Lives()), "each life in both shapes")
	for _, l := range report.Lives {
		require.Equal(t, 6, l.Permuted, l.Life)
		require.Positive(t, l.Duplicated*l.Delayed*l.Dropped, l.Life)
		require.Zero(t, l.Tied, "only a provider can tell the order of a second")
	}
	require.Contains(t, strings.Join(report.LeftOut, "\n"), "ties")
	s.awaitEventsDone(t)
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_webhook_events WHERE status NOT IN ('processed', 'ignored')`), "every event came to an end")
}

// TestConformanceWithAProvider lets the instance ask the command itself, and answers access from memory.
func TestConformanceWithAProvider(t *testing.T) {
	t.Parallel()
	s := newSystemWithJobs(t)
	provider := freeAddress(t)
	s.environ = append(s.environ, "STRIPE_API_KEY=sk_test_of_the_conformance_run", "STRIPE_API_BASE=http://"+provider, "TERMKEEPER_ACCESS_MODE=cached")
	a := s.startAPI(t)
	s.startWorker(t)
	out, report := s.conform(t, a.url, "--limit", "4", "--seed", "4", "--provider", provider)
	require.Equal(t, exitDone, out.code, "%s%s", out.stdout, out.stderr)
	require.Empty(t, report.Differences)
	require.Empty(t, report.LeftOut)
	require.Positive(t, report.Asked)
	for _, l := range report.Lives {
		require.Equal(t, 4, l.Tied, l.Life)
	}
}

// TestConformanceFindsLostEvents puts something between that answers 200 for deletions and loses them.
func TestConformanceFindsLostEvents(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.startAPI(t)
	target, err := url.Parse(a.url)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	loses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && bytes.Contains(body, []byte("customer.subscription.deleted")) {
			return // 200
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(loses.Close)
	out, report := s.conform(t, loses.URL, "--limit", "2", "--patience", "1s", "--life", "cancel", "--life", "renew")
	require.Equal(t, exitNo, out.code, "%s%s", out.stdout, out.stderr)
	require.Contains(t, out.stderr, "did not end as they must")
	require.NotEmpty(t, report.Differences)
	for _, d := range report.Differences {
		require.Equal(t, "cancel", d.Life)
		require.True(t, d.Got.Allowed && !d.Want.Allowed, "%+v", d)
	}
}

func TestConformanceSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.startAPI(t)
	with := program{environ: []string{"TERMKEEPER_API_KEY=" + s.key}}
	requireSentences(t, with.run(t, "conformance", "--url", a.url), exitUsage, "--secret")
	requireSentences(t, with.run(t, "conformance", "--url", "nowhere", "--secret", webhookSecret), exitUsage, "--url")
	requireSentences(t, with.run(t, "conformance", "--url", a.url, "--secret", webhookSecret, "--plan", "pro"), exitUsage, "--price")
	requireSentences(t, with.run(t, "conformance", "--url", a.url, "--secret", webhookSecret, "--life", "none"), exitUsage, "fail, recover")
	requireSentences(t, with.run(t, "conformance", "--url", a.url, "--secret", webhookSecret, "--provider", strings.TrimPrefix(a.url, "http://")), exitUsage, "--provider")
	requireSentences(t, with.run(t, "conformance", "--url", a.url, "--secret", "whsec_of_somebody_else_and_wrong", "--json"), exitUsage, "--secret")
	requireSentences(t, with.run(t, "conformance", "--url", a.url, "--secret", webhookSecret, "--key", "tk_nobody", "--json"), exitUsage, "--key")
	requireSentences(t, with.run(t, "conformance", "--url", "http://127.0.0.1:9", "--secret", webhookSecret, "--json"), exitUnreachable, "--url")
}
