package temporalclient

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every trigger takes a second of its own that no tick has, whatever the cadence and however many come at once.
func TestTriggersTakeSecondsOfTheirOwn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := NewSchedules(Client{}, nil)
		every := time.Duration(rapid.IntRange(2, 3600).Draw(t, "every")) * time.Second
		offset := time.Duration(rapid.IntRange(0, 3600).Draw(t, "offset")) * time.Second % every
		now := time.Unix(rapid.Int64Range(1_700_000_000, 2_000_000_000).Draw(t, "now"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		taken := map[int64]bool{}
		for range rapid.IntRange(1, 20).Draw(t, "triggers") {
			now = now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "pause")) * time.Millisecond)
			at := s.instantOfTrigger("job", now, every, offset)
			second := at.Truncate(time.Second)
			if taken[second.Unix()] || Aligned(second, every, offset) || at.Nanosecond() == 0 {
				t.Fatalf("%s, every %s offset %s", at, every, offset)
			}
			taken[second.Unix()] = true
			if second.Before(now.Truncate(time.Second)) {
				t.Fatalf("%s lies before %s", second, now)
			}
		}
	})
}

func TestAligned(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 12, 0, 6, 0, time.UTC)
	require.True(t, Aligned(at, 10*time.Second, 6*time.Second))
	require.False(t, Aligned(at, 10*time.Second, 5*time.Second))
	require.True(t, Aligned(at, time.Second, 0))
	require.False(t, Aligned(at.Add(time.Millisecond), time.Second, 0), "the server's instants have whole seconds")
	require.False(t, Aligned(at, 0, 0))
}
