package conformance_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/conformance"
)

// wrong starts an instance that is wrong. Its plans have the names of the prices that sell them.
func wrong(t *testing.T, n *naive) conformance.Settings {
	t.Helper()
	n.leeway, n.rows, n.owners = time.Hour, map[string]*naiveRow{}, map[string]string{}
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	return conformance.Settings{
		URL: server.URL, Secret: "whsec_of_nobody_in_particular", Plans: []conformance.Plan{{Key: "one", Price: "one"}, {Key: "two", Price: "two"}},
		Seed: 3, Limit: 12, Leeway: time.Hour, Grace: 72 * time.Hour, Settling: 10 * time.Millisecond, Patience: 100 * time.Millisecond,
	}
}

func TestAnInstanceThatBelievesTheLastEventIsFound(t *testing.T) {
	t.Parallel()
	s := wrong(t, &naive{})
	var told int
	s.Progress = func(done, _ int) { told = done }
	report, err := conformance.Run(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, told, report.Tried)
	require.Greater(t, len(report.Differences), report.Tried/4)
	require.Less(t, len(report.Differences), report.Tried, "what comes in its order ends right even here")
	differ := 0
	for _, l := range report.Lives {
		switch l.Life {
		case "refund, keeps", "refund in part", "dispute won": // they change nothing, in whatever order; this instance does not know them at all
			require.Zero(t, l.Differ, "%s, %s", l.Life, l.Shape)
		default:
			require.Positive(t, l.Differ, "%s, %s: every other life shows the fault", l.Life, l.Shape)
		}
		differ += l.Differ
	}
	require.Len(t, report.Differences, differ)
	for _, d := range report.Differences {
		require.NotEqual(t, d.Want, d.Got)
		require.False(t, d.Kind == "permuted" && slices.IsSorted(d.Order), "in order: %v", d)
	}
	var printed bytes.Buffer
	report.Print(&printed)
	require.Equal(t, len(report.Differences), strings.Count(printed.String(), "  expected  "), "each one is printed")
	for _, d := range report.Differences {
		require.Contains(t, printed.String(), d.User)
	}
	require.Contains(t, printed.String(), "left out: ties")
}

func TestTheSeedRepeatsTheOrders(t *testing.T) {
	t.Parallel()
	var orders [2][][]string
	for i := range orders {
		report, err := conformance.Run(t.Context(), wrong(t, &naive{}))
		require.NoError(t, err)
		for _, d := range report.Differences {
			orders[i] = append(orders[i], append([]string{d.Life, string(d.Shape), d.Kind}, d.Order...))
		}
	}
	require.NotEmpty(t, orders[0])
	require.Equal(t, orders[0], orders[1])
}

func TestAnEventThatIsNotTakenIsADifference(t *testing.T) {
	t.Parallel()
	report, err := conformance.Run(t.Context(), wrong(t, &naive{refuses: "invoice.payment_failed", status: http.StatusInternalServerError}))
	require.NoError(t, err)
	refused := slices.IndexFunc(report.Differences, func(d conformance.Difference) bool { return strings.Contains(d.Refusal, "500") })
	require.GreaterOrEqual(t, refused, 0)
	var printed bytes.Buffer
	report.Print(&printed)
	require.Contains(t, printed.String(), "payment failed: an event was answered with 500")
}

func TestARefusedSignatureEndsTheRun(t *testing.T) {
	t.Parallel()
	_, err := conformance.Run(t.Context(), wrong(t, &naive{refuses: "customer.subscription.created", status: http.StatusBadRequest}))
	require.True(t, conformance.Misused(err), "%v", err)
	require.ErrorContains(t, err, "--secret")
}

func TestAnInstanceThatMakesNoPlansNeedsThemNamed(t *testing.T) {
	t.Parallel()
	s := wrong(t, &naive{})
	s.Plans = nil
	_, err := conformance.Run(t.Context(), s)
	require.True(t, conformance.Misused(err), "%v", err)
	require.ErrorContains(t, err, "--plan")
	s = wrong(t, &naive{})
	s.Plans = s.Plans[:1]
	report, err := conformance.Run(t.Context(), s)
	require.NoError(t, err)
	require.Contains(t, strings.Join(report.LeftOut, "\n"), "plan change: it needs a second --plan")
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	s := wrong(t, &naive{})
	s.URL = "http://127.0.0.1:9"
	_, err := conformance.Run(t.Context(), s)
	require.True(t, conformance.Unreachable(err), "%v", err)
}
