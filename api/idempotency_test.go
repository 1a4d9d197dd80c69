package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"termkeeper/internal/store"
)

// keyed sends a write with an Idempotency-Key, once.
func (s *system) keyed(t *testing.T, as role, key, method, path, body string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+s.keys[as])
	r.Header.Set(headerKey, key)
	return s.send(r)
}

// beside is another process on the same database.
func (s *system) beside(t *testing.T) *system {
	t.Helper()
	other := newSystemOn(t, s.pool, s.pool)
	other.keys = s.keys
	return other
}

func TestARepeatedWriteHasOneEffect(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, duration) VALUES ('pro', '1 day')`)
	made := s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions", `{"user_id":"u_0","plan":"pro"}`)
	one := "/v1/subscriptions/" + made.field(t, "id").(string)
	for i, w := range []struct{ method, path, body, effect string }{
		{http.MethodPost, "/v1/subscriptions", `{"user_id":"u_1","plan":"pro"}`, `SELECT count(*) FROM subscriptions WHERE user_id = 'u_1'`},
		{http.MethodPost, one + "/extend", `{"duration":"24h"}`, `SELECT count(*) FROM subscription_events WHERE event_type = 'extended'`},
		{http.MethodPost, one + "/pause", `{"reason":"asked"}`, `SELECT count(*) FROM subscription_events WHERE event_type = 'paused'`},
		{http.MethodPut, "/v1/users/u_1", `{"name":"Ada <&>"}`, `SELECT count(*) FROM users`},
		{http.MethodPut, "/v1/users/u_1/stripe-customer", `{"customer_id":"cus_1"}`, `SELECT count(*) FROM stripe_customers`},
		{http.MethodPost, "/v1/plans", `{"key":"new","features":["a"]}`, `SELECT count(*) FROM plans WHERE key = 'new'`},
		{http.MethodPatch, "/v1/plans/new", `{"features":["b"]}`, `SELECT count(*) FROM plans WHERE features = '{b}'`},
	} {
		key := fmt.Sprintf("key %d", i)
		first := s.keyed(t, roleAdmin, key, w.method, w.path, w.body)
		require.Less(t, first.status, 300, "%s %s: %s", w.method, w.path, first.body)
		require.Empty(t, first.header.Get(headerReplayed))
		require.Equal(t, 1, s.count(t, `SELECT count(*) FROM idempotency_keys WHERE response_status IS NOT NULL AND key = '`+key+`'`))
		again := s.beside(t).keyed(t, roleAdmin, key, w.method, w.path, w.body)
		require.Equal(t, "true", again.header.Get(headerReplayed), w.path)
		require.Equal(t, first.status, again.status)
		require.Equal(t, string(first.body), string(again.body), "byte for byte")
		require.Equal(t, first.header.Get("Content-Type"), again.header.Get("Content-Type"))
		require.Equal(t, 1, s.count(t, w.effect), w.path)
		s.keyed(t, roleAdmin, key, w.method, w.path, w.body+" ").requireProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	}
	require.Less(t, s.keyed(t, roleOperator, "key 0", http.MethodPost, "/v1/subscriptions", `{"user_id":"u_1","plan":"pro"}`).status, 300)
	require.Equal(t, 2, s.count(t, `SELECT count(*) FROM subscriptions WHERE user_id = 'u_1'`), "the key of another API key is another one")
	s.keyed(t, roleAdmin, "key 0", http.MethodPost, one+"/resume", "")
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscription_events WHERE event_type = 'resumed'`), "that of another path too")
}

