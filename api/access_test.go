package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/subscription"
)

func (s *system) seed(t *testing.T) {
	t.Helper()
	s.exec(t, `INSERT INTO plans (key, features) VALUES ('pro', '{images}'), ('basic', '{}')`)
}

const goldenID = "01980000-0000-7000-8000-000000000001"

func TestAccessAnswerIsAsWritten(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	s.exec(t, `INSERT INTO subscriptions (id, user_id, plan_key, status, started_at, expires_at, grace_period_ends_at)
		VALUES ($1, 'u_1', 'pro', 'past_due', '2026-01-01', '2100-12-30T00:00:00Z', '2101-01-02T00:00:00.5Z')`, goldenID)
	get := func(query string) string {
		a := s.do(t, roleAccess, http.MethodGet, "/v1/access?"+query, "")
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		require.Equal(t, "application/json", a.header.Get("Content-Type"))
		return string(a.body)
	}
	for query, file := range map[string]string{
		"user_id=u_1&feature=images&plan=pro&at=2100-12-01T01:00:00.000001%2B01:00": "access_active.json",
		"user_id=u_1&at=2101-01-01T00:00:00Z":                                       "access_grace_period.json",
		"user_id=nobody&at=2100-12-01T00:00:00Z":                                    "access_no_subscription.json",
	} {
		golden, err := os.ReadFile("testdata/" + file)
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(string(golden)), get(query), "byte for byte, as %s has it", file)
	}
	require.Contains(t, get("user_id=u_1&plan=basic"), `"allowed":false,"reason":"plan_mismatch"`)
	require.Contains(t, get("user_id=u_1&feature=video"), `"allowed":false,"reason":"feature_not_in_plan"`)
}

// TestAccessEndsAtTheInstant asks around the end: a microsecond before, at it, and after it.
func TestAccessEndsAtTheInstant(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	end := time.Date(2100, 6, 30, 12, 0, 0, 123456000, time.UTC)
	for _, status := range []string{"active", "trialing", "past_due"} {
		s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ($1, 'pro', $2, $3)`, "u_"+status, status, end)
	}
	s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at) VALUES ('u_later', 'pro', 'active', $1, 'infinity')`, end)
	ask := func(user string, at time.Time) (bool, string) {
		a := s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id="+user+"&at="+url.QueryEscape(at.Format(time.RFC3339Nano)), "")
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		return a.field(t, "allowed").(bool), a.field(t, "reason").(string)
	}
	for _, status := range []string{"active", "trialing", "past_due"} {
		user := "u_" + status
		for offset, want := range map[time.Duration]bool{-time.Microsecond: true, -time.Nanosecond: true, 0: false, time.Microsecond: false, time.Hour: false} {
			allowed, reason := ask(user, end.Add(offset))
			require.Equal(t, want, allowed, "%s at the end %+d ns", user, offset)
			if !want {
				require.Equal(t, "expired", reason)
			}
		}
	}
	allowed, reason := ask("u_later", end.Add(-time.Microsecond))
	require.False(t, allowed)
	require.Equal(t, "not_started", reason)
	allowed, _ = ask("u_later", end)
	require.True(t, allowed)
}

func TestAccessRefusesWrongQuestions(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for query, pointer := range map[string]string{
		"": "/user_id", "user_id=": "/user_id", "user_id=%20": "/user_id", "user_id=a%00b": "/user_id", "user_id=%ff": "/user_id",
		"user_id=" + strings.Repeat("u", 256): "/user_id", "user_id=u&feature=a%0Ab": "/feature", "user_id=u&plan=" + strings.Repeat("p", 256): "/plan",
		"user_id=u&at=tomorrow": "/at", "user_id=u&at=2100-01-01": "/at", "user_id=u&at=2100-01-01T00:00:00": "/at",
		"user_id=u&at=10000-01-01T00:00:00Z": "/at", "user_id=u&at=9999-12-31T23:59:59-00:01": "/at", "user_id=u&at=2100-01-01T00:00:00+01:00": "/at",
	} {
		a := s.do(t, roleAccess, http.MethodGet, "/v1/access?"+query, "")
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), query)
	}
	longest := s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id="+strings.Repeat("u", 255)+"&at=9999-12-31T23:59:59.999999Z", "")
	require.Equal(t, http.StatusOK, longest.status)
	for _, payload := range []string{"' OR 1=1 --", `"; DROP TABLE users; --`, "$1", "%", "u_1' AND pg_sleep(10)--"} {
		a := s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id="+url.QueryEscape(payload), "")
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		require.Equal(t, "no_subscription", a.field(t, "reason"))
		require.Equal(t, payload, a.field(t, "user_id"))
	}
}

