package subscription_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/subscription"
)

func utc(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

// The instants were worked out by hand from the rules of the zones.
func TestBucketsAreCalendarDaysOfTheUser(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ zone, end, d7, d3, d1 string }{
		"no zone is UTC":                  {"", "2026-11-30T12:00:00Z", "2026-11-23T12:00:00Z", "2026-11-27T12:00:00Z", "2026-11-29T12:00:00Z"},
		"an unknown zone is UTC":          {"No/Where", "2026-11-30T12:00:00Z", "2026-11-23T12:00:00Z", "2026-11-27T12:00:00Z", "2026-11-29T12:00:00Z"},
		"the machine's zone is no user's": {"Local", "2026-11-30T12:00:00Z", "2026-11-23T12:00:00Z", "2026-11-27T12:00:00Z", "2026-11-29T12:00:00Z"},
		// Clocks go from 02:00+1 to 03:00+2 on 29 March 2026. The end is 12:00 on the 30th: 10:00Z. Its day before, the 29th, is
		// summer time by noon; the 27th and 23rd are not: noon is 11:00Z there.
		"Berlin, a day of 23 hours": {"Europe/Berlin", "2026-03-30T10:00:00Z", "2026-03-23T11:00:00Z", "2026-03-27T11:00:00Z", "2026-03-29T10:00:00Z"},
		// From 03:00+2 back to 02:00+1 on 25 October 2026. The end is 00:30 on the 26th: 23:30Z of the 25th. 00:30 on the 25th is
		// before the move: 22:30Z of the 24th, 25 hours earlier.
		"Berlin, a day of 25 hours": {"Europe/Berlin", "2026-10-25T23:30:00Z", "2026-10-18T22:30:00Z", "2026-10-22T22:30:00Z", "2026-10-24T22:30:00Z"},
		// 02:30 on 29 March does not exist; 01:30Z is 03:30 on the clock.
		"Berlin, a time of day that is left out": {"Europe/Berlin", "2026-03-30T00:30:00Z", "2026-03-23T01:30:00Z", "2026-03-27T01:30:00Z", "2026-03-29T01:30:00Z"},
		// 02:30 on 25 October exists twice, at 00:30Z and at 01:30Z.
		"Berlin, a time of day that comes twice": {"Europe/Berlin", "2026-10-26T01:30:00Z", "2026-10-19T00:30:00Z", "2026-10-23T00:30:00Z", "2026-10-25T01:30:00Z"},
		// From 02:00-5 to 03:00-4 on 8 March 2026. The end is 20:00 on the 8th: 00:00Z of the 9th. 20:00 on the 7th is 01:00Z of the 8th.
		"New York, spring": {"America/New_York", "2026-03-09T00:00:00Z", "2026-03-02T01:00:00Z", "2026-03-06T01:00:00Z", "2026-03-08T01:00:00Z"},
		// From 02:00-4 back to 01:00-5 on 1 November 2026. The end is 09:00 on the 2nd: 14:00Z. 09:00 on the 1st is 14:00Z, on 30 and 26 October 13:00Z.
		"New York, autumn": {"America/New_York", "2026-11-02T14:00:00Z", "2026-10-26T13:00:00Z", "2026-10-30T13:00:00Z", "2026-11-01T14:00:00Z"},
		// Half an hour: from 02:00+11 back to 01:30+10:30 on 5 April 2026. The end is 12:00 on the 6th: 01:30Z. Noon on the 5th is
		// 01:30Z as well, on the 3rd and 30 March it is 01:00Z.
		"Lord Howe, autumn": {"Australia/Lord_Howe", "2026-04-06T01:30:00Z", "2026-03-30T01:00:00Z", "2026-04-03T01:00:00Z", "2026-04-05T01:30:00Z"},
		// From 02:00+10:30 to 02:30+11 on 4 October 2026. The end is 01:00 on the 5th: 14:00Z of the 4th. 01:00 on the 4th is
		// before the move: 14:30Z of the 3rd.
		"Lord Howe, spring": {"Australia/Lord_Howe", "2026-10-04T14:00:00Z", "2026-09-27T14:30:00Z", "2026-10-01T14:30:00Z", "2026-10-03T14:30:00Z"},
		// The day begins at 01:00: from 00:00+2 to 01:00+3 on 29 March 2026. The end is 00:00 on the 30th: 21:00Z of the 29th. 00:00
		// on the 29th does not exist; by the offset before it is 22:00Z of the 28th, the first instant of that day.
		"Beirut, a day that begins at one": {"Asia/Beirut", "2026-03-29T21:00:00Z", "2026-03-22T22:00:00Z", "2026-03-26T22:00:00Z", "2026-03-28T22:00:00Z"},
		// Half-hour zone without moves. The end is 00:15 on 1 March: 18:45Z of 28 February; 28 days in February 2026.
		"Kolkata, over the end of a month": {"Asia/Kolkata", "2026-02-28T18:45:00Z", "2026-02-21T18:45:00Z", "2026-02-25T18:45:00Z", "2026-02-27T18:45:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := subscription.Ending{End: utc(c.end), TimeZone: c.zone}
			for i, want := range []string{c.d1, c.d3, c.d7} {
				b := subscription.Buckets()[i]
				require.Equal(t, want, e.ReachedAt(b).Format(time.RFC3339), b.Kind)
			}
		})
	}
}

