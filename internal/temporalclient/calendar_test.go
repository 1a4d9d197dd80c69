package temporalclient_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/temporalclient"
)

func TestCalendarKnowsItsInstants(t *testing.T) {
	t.Parallel()
	daily := temporalclient.Calendar{Hour: 3, Zone: "Europe/Berlin"}
	require.Equal(t, 24*time.Hour, daily.Every())
	require.True(t, daily.Matches(time.Date(2026, 7, 1, 1, 0, 0, 0, time.UTC)), "summer time")
	require.True(t, daily.Matches(time.Date(2026, 12, 1, 2, 0, 0, 0, time.UTC)))
	require.False(t, daily.Matches(time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC)))
	require.False(t, daily.Matches(time.Date(2026, 12, 1, 2, 0, 0, 1, time.UTC)), "by hand")

	weekly := temporalclient.Calendar{Hour: 5, Minute: 30, Weekday: "sunday"}
	require.Equal(t, 7*24*time.Hour, weekly.Every())
	require.True(t, weekly.Matches(time.Date(2026, 12, 6, 5, 30, 0, 0, time.UTC)))
	require.False(t, weekly.Matches(time.Date(2026, 12, 7, 5, 30, 0, 0, time.UTC)))
	spec, err := weekly.Spec()
	require.NoError(t, err)
	require.Equal(t, int32(0), spec.StructuredCalendar[0].DayOfWeek[0].Start)
	_, err = temporalclient.Calendar{Weekday: "someday"}.Spec()
	require.ErrorContains(t, err, "someday")
}
