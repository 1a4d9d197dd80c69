package conformance

import (
	"fmt"
	"io"
	"strings"
)

// Report is what came out of a run.
type Report struct {
	Seed        uint64       `json:"seed"`
	Tried       int          `json:"tried"`
	Lives       []Tried      `json:"lives"`
	LeftOut     []string     `json:"left_out"`
	Differences []Difference `json:"differences"`
	// Asked is how many calls the provider of --provider answered; -1 without one.
	Asked int64 `json:"provider_calls"`
}

// Tried counts the orders of one life in one shape.
type Tried struct {
	Life       string `json:"life"`
	Shape      Shape  `json:"shape"`
	Events     int    `json:"events"`
	Possible   int    `json:"possible"` // permutations of its events
	Permuted   int    `json:"permuted"`
	Duplicated int    `json:"duplicated"`
	Delayed    int    `json:"delayed"`
	Dropped    int    `json:"dropped"`
	Tied       int    `json:"tied"`
	Differ     int    `json:"differ"`
	Want       State  `json:"expected"`
}

// Difference is an order that did not end as it must.
type Difference struct {
	Life    string   `json:"life"`
	Shape   Shape    `json:"shape"`
	Kind    string   `json:"kind"`
	Order   []string `json:"order"`          // the events as they came
	Late    int      `json:"late,omitempty"` // how many of the last came when the others had had their effect
	User    string   `json:"user_id"`
	Want    State    `json:"expected"`
	Got     State    `json:"got"`
	Refusal string   `json:"refusal,omitempty"` // how an event was not taken
}

func (s Settings) report(tries []*try, leftOut []string) Report {
	r := Report{Seed: s.Seed, Tried: len(tries), LeftOut: leftOut, Differences: []Difference{}, Asked: -1}
	if s.Provider != nil {
		r.Asked = s.Provider.calls.Load()
	}
	places := map[string]int{}
	for _, t := range tries {
		key := t.life + string(t.shape)
		place, ok := places[key]
		if !ok {
			place = len(r.Lives)
			places[key] = place
			r.Lives = append(r.Lives, Tried{Life: t.life, Shape: t.shape, Events: len(t.events), Possible: factorial(len(t.events)), Want: t.want})
		}
		r.Lives[place].count(t)
		if t.differs() {
			r.Differences = append(r.Differences, t.difference())
		}
	}
	return r
}

func (l *Tried) count(t *try) {
	switch t.order.kind {
	case permuted:
		l.Permuted++
	case duplicated:
		l.Duplicated++
	case delayed:
		l.Delayed++
	case dropped:
		l.Dropped++
	case tied:
		l.Tied++
	}
	if t.differs() {
		l.Differ++
	}
}

func factorial(n int) int {
	product := 1
	for i := 2; i <= n; i++ {
		product *= i
	}
	return product
}

func (t *try) difference() Difference {
	d := Difference{
		Life: t.life, Shape: t.shape, Kind: string(t.order.kind), Late: t.order.late, User: t.cast.user(), Want: t.want, Got: t.got, Refusal: t.refusal,
	}
	for _, p := range t.order.sequence {
		d.Order = append(d.Order, t.place(p))
	}
	return d
}

// Print writes the report for a person.
func (r Report) Print(out io.Writer) {
	for _, l := range r.Lives {
		verdict := "all end alike"
		if l.Differ > 0 {
			verdict = fmt.Sprintf("%d DIFFER", l.Differ)
		}
		fmt.Fprintf(out, "%-22s %-16s %4d of %d permutations, %d duplicated, %d delayed, %d dropped, %d tied: %s\n",
			l.Life, l.Shape, l.Permuted, l.Possible, l.Duplicated, l.Delayed, l.Dropped, l.Tied, verdict)
	}
	for _, d := range r.Differences {
		fmt.Fprintf(out, "\n%s, %s, %s, user %s\n", d.Life, d.Shape, d.Kind, d.User)
		early := d.Order[:len(d.Order)-d.Late]
		fmt.Fprintf(out, "  order     %s\n", strings.Join(early, " · "))
		if d.Late > 0 {
			fmt.Fprintf(out, "  then      %s\n", strings.Join(d.Order[len(early):], " · "))
		}
		fmt.Fprintf(out, "  expected  %s\n  got       %s\n", d.Want, d.Got)
		if d.Refusal != "" {
			fmt.Fprintf(out, "  refused   %s\n", d.Refusal)
		}
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(out, "left out: %s\n", l)
	}
	if r.Asked == 0 {
		fmt.Fprintln(out, "the provider was never asked: was the instance started with STRIPE_API_KEY and with STRIPE_API_BASE at its address?")
	}
	fmt.Fprintf(out, "%d orders tried, %d differ (seed %d)\n", r.Tried, len(r.Differences), r.Seed)
}