func TestDueReminder(t *testing.T) {
	t.Parallel()
	const start, end = "2026-11-01T12:00:00Z", "2026-11-30T12:00:00Z"
	seven, three, one := subscription.EventReminded7d, subscription.EventReminded3d, subscription.EventReminded1d
	for name, c := range map[string]struct {
		since, at string
		told      []subscription.EventType
		due       string
		passed    []string
	}{
		"a moment too early":            {start, "2026-11-23T11:59:59Z", nil, "", nil},
		"seven days before":             {start, "2026-11-23T12:00:00Z", nil, "7d", nil},
		"told":                          {start, "2026-11-25T12:00:00Z", []subscription.EventType{seven}, "", nil},
		"three days before":             {start, "2026-11-27T12:00:00Z", []subscription.EventType{seven}, "3d", nil},
		"silence over the second":       {start, "2026-11-29T18:00:00Z", []subscription.EventType{seven}, "1d", []string{"3d"}},
		"silence over all":              {start, "2026-11-30T11:59:59Z", nil, "1d", []string{"3d", "7d"}},
		"the end is past":               {start, "2026-11-30T12:00:00Z", nil, "", nil},
		"the nearest is told":           {start, "2026-11-29T13:00:00Z", []subscription.EventType{one}, "", nil},
		"two days in all, at the start": {"2026-11-28T12:00:00Z", "2026-11-28T12:00:00Z", nil, "", nil},
		"two days in all, near the end": {"2026-11-28T12:00:00Z", "2026-11-29T12:00:00Z", nil, "1d", nil},
		"seven days in all":             {"2026-11-23T12:00:00Z", "2026-11-23T12:00:00Z", nil, "", nil},
		"moved when it was near":        {"2026-11-28T12:00:00Z", "2026-11-29T18:00:00Z", nil, "1d", nil},
		"a day in all":                  {"2026-11-29T12:00:00Z", "2026-11-29T18:00:00Z", nil, "", nil},
		"since ever":                    {"0001-01-01T00:00:00Z", "2026-11-29T18:00:00Z", []subscription.EventType{three}, "1d", []string{"7d"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := subscription.Ending{End: utc(end), Since: utc(c.since), Told: c.told}
			due, passed, found := e.DueReminder(utc(c.at))
			require.Equal(t, c.due != "", found)
			require.Equal(t, c.due, due.Kind)
			var kinds []string
			for _, b := range passed {
				kinds = append(kinds, b.Kind)
			}
			require.Equal(t, c.passed, kinds)
		})
	}
}

// Whatever the ticks, each bucket is told at most once and the days only get fewer.
func TestEachBucketIsDueAtMostOnce(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "No/Where"}
	rapid.Check(t, func(t *rapid.T) {
		end := utc("2026-01-01T00:00:00Z").Add(time.Duration(rapid.IntRange(0, 365*24*60).Draw(t, "end")) * time.Minute)
		e := subscription.Ending{
			End: end, Since: end.Add(-time.Duration(rapid.IntRange(0, 12*24*60).Draw(t, "term")) * time.Minute),
			TimeZone: rapid.SampledFrom(zones).Draw(t, "zone"),
		}
		days := 8
		for at := e.Since; at.Before(end.Add(time.Hour)); at = at.Add(time.Duration(rapid.IntRange(1, 2*24*60).Draw(t, "pause")) * time.Minute) {
			due, passed, found := e.DueReminder(at)
			if !found {
				continue
			}
			if due.Days >= days || !e.ReachedAt(due).After(e.Since) || at.Before(e.ReachedAt(due)) || !at.Before(end) {
				t.Fatalf("%s is due at %s", due.Kind, at)
			}
			for _, b := range passed {
				if b.Days <= due.Days || b.Days >= days {
					t.Fatalf("%s passed at %s", b.Kind, at)
				}
				e.Told = append(e.Told, b.Event)
			}
			days, e.Told = due.Days, append(e.Told, due.Event)
		}
	})
}

func TestDaysLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at, end, zone string
		want          int
	}{
		{"2026-11-29T12:00:00Z", "2026-11-30T12:00:00Z", "UTC", 1},
		{"2026-11-29T23:59:59Z", "2026-11-30T00:00:00Z", "UTC", 1},
		{"2026-11-30T00:00:00Z", "2026-11-30T23:00:00Z", "UTC", 0},
		{"2026-11-29T12:00:00Z", "2026-11-29T20:00:00Z", "Asia/Shanghai", 1}, // 20:00 and 04:00 of the next day
		{"2026-03-28T23:30:00Z", "2026-03-29T21:30:00Z", "Europe/Berlin", 0}, // the day of 23 hours
		{"2026-10-22T12:00:00Z", "2026-10-29T12:00:00Z", "Europe/Berlin", 7},
	} {
		require.Equal(t, c.want, subscription.DaysLeft(utc(c.at), utc(c.end), subscription.Zone(c.zone)), "%+v", c)
	}
}
