package subscription

import (
	"time"
	_ "time/tzdata" // the zones of the users, on machines that have none
)

// The entries of the history that a reminder leaves.
const (
	EventReminded7d EventType = "reminded_7d"
	EventReminded3d EventType = "reminded_3d"
	EventReminded1d EventType = "reminded_1d"
)

// Bucket is how many calendar days before the end of access a reminder is due.
type Bucket struct {
	Days  int
	Event EventType
	Kind  string // of the fact access.ending_soon
}

// Buckets are those of the reminders, the nearest to the end first.
func Buckets() []Bucket {
	return []Bucket{{1, EventReminded1d, "1d"}, {3, EventReminded3d, "3d"}, {7, EventReminded7d, "7d"}}
}

// Ending is a subscription whose end is near, as far as reminders need to know it.
type Ending struct {
	End      time.Time
	Since    time.Time // when this end was set: the term before it had another one
	TimeZone string    // the user's, IANA; UTC when it is empty or unknown
	Told     []EventType
}

// DueReminder is the reminder that is due at the instant at: the nearest bucket that is reached, where it lies after the
// end was set and was not told yet. passed are earlier buckets of the same end that nobody was told and that are of no
// use any more.
func (e Ending) DueReminder(at time.Time) (due Bucket, passed []Bucket, found bool) {
	if !at.Before(e.End) {
		return Bucket{}, nil, false
	}
	for _, b := range Buckets() {
		reached := e.ReachedAt(b)
		if at.Before(reached) {
			continue
		}
		if !reached.After(e.Since) {
			break // the farther ones lie before it as well
		}
		switch {
		case e.told(b):
			if !found {
				return Bucket{}, nil, false
			}
		case !found:
			due, found = b, true
		default:
			passed = append(passed, b)
		}
	}
	return due, passed, found
}

// NextLook is when the next bucket begins after the instant at; Forever when there is none.
func (e Ending) NextLook(at time.Time) time.Time {
	next := Forever
	for _, b := range Buckets() {
		if reached := e.ReachedAt(b); reached.After(at) {
			next = reached // the farther ones come first
		}
	}
	return next
}

// ReachedAt is when the bucket begins: at the time of day of the end, by the user's clock, so many calendar days before.
// A day on which the clock is moved has 23, 25 or any other number of hours. A time of day that is left out or comes
// twice then is read as package time reads it, which is off by the move at most.
func (e Ending) ReachedAt(b Bucket) time.Time {
	local := e.End.In(Zone(e.TimeZone))
	return local.AddDate(0, 0, -b.Days).UTC()
}

func (e Ending) told(b Bucket) bool {
	for _, event := range e.Told {
		if event == b.Event {
			return true
		}
	}
	return false
}

// Zone is the time zone of that name, UTC when the name is empty or unknown.
func Zone(name string) *time.Location {
	if name == "Local" { // what the machine is set to says nothing about the user
		return time.UTC
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return time.UTC
	}
	return zone
}

// DaysLeft counts the calendar days from at to end by the clock of the zone: 0 is today, 1 tomorrow.
func DaysLeft(at, end time.Time, zone *time.Location) int {
	day := func(t time.Time) time.Time {
		year, month, day := t.In(zone).Date()
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	}
	return int(day(end).Sub(day(at)) / (24 * time.Hour))
}
