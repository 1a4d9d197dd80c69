package api

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (s *system) subscribe(t *testing.T, body string) (id string, made map[string]any) {
	t.Helper()
	made = s.must(t, http.StatusCreated, http.MethodPost, "/v1/subscriptions", body)
	return made["id"].(string), made
}

func instantOf(t *testing.T, value any) time.Time {
	t.Helper()
	text, _ := value.(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	return at
}

func TestSubscriptionsAreMade(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, duration) VALUES ('monthly', '720h'), ('open', NULL)`)

	_, byDuration := s.subscribe(t, `{"user_id":"u_1","plan":"open","duration":"48h"}`)
	require.Equal(t, 48*time.Hour, instantOf(t, byDuration["expires_at"]).Sub(instantOf(t, byDuration["started_at"])))
	require.Equal(t, "active", byDuration["status"])
	require.Equal(t, byDuration["expires_at"], byDuration["access_until"])

	_, byPlan := s.subscribe(t, `{"user_id":"u_1","plan":"monthly","started_at":"2100-01-01T00:00:00Z","status":"trialing"}`)
	require.Equal(t, "2100-01-31T00:00:00Z", byPlan["expires_at"])
	require.Equal(t, "2100-01-01T00:00:00Z", byPlan["started_at"])
	require.Equal(t, "trialing", byPlan["status"])

	id, byEnd := s.subscribe(t, `{"user_id":"u_1","plan":"monthly","expires_at":"2100-01-01T00:00:00.123456789Z"}`)
	require.Equal(t, "2100-01-01T00:00:00.123456Z", byEnd["expires_at"], "to the microsecond, as it is kept")
	require.Equal(t, byEnd, s.must(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+id, ""))
	for _, column := range []string{
		"leeway_until", "grace_period_ends_at", "comp_until", "held_at", "expired_at", "provider", "external_id", "provider_status", "provider_customer_id",
		"provider_period_start", "provider_period_end", "truth_at", "unpaid_since",
	} {
		require.Contains(t, byEnd, column)
		require.Nil(t, byEnd[column], column)
	}
	require.EqualValues(t, 1, byEnd["version"])

	_, lifetime := s.subscribe(t, `{"user_id":"u_2","plan":"open","lifetime":true}`)
	require.Nil(t, lifetime["expires_at"])
	require.Nil(t, lifetime["access_until"])
	require.Equal(t, true, s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_2&at=9999-12-31T00:00:00Z", "").field(t, "allowed"))

	_, held := s.subscribe(t, `{"user_id":"u_3","plan":"open","lifetime":true,"status":"paused"}`)
	require.Equal(t, "paused", held["status"])
	require.Equal(t, "paused", s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_3", "").field(t, "reason"))
}

func TestSubscriptionsRefuseWrongFields(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, duration) VALUES ('monthly', '720h'), ('open', NULL)`)
	for body, pointer := range map[string]string{
		`"plan":"monthly"`: "/user_id", `"user_id":"u"`: "/plan", `"user_id":"u","plan":"none"`: "/plan", `"user_id":"u","plan":"none","lifetime":true`: "/plan",
		`"user_id":"u","plan":"open"`: "/expires_at", `"user_id":"u","plan":"open","lifetime":false`: "/expires_at",
		`"user_id":"u","plan":"open","lifetime":true,"duration":"1h"`: "/expires_at", `"user_id":"u","plan":"open","expires_at":"2100-01-01T00:00:00Z","duration":"1h"`: "/expires_at",
		`"user_id":"u","plan":"open","duration":"0s"`: "/duration", `"user_id":"u","plan":"open","duration":"-1h"`: "/duration",
		`"user_id":"u","plan":"open","duration":"800000h","started_at":"9990-01-01T00:00:00Z"`:                "/duration",
		`"user_id":"u","plan":"open","expires_at":"10000-01-01T00:00:00Z"`:                                    "/expires_at",
		`"user_id":"u","plan":"open","expires_at":"2100-01-01T00:00:00Z","started_at":"2100-01-01T00:00:00Z"`: "/expires_at",
		`"user_id":"u","plan":"open","lifetime":true,"status":"canceled"`:                                     "/status", `"user_id":"u","plan":"open","lifetime":true,"status":"expired"`: "/status",
		`"user_id":"u\n","plan":"open","lifetime":true`: "/user_id", `"user_id":"u","plan":"open","lifetime":"yes"`: "/lifetime", `"user_id":"u","plan":"open","plan_key":"x"`: "/plan_key",
	} {
		a := s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions", "{"+body+"}")
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
	}
	for query, pointer := range map[string]string{"status=alive": "/status", "expiring_before=soon": "/expiring_before", "user_id=%00": "/user_id"} {
		a := s.do(t, roleOperator, http.MethodGet, "/v1/subscriptions?"+query, "")
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), query)
	}
	for _, id := range []string{"1", "nope", "01980000-0000-7000-8000-000000000000", "'%20OR%201=1"} {
		for _, path := range []string{"", "/history"} {
			s.do(t, roleOperator, http.MethodGet, "/v1/subscriptions/"+id+path, "").requireProblem(t, http.StatusNotFound, "not_found")
		}
		for _, action := range []string{"cancel", "uncancel", "pause", "resume"} {
			s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+id+"/"+action, "").requireProblem(t, http.StatusNotFound, "not_found")
		}
	}
}

