package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// An end is written with nanoseconds, and asked about with nanoseconds. Both are cut to the microsecond, so that what the
// caller reads is what decides.
func TestNanosecondsAreCutBeforeAnythingIsDecided(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(t, `INSERT INTO plans (key) VALUES ('pro')`)
	_, made := s.subscribe(t, `{"user_id":"u_1","plan":"pro","expires_at":"2100-01-01T00:00:00.123456999Z"}`)
	require.Equal(t, "2100-01-01T00:00:00.123456Z", made["access_until"])
	for at, allowed := range map[string]bool{
		"2100-01-01T00:00:00.123455Z":    true,
		"2100-01-01T00:00:00.123455999Z": true,
		"2100-01-01T00:00:00.123456Z":    false,
		"2100-01-01T00:00:00.123456001Z": false,
		"2100-01-01T00:00:00.123456998Z": false,
	} {
		answer := s.do(t, roleAccess, http.MethodGet, "/v1/access?user_id=u_1&at="+at, "")
		require.Equal(t, allowed, answer.field(t, "allowed"), "%s: %s", at, answer.body)
	}
}
