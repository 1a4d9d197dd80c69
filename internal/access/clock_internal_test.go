package access

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestTheClockIsNeverBehind lets the database's clock run a little faster or slower than ours, be read with random delays,
// and be set: what the clock says is never before what the database's clock shows, once a reading has come after a setting.
func TestTheClockIsNeverBehind(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		ours := time.Now()
		theirs := time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
		drift := rapid.IntRange(-500, 500).Draw(r, "ppm")
		pass := func(name string) {
			d := time.Duration(rapid.IntRange(1, 80_000).Draw(r, name)) * time.Microsecond
			ours, theirs = ours.Add(d), theirs.Add(d+d*time.Duration(drift)/1_000_000)
		}
		read := func() (clock, time.Duration) {
			k := clock{asked: ours}
			pass("there")
			k.read = theirs.Truncate(time.Microsecond)
			pass("back")
			return k, ours.Sub(k.asked)
		}
		k, late := read()
		for range rapid.IntRange(1, 50).Draw(r, "polls") {
			set := rapid.IntRange(0, 9).Draw(r, "set") == 0
			if set {
				theirs = theirs.Add(time.Duration(rapid.IntRange(-5000, 5000).Draw(r, "step")) * time.Millisecond)
			}
			newer, took := read()
			k, late = k.better(newer, ours), max(late, took)
			shown := theirs.Truncate(time.Microsecond)
			said := k.at(ours)
			if set && said.Before(shown) {
				// It was set forward while the older reading still was a bound: by no more than the newer one took to come back.
				require.Less(t, shown.Sub(said), took+time.Millisecond)
				k = newer
				continue
			}
			require.False(t, said.Before(shown), "%s before %s", said, shown)
			pass("pause")
			require.False(t, k.at(ours).Before(theirs.Truncate(time.Microsecond)))
		}
	})
}

// TestTheClockKeepsTheBetterReading: a slow answer does not make it run further ahead.
func TestTheClockKeepsTheBetterReading(t *testing.T) {
	t.Parallel()
	start := time.Now()
	database := func(passed time.Duration) time.Time {
		return time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC).Add(passed)
	}
	quick := clock{asked: start, read: database(time.Millisecond)}
	slow := clock{asked: start.Add(time.Second), read: database(1300 * time.Millisecond)}
	now := start.Add(1500 * time.Millisecond)
	k := quick.better(slow, now)
	require.Equal(t, quick, k)
	require.Less(t, k.at(now).Sub(database(1500*time.Millisecond)), 5*time.Millisecond)

	back := clock{asked: now, read: database(-time.Hour)}
	require.Equal(t, back, k.better(back, now), "the database's clock was set back")
	forward := clock{asked: now, read: database(time.Hour)}
	require.Equal(t, forward, k.better(forward, now), "and forward")
}
