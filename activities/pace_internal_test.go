package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
)

func TestRunWaitsUntilShortlyBeforeItsNextTick(t *testing.T) {
	t.Parallel()
	tick := time.Date(2026, 11, 30, 12, 0, 6, 0, time.UTC)
	for name, c := range map[string]struct {
		every, began, budget time.Duration
		linger               time.Duration // after the tick that the run belongs to
	}{
		"ten seconds":          {10 * time.Second, 100 * time.Millisecond, 2 * time.Minute, 9950 * time.Millisecond},
		"one minute":           {time.Minute, 100 * time.Millisecond, 2 * time.Minute, 59950 * time.Millisecond},
		"one second":           {time.Second, 100 * time.Millisecond, 2 * time.Minute, 950 * time.Millisecond},
		"begun a tick late":    {10 * time.Second, 11 * time.Second, 2 * time.Minute, 19950 * time.Millisecond},
		"begun at the tick":    {10 * time.Second, 0, 2 * time.Minute, 9950 * time.Millisecond},
		"the budget is sooner": {10 * time.Minute, time.Second, time.Minute, 61 * time.Second},
	} {
		in := Run{Scan: Scan{Every: Duration(c.every), Offset: Duration(time.Duration(tick.Unix()%int64(c.every/time.Second)) * time.Second)}, ScheduledAt: tick}
		require.Equal(t, c.linger, c.began+waiting(in, tick.Add(c.began), c.budget, leaveEarly), name)
	}
}

// A start by hand that is kept behind a run has room before the tick: the server keeps only one.
func TestRunMakesRoomForAKeptStart(t *testing.T) {
	t.Parallel()
	known, kept := make(chan struct{}), make(chan struct{})
	close(known)
	p := &pace{
		begun: time.Now().Add(-45 * time.Minute), withRoom: 30 * time.Minute, linger: time.Hour, beatAfter: 2 * time.Hour,
		watch: &watch{known: known, kept: kept, trigger: store.TriggerScheduled},
	}
	require.True(t, p.wait(t.Context(), time.Millisecond))
	close(kept)
	require.False(t, p.wait(t.Context(), time.Millisecond))
}