func TestAccessBatchAnswersInTheOrderAsked(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ('u_1', 'pro', 'active', 'infinity'), ('u_3', 'basic', 'active', 'infinity')`)
	a := s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", `{"checks":[{"user_id":"u_3","feature":"images"},{"user_id":"u_1","feature":"images"},
		{"user_id":"u_2"},{"user_id":"u_1","plan":"pro","at":"2100-01-01T00:00:00Z"}]}`)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	var out struct {
		Results []struct {
			Allowed   bool      `json:"allowed"`
			Reason    string    `json:"reason"`
			UserID    string    `json:"user_id"`
			DecidedAt time.Time `json:"decided_at"`
		} `json:"results"`
	}
	require.NoError(t, json.Unmarshal(a.body, &out))
	require.Len(t, out.Results, 4)
	for i, want := range []string{"u_3 feature_not_in_plan", "u_1 active", "u_2 no_subscription", "u_1 active"} {
		require.Equal(t, want, out.Results[i].UserID+" "+out.Results[i].Reason)
	}
	require.Equal(t, out.Results[0].DecidedAt, out.Results[2].DecidedAt, "one clock for all")
	require.Equal(t, 2100, out.Results[3].DecidedAt.Year())

	checks := func(n int) string {
		return `{"checks":[` + strings.TrimSuffix(strings.Repeat(`{"user_id":"u_1"},`, n), ",") + `]}`
	}
	require.Equal(t, http.StatusOK, s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", checks(1000)).status)
	for body, pointer := range map[string]string{
		checks(0): "/checks", checks(1001): "/checks", "{}": "/checks", `{"checks":null}`: "/checks", `{"checks":[{"user_id":"u"},{"user_id":""}]}`: "/checks/1/user_id",
		`{"checks":[{"user_id":"u","at":"x"}]}`: "/checks/0/at", `{"checks":[{"user":"u"}]}`: "/checks/0/user",
	} {
		a := s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", body)
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"))
	}
	nulls := s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", `{"checks":[{"user_id":"u_1","feature":null,"plan":null,"at":null}]}`)
	require.Contains(t, string(nulls.body), `"reason":"active"`, "null is not asked for")
	a = s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", `{"checks":[{"user_id":null}]}`)
	require.Equal(t, []string{"/checks/0/user_id"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"))
}

// TestAccessUnderManyAtOnce holds the gathering of checks to its promise: everybody gets the answer about their own user.
func TestAccessUnderManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	const users = 40
	for i := range users {
		s.exec(t, `INSERT INTO subscriptions (user_id, plan_key, status, expires_at) VALUES ($1, 'pro', 'active', CASE WHEN $2 THEN 'infinity'::timestamptz ELSE now() END)`,
			fmt.Sprint("u_", i), i%2 == 0)
	}
	var wait sync.WaitGroup
	for i := range users * 10 {
		wait.Go(func() {
			user := fmt.Sprint("u_", i%users)
			a := s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id="+user, "")
			if a.status != http.StatusOK || a.field(t, "user_id") != user || a.field(t, "allowed") != (i%2 == 0) {
				t.Errorf("%s: %d %s", user, a.status, a.body)
			}
		})
	}
	wait.Wait()
}

// answerJSON is what appendAnswer writes, as encoding/json would.
type answerJSON struct {
	Allowed           bool    `json:"allowed"`
	Reason            string  `json:"reason"`
	UserID            string  `json:"user_id"`
	Feature           *string `json:"feature"`
	Plan              *string `json:"plan"`
	SubscriptionID    *string `json:"subscription_id"`
	Status            *string `json:"status"`
	ExpiresAt         *string `json:"expires_at"`
	GracePeriodEndsAt *string `json:"grace_period_ends_at"`
	AccessUntil       *string `json:"access_until"`
	NextChangeAt      *string `json:"next_change_at"`
	DecidedAt         *string `json:"decided_at"`
}

func TestAppendedAnswersAreThoseOfEncodingJSON(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]{0,12}`), rapid.SampledFrom([]string{"u_1", `<a href="x">&amp;`, "line\u2028", "\t\\\"", "日本"}))
	moment := rapid.Custom(func(t *rapid.T) time.Time {
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return time.Time{}
		case 1:
			return subscription.Forever
		default:
			micros := rapid.Int64Range(-62135596800+86400, 253402300799).Draw(t, "seconds")*1e6 + rapid.SampledFrom([]int64{0, 1, 500000, 999999, 120000}).Draw(t, "micros")
			return time.UnixMicro(micros).In(time.FixedZone("", rapid.IntRange(-12, 14).Draw(t, "zone")*3600))
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		q := check{UserID: text.Draw(t, "user"), Feature: text.Draw(t, "feature")}
		d := subscription.Decision{
			Allowed: rapid.Bool().Draw(t, "allowed"), Reason: rapid.SampledFrom(subscription.Reasons).Draw(t, "reason"), NextChangeAt: moment.Draw(t, "next"),
		}
		at := moment.Filter(func(m time.Time) bool { return !m.IsZero() }).Draw(t, "at")
		instant := func(m time.Time) *string {
			if m.IsZero() || subscription.IsForever(m) {
				return nil
			}
			s := m.UTC().Format(instantLayout)
			return &s
		}
		want := answerJSON{Allowed: d.Allowed, Reason: string(d.Reason), UserID: q.UserID, NextChangeAt: instant(d.NextChangeAt), DecidedAt: instant(at)}
		if q.Feature != "" {
			want.Feature = &q.Feature
		}
		if rapid.Bool().Draw(t, "named") {
			h := &subscription.Holding{Subscription: subscription.Subscription{
				ID: text.Draw(t, "id"), PlanKey: text.Draw(t, "plan"), Status: subscription.Active,
				ExpiresAt: moment.Draw(t, "expires"), GraceUntil: moment.Draw(t, "grace"), CompUntil: moment.Draw(t, "comp"),
			}}
			d.Named = h
			status := string(h.Status)
			want.Plan, want.SubscriptionID, want.Status = &h.PlanKey, &h.ID, &status
			want.ExpiresAt, want.GracePeriodEndsAt, want.AccessUntil = instant(h.ExpiresAt), instant(h.GraceUntil), instant(h.AccessUntil())
		}
		expected, err := json.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, string(expected), string(appendAnswer(nil, q, d, at)))
	})
}
