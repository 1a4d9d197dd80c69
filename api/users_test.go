package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.do(t, roleOperator, http.MethodGet, "/v1/users/u_1", "").requireProblem(t, http.StatusNotFound, "not_found")
	made := s.must(t, http.StatusCreated, http.MethodPut, "/v1/users/u_1", `{"email":"ada@example.org","name":"Ada Lovelace","locale":"zh-CN","time_zone":"Europe/Berlin"}`)
	require.Equal(t, "u_1", made["id"])
	require.Equal(t, made, s.must(t, http.StatusOK, http.MethodGet, "/v1/users/u_1", ""))
	put := s.must(t, http.StatusOK, http.MethodPut, "/v1/users/u_1", `{"email":"ada@example.org","name":null}`)
	require.Equal(t, "ada@example.org", put["email"])
	require.Nil(t, put["name"])
	require.Nil(t, put["time_zone"], "PUT writes the whole user")
	require.Equal(t, made["created_at"], put["created_at"])

	odd := "/v1/users/a%2Fb%20%C3%A9"
	require.Equal(t, "a/b é", s.must(t, http.StatusCreated, http.MethodPut, odd, `{}`)["id"])
	require.Equal(t, "a/b é", s.must(t, http.StatusOK, http.MethodGet, odd, "")["id"])
}

func TestUsersRefuseWrongFields(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for body, pointer := range map[string]string{
		`{"email":"ada"}`: "/email", `{"email":""}`: "/email", `{"email":"Ada <ada@example.org>"}`: "/email", `{"email":"ada@example.org\nBcc: x@y"}`: "/email",
		`{"email":"` + strings.Repeat("a", 250) + `@example.org"}`: "/email", `{"email":"a@example.org, b@example.org"}`: "/email",
		`{"name":"Ada\nBcc: x"}`: "/name", `{"name":"Ada\r"}`: "/name", `{"name":"` + strings.Repeat("é", 201) + `"}`: "/name",
		`{"name":"a\u2029b"}`: "/name", `{"name":"a\u202eb"}`: "/name", `{"name":"\u2066a"}`: "/name", `{"name":"a\u0085b"}`: "/name",
		`{"locale":"English"}`: "/locale", `{"locale":"en_US"}`: "/locale", `{"locale":""}`: "/locale",
		`{"time_zone":"Mars/Base"}`: "/time_zone", `{"time_zone":"Local"}`: "/time_zone", `{"time_zone":""}`: "/time_zone", `{"time_zone":"../etc/passwd"}`: "/time_zone",
		`{"emial":"x"}`: "/emial", `{"id":"u_2"}`: "/id",
	} {
		a := s.do(t, roleOperator, http.MethodPut, "/v1/users/u_1", body)
		require.Equal(t, []string{pointer}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), body)
	}
	for _, id := range []string{"%0A", "%00", "%ff", strings.Repeat("u", 256), "%20"} {
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			a := s.do(t, roleOperator, method, "/v1/users/"+id, "")
			require.Equal(t, []string{"/id"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"), "%s %q", method, id)
		}
	}
	for _, good := range []string{`{"locale":"en"}`, `{"locale":"zh-Hant-TW"}`, `{"time_zone":"UTC"}`, `{"time_zone":"America/Argentina/Buenos_Aires"}`, `{"name":"李雷 🎉"}`} {
		require.Contains(t, []int{200, 201}, s.do(t, roleOperator, http.MethodPut, "/v1/users/u_1", good).status, good)
	}
}

func TestStripeCustomerOfAUser(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	require.Equal(t, map[string]any{"user_id": "u_1", "customer_id": "cus_1"},
		s.must(t, http.StatusOK, http.MethodPut, "/v1/users/u_1/stripe-customer", `{"customer_id":"cus_1"}`))
	s.must(t, http.StatusOK, http.MethodPut, "/v1/users/u_2/stripe-customer", `{"customer_id":"cus_1"}`)
	var user string
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT user_id FROM stripe_customers WHERE customer_id = 'cus_1'`).Scan(&user))
	require.Equal(t, "u_2", user, "the last word of a person counts")
	s.must(t, http.StatusOK, http.MethodPut, "/v1/users/u_2/stripe-customer", `{"customer_id":"cus_0"}`)
	require.Equal(t, []any{"cus_0", "cus_1"}, s.must(t, http.StatusCreated, http.MethodPut, "/v1/users/u_2", `{}`)["stripe_customer_ids"])
	require.Equal(t, []any{"cus_0", "cus_1"}, s.must(t, http.StatusOK, http.MethodGet, "/v1/users/u_2", "")["stripe_customer_ids"])
	require.Equal(t, []any{}, s.must(t, http.StatusCreated, http.MethodPut, "/v1/users/u_1", `{}`)["stripe_customer_ids"])
	a := s.do(t, roleOperator, http.MethodPut, "/v1/users/u_1/stripe-customer", `{}`)
	require.Equal(t, []string{"/customer_id"}, a.requireProblem(t, http.StatusBadRequest, "invalid_request"))
}
