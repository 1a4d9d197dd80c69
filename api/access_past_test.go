package api

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/store"
)

// said is one answer of the access check, with the parts that the past must say again.
type said struct {
	user, at, feature string
	had               bool // the user had had something by then
	answer            [4]any
}

func (s *system) askedAt(t *testing.T, user, feature, at string) answer {
	t.Helper()
	query := url.Values{"user_id": {user}}
	if feature != "" {
		query.Set("feature", feature)
	}
	if at != "" {
		query.Set("at", at)
	}
	return s.do(t, roleAccess, http.MethodGet, "/v1/access?"+query.Encode(), "")
}

func gist(t *testing.T, a answer) [4]any {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	return [4]any{a.field(t, "allowed"), a.field(t, "reason"), a.field(t, "subscription_id"), a.field(t, "access_until")}
}

// TestThePastIsAnsweredAsItWas lets random things happen to two users, keeps what the check answered in between, and asks
// for all of it again at the end.
func TestThePastIsAnsweredAsItWas(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, features, stripe_price_ids, grace_period) VALUES ('pro', '{images}', '{price_1}', '1 hour'), ('basic', '{}', '{price_2}', '0')`)
	round := 0
	again := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		users := []string{fmt.Sprintf("a_%d", round), fmt.Sprintf("b_%d", round)}
		ever := map[string]bool{}
		var kept []said
		keep := func() {
			for _, user := range users {
				for _, feature := range []string{"", "images"} {
					a := s.askedAt(t, user, feature, "")
					kept = append(kept, said{user, a.field(t, "decided_at").(string), feature, ever[user], gist(t, a)})
				}
			}
		}
		var ids []string
		events := 0
		status, price, ends, start := "active", "price_1", false, time.Now().Truncate(time.Second).Add(-time.Minute)
		created := time.Now().Add(-10 * time.Minute).Truncate(time.Second)
		post := func(path, body string) answer { return s.do(t, roleOperator, http.MethodPost, path, body) }
		span := func() string {
			return rapid.SampledFrom([]string{"2ms", "30ms", "1h", "48h"}).Draw(rt, "span")
		}
		steps := map[string]func(){
			"create": func() {
				user := rapid.SampledFrom(users).Draw(rt, "user")
				end := rapid.SampledFrom([]string{`"lifetime":true`, `"duration":"` + span() + `"`}).Draw(rt, "end")
				start := rapid.SampledFrom([]string{"", `,"started_at":"` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `"`}).Draw(rt, "start")
				a := post("/v1/subscriptions", fmt.Sprintf(`{"user_id":%q,"plan":%q,"status":%q,%s%s}`, user, rapid.SampledFrom([]string{"pro", "basic"}).Draw(rt, "plan"),
					rapid.SampledFrom([]string{"active", "trialing", "past_due", "paused"}).Draw(rt, "status"), end, start))
				require.Equal(t, http.StatusCreated, a.status, string(a.body))
				ids = append(ids, a.field(t, "id").(string))
				ever[user] = true
			},
			"act": func() {
				if len(ids) == 0 {
					return
				}
				act := rapid.SampledFrom([]string{`cancel {}`, `cancel {"at_period_end":true}`, `uncancel {}`, `pause {}`, `resume {}`, `resume {"add_paused_time":true}`, `extend {"duration":"20ms"}`, `extend {"duration":"1h"}`}).Draw(rt, "act")
				var name, body string
				_, err := fmt.Sscan(act, &name, &body)
				require.NoError(t, err)
				a := post("/v1/subscriptions/"+rapid.SampledFrom(ids).Draw(rt, "id")+"/"+name, body)
				require.Contains(t, []int{http.StatusOK, http.StatusConflict}, a.status, string(a.body))
			},
			"event": func() {
				events++
				created = created.Add(time.Second)
				user := rapid.SampledFrom(users).Draw(rt, "user")
				if rapid.IntRange(0, 2).Draw(rt, "other") == 0 { // else only the end moves, and the user may be another one
					status = rapid.SampledFrom([]string{"trialing", "active", "past_due", "paused", "canceled"}).Draw(rt, "status")
					price = rapid.SampledFrom([]string{"price_1", "price_2"}).Draw(rt, "price")
					ends = rapid.Bool().Draw(rt, "ends")
					start = time.Now().Truncate(time.Second).Add(time.Duration(rapid.IntRange(-7200, 3600).Draw(rt, "start")) * time.Second)
				}
				body := fmt.Sprintf(`{"id":"evt_%d_%d","object":"event","type":"customer.subscription.updated","created":%d,"livemode":false,"data":{"object":{
					"id":"sub_%d","object":"subscription","customer":"cus_%d","status":%q,"start_date":%d,"current_period_start":%d,"current_period_end":%d,
					"cancel_at_period_end":%v,"collection_method":"charge_automatically","items":{"data":[{"price":{"id":%q}}]},"metadata":{"user_id":%q}}}}`,
					round, events, created.Unix(), round, round, status,
					start.Unix(), start.Unix(), start.Add(time.Duration(rapid.IntRange(1, 7200).Draw(rt, "length"))*time.Second).Unix(),
					ends, price, user)
				now := time.Now()
				require.Equal(t, http.StatusOK, s.deliver(t, body, signature(secretNew, now, body)).status)
				require.Eventually(t, func() bool {
					return s.count(t, fmt.Sprintf(`SELECT count(*) FROM payment_webhook_events WHERE external_event_id = 'evt_%d_%d' AND status = 'pending'`, round, events)) == 0
				}, 10*time.Second, time.Millisecond)
				if s.count(t, fmt.Sprintf(`SELECT count(*) FROM subscriptions WHERE external_id = 'sub_%d' AND user_id = '%s'`, round, user)) > 0 {
					ever[user] = true
				}
			},
			"mark": func() {
				now, err := s.store.Now(t.Context())
				require.NoError(t, err)
				_, err = s.store.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 100, false)
				require.NoError(t, err)
			},
		}
		for range rapid.IntRange(2, 10).Draw(rt, "steps") {
			steps[rapid.SampledFrom([]string{"create", "act", "act", "event", "event", "mark"}).Draw(rt, "step")]()
			keep()
		}
		for _, k := range kept {
			a := s.askedAt(t, k.user, k.feature, k.at)
			switch {
			case !k.had && ever[k.user]:
				require.Equal(t, []string{"/at"}, a.requireProblem(t, http.StatusBadRequest, "before_history"))
			default:
				require.Equal(t, k.answer, gist(t, a), "%s %q at %s", k.user, k.feature, k.at)
				require.Equal(t, k.at, a.field(t, "decided_at"))
				again++
			}
		}
	})
	require.Positive(t, again)
	for _, kind := range []string{"changed", "renewed", "past_due", "extended", "paused", "resumed", "canceled", "expired"} {
		require.Positive(t, s.count(t, `SELECT count(*) FROM subscription_events WHERE event_type = '`+kind+`'`), "no %s was tried", kind)
	}
}

// TestThePastOfRowsMadeBySQL: without a first entry the terms count from created_at on, until an entry tells of a change.
func TestThePastOfRowsMadeBySQL(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.seed(t)
	s.exec(t, `INSERT INTO subscriptions (id, user_id, plan_key, status, started_at, created_at, expires_at)
		VALUES ($1, 'u_1', 'pro', 'active', now() - interval '4 days', now() - interval '3 days', now() - interval '1 day')`, goldenID)
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339Nano) }
	require.Equal(t, "active", s.askedAt(t, "u_1", "images", ago(2*24*time.Hour)).field(t, "reason"))
	require.Equal(t, "expired", s.askedAt(t, "u_1", "", ago(time.Hour)).field(t, "reason"))
	s.askedAt(t, "u_1", "", ago(4*24*time.Hour)).requireProblem(t, http.StatusBadRequest, "before_history")
	require.Equal(t, "no_subscription", s.askedAt(t, "nobody", "", ago(time.Hour)).field(t, "reason"), "of a user never seen nothing was ever known")

	now, err := s.store.Now(t.Context())
	require.NoError(t, err)
	_, err = s.store.ExpireDue(t.Context(), now, store.ExpiryCursor{}, 10, false)
	require.NoError(t, err)
	require.Equal(t, "active", s.askedAt(t, "u_1", "", ago(2*24*time.Hour)).field(t, "reason"), "a mark changes nothing")

	marked := ago(0)
	s.must(t, http.StatusOK, http.MethodPost, "/v1/subscriptions/"+goldenID+"/extend", `{"duration":"1h"}`)
	require.Equal(t, "active", s.askedAt(t, "u_1", "", ago(0)).field(t, "reason"))
	s.askedAt(t, "u_1", "", marked).requireProblem(t, http.StatusBadRequest, "before_history")
	a := s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", `{"checks":[{"user_id":"u_1"},{"user_id":"u_1","at":"`+marked+`"},{"user_id":"u","at":"`+marked+`"}]}`)
	require.Equal(t, []string{"/checks/1/at"}, a.requireProblem(t, http.StatusBadRequest, "before_history"))
	a = s.do(t, roleAccess, http.MethodPost, "/v1/access/batch", `{"checks":[{"user_id":"u_1"},{"user_id":"u_1","at":"`+ago(0)+`"},{"user_id":"u","at":"`+marked+`"}]}`)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
}
