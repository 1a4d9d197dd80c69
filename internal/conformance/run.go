// Package conformance proves that a running instance ends in one state whatever becomes of Stripe's events on their way
// to it. It plays lives of fresh subscriptions, sends their events in many orders, and asks for the access in the end.
package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	random "math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Settings say what is tried, and on what.
type Settings struct {
	URL    string // of the instance, without a slash at its end
	Secret string // that signs the events
	Key    string // an API key; "" sends none
	// Plans are the instance's own: one with refund_policy end and, where there is one, another with keep. Empty makes both.
	Plans    []Plan
	Lives    []string  // only these, by their names; empty is all
	Provider *Provider // what the instance asks; nil leaves out what needs an answer
	Seed     uint64    // of the orders
	Limit    int       // most permutations of one life
	Leeway   time.Duration
	Grace    time.Duration
	// Settling is within what an event has its effect. What comes late waits for it.
	Settling time.Duration
	// Patience is how long a state may take before it counts as another one.
	Patience time.Duration
	// Progress is told how many orders of how many have been tried. May be nil.
	Progress func(done, all int)
}

const (
	// senders is how many subscriptions are worked at the same time.
	senders = 16
	// waveSize is how many subscriptions are waited for together. Their events fit into the memory of an intake.
	waveSize = 512
	// askingWave is the same where the instance asks for most of them: their effect is to come in time all the same.
	askingWave = 48
	// mostOdd is the most orders of one life that are not permutations.
	mostOdd = 120
	// lookEvery is the pause between two looks at the same user.
	lookEvery = 100 * time.Millisecond
)

// try is one order of one life, with subscriptions of its own.
type try struct {
	life  string
	shape Shape
	order order
	cast  cast
	script

	refusal string // "" when every event was taken
	got     State
}

func (t *try) differs() bool { return t.refusal != "" || t.got != t.want }

// Run tries all orders and reports which differ. The error says that it could not be found out: ErrUnreachable,
// ErrRefused, ErrNoPlans or that of ctx.
func Run(ctx context.Context, s Settings) (Report, error) {
	i := newInstance(s.URL, s.Secret, s.Key, senders)
	defer i.close()
	if _, err := i.state(ctx, "conformance"); err != nil { // a wrong key or address shows before anything is sent
		return Report{}, err
	}
	if len(s.Plans) == 0 {
		plans, err := i.makePlans(ctx, s.Grace)
		if err != nil {
			return Report{}, err
		}
		s.Plans = plans
	}
	tries, leftOut := s.tries()
	if err := s.work(ctx, i, tries); err != nil {
		return Report{}, err
	}
	return s.report(tries, leftOut), nil
}

// tries makes all orders of all lives, those with something late at the end.
func (s Settings) tries() (tries []*try, leftOut []string) {
	now := time.Now().UTC().Truncate(time.Second)
	var late []*try
	if s.Provider == nil {
		leftOut = append(leftOut, "ties: which of the events of one second came last, only the provider can tell (--provider)")
	}
	for _, l := range lives() {
		if len(s.Lives) > 0 && !slices.Contains(s.Lives, l.name) {
			continue
		}
		if l.twoPlans && len(s.Plans) < 2 {
			leftOut = append(leftOut, l.name+": it needs a second --plan and --price")
			continue
		}
		for number, shape := range shapes {
			source := random.New(random.NewPCG(s.Seed, uint64(number))) //nolint:gosec // an order needs no secret, but is to come again
			like := s.cast(now, shape)
			for _, k := range kinds {
				if k == tied && s.Provider == nil {
					continue
				}
				limit := s.Limit
				if k != permuted {
					limit = min(limit, mostOdd)
				}
				for _, o := range orders(k, l.play(like).events, limit, source) {
					c := s.cast(now, shape)
					t := &try{life: l.name, shape: shape, order: o, cast: c, script: l.play(c)}
					if k == tied {
						t.tie()
					}
					if o.late > 0 {
						late = append(late, t)
					} else {
						tries = append(tries, t)
					}
				}
			}
		}
	}
	return append(tries, late...), leftOut
}

