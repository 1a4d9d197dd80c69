package temporalclient

import (
	"fmt"
	"strings"
	"time"

	schedulepb "go.temporal.io/api/schedule/v1"
)

// Calendar is a time of day, of every day or of one day of the week. A day on which the clocks are set has its time of day
// once as well.
type Calendar struct {
	Hour    int    `json:"hour"`
	Minute  int    `json:"minute"`
	Weekday string `json:"weekday,omitempty"` // like "sunday"; "" is every day
	Zone    string `json:"zone,omitempty"`    // "" is UTC
}

// Every is how often it comes, in days of 24 hours.
func (c Calendar) Every() time.Duration {
	if c.Weekday != "" {
		return 7 * 24 * time.Hour
	}
	return 24 * time.Hour
}

// Matches reports whether at is one of its instants, to the second.
func (c Calendar) Matches(at time.Time) bool {
	zone, err := time.LoadLocation(c.Zone)
	if err != nil {
		return false
	}
	local := at.In(zone)
	return local.Nanosecond() == 0 && local.Hour() == c.Hour && local.Minute() == c.Minute && local.Second() == 0 &&
		(c.Weekday == "" || strings.EqualFold(local.Weekday().String(), c.Weekday))
}

// Spec is what the server is told. A day of the week that does not exist is an error.
func (c Calendar) Spec() (*schedulepb.ScheduleSpec, error) {
	only := func(n int) []*schedulepb.Range { return []*schedulepb.Range{{Start: int32(n)}} } //nolint:gosec // G115: hours, minutes and days are small
	all := func(from, to int32) []*schedulepb.Range { return []*schedulepb.Range{{Start: from, End: to}} }
	days := all(0, 6)
	if c.Weekday != "" {
		day := time.Sunday
		for ; day <= time.Saturday && !strings.EqualFold(day.String(), c.Weekday); day++ {
		}
		if day > time.Saturday {
			return nil, fmt.Errorf("%q is no day of the week", c.Weekday)
		}
		days = only(int(day))
	}
	return &schedulepb.ScheduleSpec{
		StructuredCalendar: []*schedulepb.StructuredCalendarSpec{{
			Second: only(0), Minute: only(c.Minute), Hour: only(c.Hour), DayOfMonth: all(1, 31), Month: all(1, 12), DayOfWeek: days,
		}},
		TimezoneName: c.Zone,
	}, nil
}

// cadence is how often a schedule of a calendar comes: weekly where it names one day of the week, else daily.
func cadence(spec *schedulepb.ScheduleSpec) time.Duration {
	calendars := spec.GetStructuredCalendar()
	if len(calendars) == 0 {
		return 0
	}
	if days := calendars[0].GetDayOfWeek(); len(days) == 1 && days[0].GetEnd() <= days[0].GetStart() {
		return Calendar{Weekday: "any"}.Every()
	}
	return Calendar{}.Every()
}