func TestWhatIsReplayedAndWhatNot(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	status := 0
	calls := 0
	once := idempotency{s.store, zap.NewNop()}.once(time.Second)
	s.server.echo.POST("/probe", func(c echo.Context) error {
		calls++
		switch {
		case status == -1:
			panic("canary")
		case status < 400:
			return c.JSON(status, map[string]int{"call": calls})
		}
		return problem(status, "probe", "A probe.")
	}, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			calledBy(c, &identity{id: goldenID})
			return next(c)
		}
	}, once)
	for status = range map[int]bool{200: true, 201: true, 400: true, 404: true, 422: true, 409: false, 429: false, 500: false, 503: false, -1: false} {
		replays := status != -1 && status < 500 && status != 409 && status != 429
		calls = 0
		key := fmt.Sprintf("status%d", status)
		first := s.keyed(t, roleAdmin, key, http.MethodPost, "/probe", "")
		again := s.keyed(t, roleAdmin, key, http.MethodPost, "/probe", "")
		require.Equal(t, first.status, again.status)
		if replays {
			require.Equal(t, 1, calls, status)
			require.Equal(t, "true", again.header.Get(headerReplayed))
			require.Equal(t, string(first.body), string(again.body))
		} else {
			require.Equal(t, 2, calls, status)
			require.Empty(t, again.header.Get(headerReplayed))
		}
	}
	require.Equal(t, 5, s.count(t, `SELECT count(*) FROM idempotency_keys WHERE response_status IS NOT NULL`))
	require.Equal(t, 3, s.count(t, `SELECT count(*) FROM idempotency_keys WHERE response_status IS NULL AND leased_until <= clock_timestamp()`),
		"after a 5xx and a panic the effect is not known: the key waits for the same request; after a 409 and a 429 there was none")
	for _, bad := range []string{"", " ", strings.Repeat("k", 256), "a\tb", "schlüssel", "a\x7f"} {
		a := s.keyed(t, roleAdmin, bad, http.MethodPut, "/v1/users/u_1", "{}")
		require.Equal(t, []string{"/" + headerKey}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), "%q", bad)
	}
	require.Equal(t, http.StatusCreated, s.keyed(t, roleAdmin, strings.Repeat("k", 255), http.MethodPut, "/v1/users/u_1", "{}").status)
	two := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/v1/users/u_1", nil)
	two.Header = http.Header{"Authorization": {"Bearer " + s.keys[roleAdmin]}, headerKey: {"a", "b"}}
	s.send(two).requireProblem(t, http.StatusBadRequest, "invalid_request")
}

// TestOneKeyAtOnceIsOneEffect sends 64 copies through two processes at the same time.
func TestOneKeyAtOnceIsOneEffect(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, duration) VALUES ('pro', '1 day')`)
	both := []*system{s, s.beside(t)}
	var wait sync.WaitGroup
	answers := make([]answer, 64)
	for i := range answers {
		wait.Go(func() {
			for {
				a := both[i%2].keyed(t, roleOperator, "one", http.MethodPost, "/v1/subscriptions", `{"user_id":"u_1","plan":"pro"}`)
				if answers[i] = a; a.status != http.StatusServiceUnavailable {
					return
				}
			}
		})
	}
	wait.Wait()
	fresh := 0
	for _, a := range answers {
		switch a.status {
		case http.StatusConflict:
			a.requireProblem(t, http.StatusConflict, "idempotency_in_progress")
			require.Equal(t, "1", a.header.Get("Retry-After"))
		default:
			require.Equal(t, http.StatusCreated, a.status, string(a.body))
			if a.header.Get(headerReplayed) == "" {
				fresh++
			}
		}
	}
	require.Equal(t, 1, fresh)
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscriptions`))
	require.Equal(t, "true", s.keyed(t, roleOperator, "one", http.MethodPost, "/v1/subscriptions", `{"user_id":"u_1","plan":"pro"}`).header.Get(headerReplayed))
}

