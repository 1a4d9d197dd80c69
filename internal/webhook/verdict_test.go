package webhook

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVerdicts(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	type want struct {
		dead, refused bool
		disable       string
		pause, rest   time.Duration // at least; a quarter more at most
	}
	for name, c := range map[string]struct {
		a Attempt
		want
	}{
		"the first 500 of one that works":    {Attempt{Status: 500, Attempts: 1}, want{refused: true, pause: 5 * time.Second, rest: time.Second}},
		"a 500 of one that is down":          {Attempt{Status: 500, Attempts: 2, Failures: 1}, want{pause: 10 * time.Second, rest: 2 * time.Second}},
		"no answer":                          {Attempt{Attempts: 1}, want{pause: 5 * time.Second, rest: time.Second}},
		"no answer for long":                 {Attempt{Attempts: 40, Failures: 40, Failing: 4 * day}, want{pause: 5 * time.Minute, rest: 5 * time.Minute}},
		"408":                                {Attempt{Status: 408, Attempts: 1}, want{pause: 5 * time.Second, rest: time.Second}},
		"429 that asks for a minute":         {Attempt{Status: 429, Attempts: 1, RetryAfter: time.Minute}, want{pause: time.Minute, rest: time.Minute}},
		"503 that asks for a day":            {Attempt{Status: 503, Attempts: 1, RetryAfter: day}, want{pause: time.Hour, rest: time.Hour}},
		"404":                                {Attempt{Status: 404, Attempts: 1}, want{refused: true, pause: 5 * time.Second}},
		"404 again":                          {Attempt{Status: 404, Attempts: 30, Refusals: 3}, want{refused: true, pause: 40 * time.Second}},
		"404 for the last time":              {Attempt{Status: 404, Attempts: 15, Refusals: 14}, want{refused: true, dead: true}},
		"a redirect":                         {Attempt{Status: 307, Attempts: 1}, want{refused: true, pause: 5 * time.Second}},
		"500 of this one only, at last":      {Attempt{Status: 500, Attempts: 15, Refusals: 14}, want{refused: true, dead: true, rest: time.Second}},
		"410":                                {Attempt{Status: 410, Attempts: 1}, want{refused: true, dead: true, disable: ReasonGone}},
		"nothing but failures for five days": {Attempt{Attempts: 900, Failures: 900, Failing: 5 * day}, want{dead: true, disable: ReasonFailing, rest: 5 * time.Minute}},
		"nothing but 404 for five days":      {Attempt{Status: 404, Attempts: 1, Failing: 5 * day}, want{refused: true, dead: true, disable: ReasonFailing}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := Judge(c.a, "why")
			require.Equal(t, c.dead, v.Dead)
			require.Equal(t, c.refused, v.Refused)
			require.Equal(t, c.disable, v.Disable)
			require.NotEmpty(t, v.Error)
			if !c.dead {
				require.GreaterOrEqual(t, v.Pause, c.pause)
				require.LessOrEqual(t, v.Pause, c.pause*5/4)
			}
			require.GreaterOrEqual(t, v.EndpointPause, c.rest)
			require.LessOrEqual(t, v.EndpointPause, c.rest*5/4)
		})
	}
}

// An endpoint that works gets about a day to take what it refuses.
func TestRefusalsSpanADay(t *testing.T) {
	t.Parallel()
	var span time.Duration
	last := time.Duration(0)
	for n := 0; ; n++ {
		v := Judge(Attempt{Status: 400, Attempts: n + 1, Refusals: n}, "")
		if v.Dead {
			require.Equal(t, maxRefusals, n+1)
			break
		}
		require.Greater(t, v.Pause, last*4/5, "pauses grow")
		span, last = span+v.Pause, v.Pause
	}
	require.Greater(t, span, 22*time.Hour)
	require.Less(t, span, 30*time.Hour)
}