func (s Settings) cast(now time.Time, shape Shape) cast {
	c := cast{now: now, shape: shape, tag: rand.Text()[:20], one: s.Plans[0], leeway: s.Leeway, grace: s.Grace, answers: s.Provider != nil}
	if len(s.Plans) > 1 {
		c.two = s.Plans[1]
	}
	return c
}

// tie gives all events the second of the newest.
func (t *try) tie() {
	newest := t.events[len(t.events)-1].created
	for i := range t.events {
		t.events[i].created = newest
	}
}

// work sends and looks, wave by wave, and looks at all once more in the end: a state that was right may not have lasted.
func (s Settings) work(ctx context.Context, i *instance, tries []*try) error {
	size := waveSize
	if s.Provider != nil {
		size = askingWave
	}
	for from := 0; from < len(tries); from += size {
		wave := tries[from:min(from+size, len(tries))]
		if s.Provider != nil {
			for _, t := range wave {
				s.Provider.hold(t)
			}
		}
		if err := s.wave(ctx, i, wave); err != nil {
			return err
		}
		if s.Progress != nil {
			s.Progress(from+len(wave), len(tries))
		}
	}
	if err := sleep(ctx, s.Settling); err != nil {
		return err
	}
	until := time.Now().Add(s.Patience)
	return each(ctx, tries, func(ctx context.Context, t *try) error { return i.look(ctx, t, until) })
}

// each works the tries, some at the same time, and stops at the first error.
func each(ctx context.Context, tries []*try, do func(context.Context, *try) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(senders)
	for _, t := range tries {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, t) })
	}
	return group.Wait()
}

// wave sends the events of some tries, waits for the effect before what comes late, and looks at what came out.
func (s Settings) wave(ctx context.Context, i *instance, wave []*try) error {
	var late []*try
	for _, t := range wave {
		if t.order.late > 0 {
			late = append(late, t)
		}
	}
	err := each(ctx, wave, func(ctx context.Context, t *try) error {
		return i.play(ctx, t, t.order.sequence[:len(t.order.sequence)-t.order.late])
	})
	if err == nil && len(late) > 0 {
		if err = sleep(ctx, s.Settling); err != nil {
			return err
		}
		err = each(ctx, late, func(ctx context.Context, t *try) error {
			return i.play(ctx, t, t.order.sequence[len(t.order.sequence)-t.order.late:])
		})
	}
	if err != nil {
		return err
	}
	until := time.Now().Add(s.Patience)
	return each(ctx, wave, func(ctx context.Context, t *try) error { return i.look(ctx, t, until) })
}

// play sends some events of a try, one after another.
func (i *instance) play(ctx context.Context, t *try, sequence []int) error {
	for _, place := range sequence {
		refusal, err := i.deliver(ctx, t.events[place].body(t.shape))
		if err != nil {
			return err
		}
		if refusal != "" && t.refusal == "" {
			t.refusal = t.events[place].what + ": " + refusal
		}
	}
	return nil
}

// look asks for the access until it is as it must be, or until the instant.
func (i *instance) look(ctx context.Context, t *try, until time.Time) error {
	for {
		got, err := i.state(ctx, t.cast.user())
		if err != nil {
			return err
		}
		t.got = got
		if got == t.want || time.Now().After(until) {
			return nil
		}
		if err := sleep(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// Unreachable reports whether an error of Run says that the instance was not there.
func Unreachable(err error) bool { return errors.Is(err, ErrUnreachable) }

// Misused reports whether an error of Run is one of who called: a wrong key, secret or plan.
func Misused(err error) bool { return errors.Is(err, ErrRefused) || errors.Is(err, ErrNoPlans) }

// place names an event of a try, counted from 1.
func (t *try) place(p int) string { return fmt.Sprintf("%d %s", p+1, t.events[p].what) }