func TestSubscriptionActionsOfOurs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	id, made := s.subscribe(t, `{"user_id":"u_1","plan":"pro","expires_at":"2100-01-01T00:00:00Z"}`)
	act := func(action, body string) map[string]any {
		return s.must(t, http.StatusOK, http.MethodPost, "/v1/subscriptions/"+id+"/"+action, body)
	}
	conflict := func(action, body string) {
		t.Helper()
		s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+id+"/"+action, body).requireProblem(t, http.StatusConflict, "conflict")
	}
	reason := func() any {
		return s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1", "").field(t, "reason")
	}
	require.Equal(t, "2100-01-02T00:00:00Z", act("extend", `{"duration":"24h"}`)["expires_at"])
	require.Equal(t, true, act("cancel", `{"at_period_end":true}`)["cancel_at_period_end"])
	conflict("cancel", `{"at_period_end":true}`)
	require.Equal(t, false, act("uncancel", "")["cancel_at_period_end"])
	conflict("uncancel", "{}")
	require.NotNil(t, act("pause", `{"reason":"fraud check"}`)["held_at"])
	require.Equal(t, "paused", reason())
	conflict("pause", `{}`)
	require.Nil(t, act("resume", `{}`)["held_at"])
	conflict("resume", `{}`)
	require.Equal(t, "active", reason())
	canceled := act("cancel", `{}`)
	require.Equal(t, "canceled", canceled["status"])
	require.EqualValues(t, 7, canceled["version"])
	require.Equal(t, "canceled", reason())
	for _, action := range []string{"cancel", "uncancel", "pause", "resume"} {
		conflict(action, "")
	}
	conflict("extend", `{"duration":"1h"}`)

	for body, pointer := range map[string]string{`{}`: "/duration", `{"duration":"0s"}`: "/duration", `{"duration":"-1h"}`: "/duration", `{"days":1}`: "/days"} {
		a := s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+id+"/extend", body)
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
	}
	require.Equal(t, []string{"created", "extended", "canceled", "uncanceled", "paused", "resumed", "canceled"}, s.walk(t, "/v1/subscriptions/"+id+"/history?", "event_type", 3))
	entries := s.must(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+id+"/history", "")["data"].([]any)
	first, fifth := entries[0].(map[string]any), entries[4].(map[string]any)
	require.Equal(t, "apikey:test-admin", first["actor"])
	require.Equal(t, made["expires_at"], first["boundary"])
	require.Equal(t, "fraud check", fifth["detail"].(map[string]any)["note"])
}

func TestSubscriptionActionsOnAProvidersOwn(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	const id = goldenID
	s.exec(t, `INSERT INTO subscriptions (id, user_id, plan_key, status, started_at, expires_at, leeway_until, provider, external_id)
		VALUES ($1, 'u_1', 'pro', 'active', '2026-01-01', '2100-01-01', '2100-01-01T01:00:00Z', 'stripe', 'sub_1')`, id)
	for action, body := range map[string]string{"cancel": `{}`, "uncancel": ``} {
		s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+id+"/"+action, body).requireProblem(t, http.StatusConflict, "provider_owned")
	}
	s.must(t, http.StatusOK, http.MethodPost, "/v1/subscriptions/"+id+"/pause", `{}`)
	s.must(t, http.StatusOK, http.MethodPost, "/v1/subscriptions/"+id+"/resume", `{}`)
	extended := s.must(t, http.StatusOK, http.MethodPost, "/v1/subscriptions/"+id+"/extend", `{"duration":"24h"}`)
	require.Equal(t, "2100-01-01T00:00:00Z", extended["expires_at"], "the provider's term is not ours to move")
	require.Equal(t, "2100-01-02T01:00:00Z", extended["comp_until"])
	require.Equal(t, extended["comp_until"], extended["access_until"])
	require.Equal(t, "stripe", extended["provider"])
}

// TestExtensionsAtOnceAddUp: the row's lock keeps each from working on an older state.
func TestExtensionsAtOnceAddUp(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	id, _ := s.subscribe(t, `{"user_id":"u_1","plan":"pro","expires_at":"2100-01-01T00:00:00Z"}`)
	var wait sync.WaitGroup
	for range 24 {
		wait.Go(func() {
			if a := s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions/"+id+"/extend", `{"duration":"1h"}`); a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	wait.Wait()
	after := s.must(t, http.StatusOK, http.MethodGet, "/v1/subscriptions/"+id, "")
	require.Equal(t, "2100-01-02T00:00:00Z", after["expires_at"])
	require.EqualValues(t, 25, after["version"])
	require.Len(t, s.walk(t, fmt.Sprintf("/v1/subscriptions/%s/history?", id), "id", 200), 25)
}
