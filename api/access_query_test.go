package api

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAQueryReadsAsTheLibraryReadsIt: the reader of the busiest path understands what url.ParseQuery does.
func TestAQueryReadsAsTheLibraryReadsIt(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{
		"user_id", "feature", "plan", "at", "other", "=", "=", "&", "&", ";", "%20", "%zz", "%", "+", "u_1", "a b", "%26", "%3D", "user%5Fid", "\x00", "é", "",
	})
	rapid.Check(t, func(t *rapid.T) {
		var raw string
		for _, p := range rapid.SliceOfN(part, 0, 12).Draw(t, "parts") {
			raw += p
		}
		want, _ := url.ParseQuery(raw)
		var got accessQuery
		got.read(raw)
		require.Equal(t, accessQuery{want.Get("user_id"), want.Get("feature"), want.Get("plan"), want.Get("at")}, got, "%q", raw)
	})
}
