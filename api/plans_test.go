package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlans(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	made := s.must(t, http.StatusCreated, http.MethodPost, "/v1/plans", `{"key":"pro","name":"Pro","features":["images","video"],"stripe_price_ids":["price_1"],
		"price":{"amount":1999,"currency":"usd"},"duration":"720h","grace_period":"72h","refund_policy":"end"}`)
	require.Equal(t, []any{"images", "video"}, made["features"])
	require.Equal(t, map[string]any{"amount": 1999.0, "currency": "USD"}, made["price"])
	require.Equal(t, "720h", made["duration"])
	require.Equal(t, "72h", made["grace_period"])
	require.Equal(t, "end", made["refund_policy"])
	require.Equal(t, made, s.must(t, http.StatusOK, http.MethodGet, "/v1/plans/pro", ""))

	plain := s.must(t, http.StatusCreated, http.MethodPost, "/v1/plans", `{"key":"plain"}`)
	require.Equal(t, []any{}, plain["features"])
	require.Nil(t, plain["price"])
	require.Nil(t, plain["duration"])
	require.Equal(t, "0s", plain["grace_period"])
	require.Equal(t, "keep", plain["refund_policy"])

	s.do(t, roleAdmin, http.MethodPost, "/v1/plans", `{"key":"pro"}`).requireProblem(t, http.StatusConflict, "already_exists")
	s.do(t, roleAdmin, http.MethodGet, "/v1/plans/none", "").requireProblem(t, http.StatusNotFound, "not_found")
}

func TestPlanChangesOnlyWhatIsGiven(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	made := s.must(t, http.StatusCreated, http.MethodPost, "/v1/plans", `{"key":"pro","name":"Pro","features":["images"],"stripe_price_ids":["price_1"],
		"price":{"amount":0,"currency":"EUR"},"duration":"1h30m","grace_period":"1s","refund_policy":"end"}`)
	changed := s.must(t, http.StatusOK, http.MethodPatch, "/v1/plans/pro", `{}`)
	made["updated_at"] = changed["updated_at"]
	require.Equal(t, made, changed)
	changed = s.must(t, http.StatusOK, http.MethodPatch, "/v1/plans/pro", `{"name":"Pro 2","stripe_price_ids":["price_1","price_2"]}`)
	made["name"], made["stripe_price_ids"], made["updated_at"] = "Pro 2", []any{"price_1", "price_2"}, changed["updated_at"]
	require.Equal(t, made, changed, "its own price is not taken by itself")
	changed = s.must(t, http.StatusOK, http.MethodPatch, "/v1/plans/pro", `{"name":null,"features":null,"stripe_price_ids":null,"price":null,"duration":null,"grace_period":null,"refund_policy":null}`)
	for field, value := range map[string]any{
		"name": "", "features": []any{}, "stripe_price_ids": []any{}, "price": nil, "duration": nil, "grace_period": "0s", "refund_policy": "keep",
	} {
		require.Equal(t, value, changed[field], field)
	}
	s.do(t, roleAdmin, http.MethodPatch, "/v1/plans/none", `{}`).requireProblem(t, http.StatusNotFound, "not_found")
}

