package webhook

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	// maxRefusals is how often an endpoint may refuse one delivery while it takes others. With the pauses between them they span
	// about a day.
	maxRefusals = 15
	// firstPause doubles with each attempt of a delivery.
	firstPause = 5 * time.Second
	// longestRefusal and longestOutage bound it: one that is refused waits for somebody to change something, one that meets
	// an endpoint that is down must go out soon after it is back.
	longestRefusal = 12 * time.Hour
	longestOutage  = 5 * time.Minute
	// firstEndpointPause doubles with each failure of an endpoint in a row, up to longestOutage.
	firstEndpointPause = time.Second
	// longestRetryAfter bounds what a receiver can ask for.
	longestRetryAfter = time.Hour
	// GiveUp is how long nothing but failures may come of an endpoint before it is disabled.
	GiveUp = 5 * 24 * time.Hour
)

// Why an endpoint is disabled.
const (
	ReasonOperator = "operator" // by a person
	ReasonGone     = "gone"     // it answered 410
	ReasonFailing  = "failing"  // nothing but failures for GiveUp
)

// Attempt is a failed attempt of a delivery, with what was known before it.
type Attempt struct {
	Status     int // of the answer; 0 when there was none
	RetryAfter time.Duration
	Attempts   int // of the delivery, with this one
	Refusals   int // of the delivery, without this one
	// Of the endpoint, without this attempt:
	Failures int           // in a row
	Failing  time.Duration // for how long nothing but failures came of it; 0 when it took something last
}

// Verdict is what a failed attempt means.
type Verdict struct {
	Dead          bool          // the delivery is given up
	Pause         time.Duration // before its next attempt, where it is not
	Refused       bool          // it counts against the delivery
	EndpointPause time.Duration // before anything is sent to the endpoint again; 0 for none
	Disable       string        // the endpoint is disabled, with this reason; "" when it is not
	Error         string        // what happened, for a person
}

// OK reports whether a status says that the call was taken.
func OK(status int) bool { return status >= 200 && status < 300 }

// Judge says what a failed attempt means. An endpoint that is down, hangs, is overloaded or asks for time is paused as a whole, and
// burns no attempts of its deliveries; where it took others right before, the fault counts against the delivery too, because
// it may be what makes the receiver fail. Any other answer counts against the delivery alone: 4xx, and redirects, which
// are not followed.
func Judge(a Attempt, why string) Verdict {
	v := Verdict{Error: why}
	if a.Status != 0 {
		v.Error = fmt.Sprintf("the endpoint answered %d", a.Status)
	}
	if a.Status == http.StatusGone {
		v.Dead, v.Refused, v.Disable = true, true, ReasonGone
		return v
	}
	if down(a.Status) {
		v.Refused = a.Failures == 0 && a.Status >= http.StatusInternalServerError && a.Status != http.StatusServiceUnavailable
		v.EndpointPause = max(jittered(doubled(firstEndpointPause, a.Failures, longestOutage)), min(a.RetryAfter, longestRetryAfter))
		v.Pause = max(jittered(doubled(firstPause, a.Attempts-1, longestOutage)), min(a.RetryAfter, longestRetryAfter))
	} else {
		v.Refused = true
	}
	if v.Refused {
		v.Pause = jittered(doubled(firstPause, a.Refusals, longestRefusal))
	}
	if a.Status >= 300 && a.Status < 400 {
		v.Error += ", and redirects are not followed"
	}
	if v.Refused && a.Refusals+1 >= maxRefusals {
		v.Dead = true
	}
	if a.Failing >= GiveUp {
		v.Dead, v.Disable = true, ReasonFailing
	}
	return v
}

// down reports whether an answer, or that there was none, speaks against the endpoint and not against the call.
func down(status int) bool {
	return status == 0 || status >= http.StatusInternalServerError || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout ||
		status == http.StatusTooEarly
}

func doubled(first time.Duration, times int, most time.Duration) time.Duration {
	const enough = 20 // doublings reach any limit here
	return min(first<<min(max(times, 0), enough), most)
}

// jittered adds up to a quarter, so that what failed together does not come back together.
func jittered(pause time.Duration) time.Duration {
	return pause + rand.N(pause/4) //nolint:gosec // G404: jitter needs no secrecy.
}