// TestADeadRequestFreesItsKey plays what a killed process leaves: a claim without an effect, and an effect with its answer.
func TestADeadRequestFreesItsKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, duration) VALUES ('pro', '1 day')`)
	const path, body = "/v1/subscriptions", `{"user_id":"u_1","plan":"pro"}`
	var id string
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT id FROM api_keys WHERE role = 'operator'`).Scan(&id))
	dead, kept, err := s.store.ClaimKey(t.Context(), store.KeyedRequest{APIKeyID: id, Method: http.MethodPost, Path: path, Key: "k", Body: []byte(body)}, time.Minute)
	require.NoError(t, err)
	require.Nil(t, kept)
	s.keyed(t, roleOperator, "k", http.MethodPost, path, body).requireProblem(t, http.StatusConflict, "idempotency_in_progress")
	s.exec(t, `UPDATE idempotency_keys SET leased_until = now()`)
	s.keyed(t, roleOperator, "k", http.MethodPost, path, body+" ").requireProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	first := s.keyed(t, roleOperator, "k", http.MethodPost, path, body)
	require.Equal(t, http.StatusCreated, first.status, string(first.body))
	require.Empty(t, first.header.Get(headerReplayed))

	// The dead one was only slow: it writes nothing any more.
	dead.Encode(func(any) (store.KeptAnswer, error) { return store.KeptAnswer{Status: 201, Body: []byte("{}")}, nil })
	_, err = s.store.PutUser(store.WithKeyClaim(t.Context(), dead), store.User{ID: "u_1"})
	require.ErrorIs(t, err, store.ErrConflict)
	require.Zero(t, s.count(t, `SELECT count(*) FROM users`), "its effect is rolled back")
	require.ErrorIs(t, s.store.KeepAnswer(t.Context(), dead, store.KeptAnswer{Status: 200, Body: []byte("{}")}), store.ErrConflict)
	require.NoError(t, s.store.ReleaseKey(t.Context(), dead))
	again := s.keyed(t, roleOperator, "k", http.MethodPost, path, body)
	require.Equal(t, string(first.body), string(again.body))
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscriptions`))

	s.exec(t, `UPDATE idempotency_keys SET created_at = now() - interval '24 hours'`)
	later := s.keyed(t, roleOperator, "k", http.MethodPost, path, body)
	require.Equal(t, http.StatusCreated, later.status)
	require.Empty(t, later.header.Get(headerReplayed), "after a day the key is a new one, whether it was cleaned up or not")
	require.Equal(t, 2, s.count(t, `SELECT count(*) FROM subscriptions`))
}

// TestTheAnswerIsKeptWithTheEffect breaks the keeping of answers: then there is no effect either.
func TestTheAnswerIsKeptWithTheEffect(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key, duration) VALUES ('pro', '1 day')`)
	made := s.do(t, roleOperator, http.MethodPost, "/v1/subscriptions", `{"user_id":"u_0","plan":"pro"}`)
	s.exec(t, `CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'broken'; END $$`)
	s.exec(t, `CREATE TRIGGER broken BEFORE UPDATE OF response_status ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION broken()`)
	for path, body := range map[string]string{
		"POST /v1/subscriptions": `{"user_id":"u_1","plan":"pro"}`, "PUT /v1/users/u_1": `{}`, "PUT /v1/users/u_1/stripe-customer": `{"customer_id":"cus_1"}`,
		"POST /v1/plans": `{"key":"new"}`, "PATCH /v1/plans/pro": `{"name":"new"}`,
		"POST /v1/subscriptions/" + made.field(t, "id").(string) + "/pause": `{}`,
	} {
		method, path, _ := strings.Cut(path, " ")
		a := s.keyed(t, roleAdmin, "k", method, path, body)
		require.Equal(t, http.StatusInternalServerError, a.status, "%s: %s", path, a.body)
	}
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM subscriptions`))
	require.Zero(t, s.count(t, `SELECT (SELECT count(*) FROM users) + (SELECT count(*) FROM stripe_customers) + (SELECT count(*) FROM plans WHERE key = 'new' OR name = 'new')
		+ (SELECT count(*) FROM subscriptions WHERE held_at IS NOT NULL)
		+ (SELECT count(*) FROM idempotency_keys WHERE response_status IS NOT NULL OR leased_until > clock_timestamp())`))
}

func TestEveryWriteTakesAKey(t *testing.T) {
	t.Parallel()
	without := map[string]bool{"POST /v1/webhooks/stripe": true, "POST /v1/access/batch": true}
	for _, r := range routes(Parts{}) {
		require.Equal(t, r.method != http.MethodGet && !without[r.method+" "+r.path], r.takesKey(), "%s %s", r.method, r.path)
		require.LessOrEqual(t, r.deadline+leaseMargin, 2*time.Minute, "a dead request does not block its key for long")
	}
}