func TestPlansRefuseWrongFields(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.must(t, http.StatusCreated, http.MethodPost, "/v1/plans", `{"key":"pro"}`)
	for _, key := range []string{"%00", "%ff", "a%0Ab", strings.Repeat("k", maxID+1)} {
		a := s.do(t, roleAdmin, http.MethodGet, "/v1/plans/"+key, "")
		require.Equal(t, []string{"/key"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), key)
		a = s.do(t, roleAdmin, http.MethodPatch, "/v1/plans/"+key, `{"name":"n"}`)
		require.Equal(t, []string{"/key"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), key)
	}
	for body, pointer := range map[string]string{
		`"name":"a\nb"`: "/name", `"features":["a","a"]`: "/features/1", `"features":[""]`: "/features/0", `"features":"images"`: "/features",
		`"stripe_price_ids":["p\u0007"]`: "/stripe_price_ids/0", `"features":[` + strings.TrimSuffix(strings.Repeat(`"a",`, 201), ",") + `]`: "/features",
		`"price":{"amount":-1,"currency":"USD"}`: "/price/amount", `"price":{"amount":1.5,"currency":"USD"}`: "/price/amount", `"price":{"currency":"USD"}`: "/price/amount",
		`"price":{"amount":1,"currency":"dollar"}`: "/price/currency", `"price":{"amount":1}`: "/price/currency",
		`"duration":"0s"`: "/duration", `"duration":"-1h"`: "/duration", `"duration":"30 days"`: "/duration", `"duration":720`: "/duration", `"duration":"900000h"`: "/duration",
		`"lifetime":true,"duration":"1h"`: "/lifetime", `"lifetime":"yes"`: "/lifetime", `"name":"a\u2028b"`: "/name",
		`"grace_period":"-1s"`: "/grace_period", `"refund_policy":"maybe"`: "/refund_policy", `"id":1`: "/id",
	} {
		a := s.do(t, roleAdmin, http.MethodPatch, "/v1/plans/pro", "{"+body+"}")
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
		a = s.do(t, roleAdmin, http.MethodPost, "/v1/plans", `{"key":"other",`+body+"}")
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
	}
	for _, key := range []string{`""`, `"a b"`, `"a/b"`, `"` + strings.Repeat("a", 65) + `"`, `"-a"`, `"ä"`} {
		a := s.do(t, roleAdmin, http.MethodPost, "/v1/plans", `{"key":`+key+`}`)
		require.Equal(t, []string{"/key"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), key)
	}
	a := s.do(t, roleAdmin, http.MethodPatch, "/v1/plans/pro", `{"key":"new"}`)
	require.Equal(t, []string{"/key"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"))
}

// TestALifetimePlanSellsNoEnd: a subscription of it that names no end has none, and one that names an end keeps it.
func TestALifetimePlanSellsNoEnd(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	made := s.must(t, http.StatusCreated, http.MethodPost, "/v1/plans", `{"key":"forever","lifetime":true}`)
	require.Equal(t, true, made["lifetime"])
	require.Nil(t, made["duration"])
	sold := s.must(t, http.StatusCreated, http.MethodPost, "/v1/subscriptions", `{"user_id":"u_1","plan":"forever"}`)
	require.Nil(t, sold["expires_at"])
	require.Nil(t, sold["access_until"])
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscriptions WHERE expires_at = 'infinity' AND access_until = 'infinity'`))
	a := s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1", "")
	require.Equal(t, true, a.field(t, "allowed"))
	require.Nil(t, a.field(t, "next_change_at"))
	named := s.must(t, http.StatusCreated, http.MethodPost, "/v1/subscriptions", `{"user_id":"u_2","plan":"forever","duration":"1h"}`)
	require.NotNil(t, named["expires_at"])

	refused := s.do(t, roleAdmin, http.MethodPatch, "/v1/plans/forever", `{"duration":"720h"}`)
	require.Equal(t, []string{"/lifetime"}, refused.requireProblem(t, http.StatusBadRequest, "invalid_request"))
	changed := s.must(t, http.StatusOK, http.MethodPatch, "/v1/plans/forever", `{"duration":"720h","lifetime":null}`)
	require.Equal(t, []any{false, "720h"}, []any{changed["lifetime"], changed["duration"]})
	again := s.must(t, http.StatusOK, http.MethodPatch, "/v1/plans/forever", `{"duration":null,"lifetime":true}`)
	require.Equal(t, []any{true, nil}, []any{again["lifetime"], again["duration"]})
}

// TestAPriceBelongsToOnePlan races many plans for one price: exactly one gets it.
func TestAPriceBelongsToOnePlan(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.must(t, http.StatusCreated, http.MethodPost, "/v1/plans", `{"key":"first"}`)
	var won, refused atomic.Int32
	var wait sync.WaitGroup
	for i := range 12 {
		wait.Go(func() {
			a := s.do(t, roleAdmin, http.MethodPost, "/v1/plans", fmt.Sprintf(`{"key":"p%d","stripe_price_ids":["price_%d","price_hot"]}`, i, i))
			switch a.status {
			case http.StatusCreated:
				won.Add(1)
			case http.StatusConflict:
				refused.Add(1)
			default:
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	wait.Wait()
	require.Equal(t, []int32{1, 11}, []int32{won.Load(), refused.Load()})
	s.do(t, roleAdmin, http.MethodPatch, "/v1/plans/first", `{"stripe_price_ids":["price_hot"]}`).requireProblem(t, http.StatusConflict, "price_taken")
	require.Empty(t, s.must(t, http.StatusOK, http.MethodGet, "/v1/plans/first", "")["stripe_price_ids"])
}

func TestShortDurations(t *testing.T) {
	t.Parallel()
	for text, d := range map[string]time.Duration{
		"720h": 720 * time.Hour, "1h30m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second, "10m": 10 * time.Minute, "30s": 30 * time.Second, "0s": 0,
		"1.5s": 1500 * time.Millisecond, "100h": 100 * time.Hour, "20m10s": 20*time.Minute + 10*time.Second,
	} {
		require.Equal(t, text, shortDuration(d))
		back, err := time.ParseDuration(text)
		require.NoError(t, err)
		require.Equal(t, d, back)
	}
}
