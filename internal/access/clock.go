package access

import "time"

// clock tells the database's time by this process's monotonic clock. It never runs behind the database's, so no access is
// given past its end; it runs ahead by the time that a reading took to get there, and by its slack. A step of this
// process's own wall clock changes nothing.
type clock struct {
	asked time.Time // before the database was asked; monotonic
	read  time.Time // what its clock showed then or later
}

// slack makes up for clocks that do not run alike: NTP slews a clock by 500 ppm at most, here or there.
const slack = 1000

// at is the database's instant at now, or a little later. Like the database's own it has microseconds.
func (k clock) at(now time.Time) time.Time {
	passed := now.Sub(k.asked)
	return k.read.Add(passed + passed/slack + time.Microsecond - 1).Truncate(time.Microsecond)
}

// better is the one of two readings that is less ahead; answered is when the newer one was there. A reading that lies
// before what the database's clock has shown since is no bound any more: that clock was set.
func (k clock) better(newer clock, answered time.Time) clock {
	ours := k.at(answered)
	if newer.at(answered).Before(ours) || ours.Before(newer.read) {
		return newer
	}
	return k
}
