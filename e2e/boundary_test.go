package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// The end is exact to the microsecond, and needs neither a worker nor Temporal: the API runs alone here, and Temporal
// is where nobody listens.
func TestAccessEndsAtTheInstantWithoutJobs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t)
	api := s.startAPI(t)

	t.Run("to the microsecond", func(t *testing.T) {
		end := time.Now().UTC().Add(48 * time.Hour).Truncate(time.Second).Add(123456 * time.Microsecond)
		api.subscribe(t, "u_exact", end)
		for _, at := range []struct {
			offset  time.Duration
			allowed bool
			reason  string
		}{
			{-time.Hour, true, "active"},
			{-time.Microsecond, true, "active"},
			{0, false, "expired"},
			{time.Microsecond, false, "expired"},
			{time.Hour, false, "expired"},
		} {
			said := api.access(t, "u_exact", end.Add(at.offset))
			require.Equal(t, at.allowed, said.Allowed, "%s from the end", at.offset)
			require.Equal(t, at.reason, said.Reason, "%s from the end", at.offset)
			require.True(t, said.DecidedAt.Equal(end.Add(at.offset)), "it was decided for %s", said.DecidedAt)
		}
	})

	t.Run("as time goes by", func(t *testing.T) {
		end := time.Now().UTC().Add(1500 * time.Millisecond).Truncate(time.Microsecond)
		made := api.subscribe(t, "u_passing", end)
		before, after := api.askAcross(t, "u_passing", end)
		t.Logf("%d answers before the end, %d from it on", before, after)
		require.Positive(t, before)
		// Nobody has marked it, and the answer is no all the same.
		var row subscription
		api.want(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+made.ID, nil).decode(t, &row)
		require.Equal(t, "active", row.Status)
		require.Nil(t, row.ExpiredAt)
		require.Equal(t, access{Reason: "expired", SubscriptionID: made.ID, Status: "active"}, withoutInstant(api.access(t, "u_passing", time.Time{})))
	})

	t.Run("of a Stripe subscription that came while Temporal was down", func(t *testing.T) {
		end := now().Add(3 * time.Second)
		e := stripeEvent(simulator.Shape2025, created, now(), simulator.SubscriptionFixture{
			ID: "sub_down", UserID: "u_down", PeriodStart: end.Add(-time.Hour), PeriodEnd: end, CancelAtPeriodEnd: true,
		})
		require.False(t, api.send(t, e).Duplicate)
		require.Equal(t, "processed", s.awaitEvent(t, e).Status)
		before, _ := api.askAcross(t, "u_down", end)
		require.Positive(t, before)
		s.requireInvariants(t, e.id)
	})

	t.Run("what is known of the jobs is told", func(t *testing.T) {
		var list struct {
			Data []struct{ Job, Health string }
		}
		api.want(t, http.StatusOK, http.MethodGet, "/v1/jobs", nil).decode(t, &list)
		require.NotEmpty(t, list.Data)
		for _, job := range list.Data {
			require.Equal(t, "unknown", job.Health, job.Job)
		}
		api.want(t, http.StatusServiceUnavailable, http.MethodPost, "/v1/jobs/subscription-expiry/trigger", nil)
		require.NoError(t, ready(api.ops), "Temporal is none of the API's needs")
	})
	require.Zero(t, s.count(t, `SELECT count(*) FROM subscription_events WHERE event_type IN ('expired', 'ended')`), "no job has run")
}

// askAcross asks on and on until the answers come from after the end. Every answer before it must be yes, and every one
// from it on no. It returns how many of each there were.
func (c caller) askAcross(t *testing.T, user string, end time.Time) (before, after int) {
	t.Helper()
	const enough = 20 // from after the end
	await(t, "the end of "+user, func() error {
		for range 100 {
			said := c.access(t, user, time.Time{})
			require.Equal(t, said.DecidedAt.Before(end), said.Allowed, "at %s, the end is %s", said.DecidedAt, end)
			if said.Allowed {
				before++
				continue
			}
			require.Equal(t, "expired", said.Reason)
			if after++; after == enough {
				return nil
			}
		}
		return fmt.Errorf("%d answers, all from before it", before)
	})
	return before, after
}

func withoutInstant(a access) access {
	a.DecidedAt = time.Time{}
	return a
}
