package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestOrdersAreWhatTheySay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "events")
		limit := rapid.IntRange(1, 800).Draw(t, "limit")
		events := make([]event, n)
		for i := range events {
			events[i].spare = rapid.Bool().Draw(t, "spare")
		}
		for _, k := range kinds {
			list := orders(k, events, limit, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)))
			require.LessOrEqual(t, len(list), limit)
			seen := map[string]bool{}
			for _, o := range list {
				require.Equal(t, k, o.kind)
				seen[fmt.Sprint(o.sequence)] = true
				times := make([]int, n)
				for _, place := range o.sequence {
					times[place]++
				}
				slices.Sort(times)
				require.Equal(t, k == delayed, o.late == 1)
				switch k {
				case duplicated:
					require.Equal(t, slices.Repeat([]int{2}, n), times)
				case dropped:
					require.Equal(t, append([]int{0}, slices.Repeat([]int{1}, n-1)...), times)
					for place, e := range events {
						require.True(t, e.spare || slices.Contains(o.sequence, place), "only what is spare is lost")
					}
				default:
					require.Equal(t, slices.Repeat([]int{1}, n), times)
				}
			}
			require.Len(t, seen, len(list), "no order twice")
			if k == permuted {
				require.Len(t, list, min(limit, factorial(n)), "all where there are not more")
			}
		}
	})
}
