package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// kind is what happens to the events on their way.
type kind string

const (
	permuted   kind = "permuted"   // each comes once, in some order
	duplicated kind = "duplicated" // each comes twice, the second time at any later place
	delayed    kind = "delayed"    // one comes when all others have had their effect
	dropped    kind = "dropped"    // one that the others make up for never comes
	tied       kind = "tied"       // all are of one second
)

var kinds = []kind{permuted, duplicated, delayed, dropped, tied}

// order is one way in which the events of a life arrive.
type order struct {
	kind kind
	// sequence has the places of the events in the life, in the order of their arrival.
	sequence []int
	// late is how many at the end of the sequence come only when the rest has had its effect.
	late int
}

// orders makes the orders of one kind, at most limit: all there are where those are few, else a sample without repeats.
func orders(k kind, events []event, limit int, random *rand.Rand) []order {
	all := permutations(len(events), limit, random)
	switch k {
	case permuted, tied:
		list := make([]order, len(all))
		for i, p := range all {
			list[i] = order{kind: k, sequence: p}
		}
		return list
	case duplicated:
		list := make([]order, len(all))
		for i, p := range all {
			list[i] = order{kind: k, sequence: twice(p, random)}
		}
		return list
	case delayed, dropped:
	}
	var list []order
	seen := map[string]bool{}
	for _, p := range all {
		for which := range events {
			if k == dropped && !events[which].spare {
				continue
			}
			o := order{kind: k, sequence: slices.DeleteFunc(slices.Clone(p), func(i int) bool { return i == which })}
			if k == delayed {
				o.sequence, o.late = append(o.sequence, which), 1
			}
			if key := fmt.Sprint(o.sequence); !seen[key] {
				seen[key] = true
				list = append(list, o)
			}
		}
	}
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(limit, len(list))]
}

// twice puts each event in once more, somewhere after its first arrival.
func twice(p []int, random *rand.Rand) []int {
	list := slices.Clone(p)
	for _, event := range p {
		first := slices.Index(list, event)
		list = slices.Insert(list, first+1+random.IntN(len(list)-first), event)
	}
	return list
}

// permutations of n places: all of them if they are at most limit, else limit different ones by chance.
func permutations(n, limit int, random *rand.Rand) [][]int {
	count := 1
	for i := 2; i <= n && count <= limit; i++ {
		count *= i
	}
	places := make([]int, n)
	for i := range places {
		places[i] = i
	}
	if count <= limit {
		return all(places)
	}
	list := make([][]int, 0, limit)
	for seen := map[string]bool{}; len(list) < limit; {
		p := random.Perm(n)
		if key := fmt.Sprint(p); !seen[key] {
			seen[key] = true
			list = append(list, p)
		}
	}
	return list
}

// all lists all permutations.
func all(rest []int) [][]int {
	if len(rest) <= 1 {
		return [][]int{slices.Clone(rest)}
	}
	var list [][]int
	for i, first := range rest {
		others := slices.Delete(slices.Clone(rest), i, i+1)
		for _, p := range all(others) {
			list = append(list, append([]int{first}, p...))
		}
	}
	return list
}
