package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one line of the table. Ours and limit are what was measured in the same round, one value per round.
type row struct {
	path        string
	unit        string
	ours, limit []float64
	least       float64     // the ratio to reach; 0 where there is no target
	target      string      // instead of least, for rows without a limit
	met         bool        // of target
	latency     []latencies // of ours, one per round
}

// latencies of one round.
type latencies struct{ p50, p99 time.Duration }

// ratio is the median of the ratios of the rounds: two values of one round have met the same machine.
func (r row) ratio() float64 {
	ratios := make([]float64, len(r.limit))
	for i := range r.limit {
		ratios[i] = r.ours[i] / r.limit[i]
	}
	return median(ratios)
}

// pair is a load and its limit, one value per round.
type pair struct {
	ours, limit []speed
	latency     []latencies
}

func (p *pair) add(ours loaded, limit speed) {
	p.ours, p.limit, p.latency = append(p.ours, ours.speed()), append(p.limit, limit), append(p.latency, ours.latency)
}

// rows are the line by wall time, which has the target, and the one by CPU time.
func (p *pair) rows(path string, least float64) []row {
	wall := row{path: path, unit: "/s", least: least, latency: p.latency}
	cpu := row{path: "  the same by CPU of all processes", unit: "/s"}
	for i := range p.ours {
		wall.ours, wall.limit = append(wall.ours, p.ours[i].perSecond), append(wall.limit, p.limit[i].perSecond)
		cpu.ours, cpu.limit = append(cpu.ours, p.ours[i].perCPUSecond), append(cpu.limit, p.limit[i].perCPUSecond)
	}
	return []row{wall, cpu}
}

func printTable(out io.Writer, rows []row) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "path\tours\tlimit\tratio\ttarget\tp50\tp99\t")
	for _, r := range rows {
		limit, ratio, target := "-", "-", "-"
		if len(r.limit) > 0 {
			limit, ratio = number(median(r.limit), r.unit), fmt.Sprintf("%.2f", r.ratio())
		}
		switch {
		case r.least > 0:
			target = fmt.Sprintf("≥ %.2f %s", r.least, verdict(r.ratio() >= r.least))
		case r.target != "":
			target = r.target + " " + verdict(r.met)
		}
		p50, p99 := "-", "-"
		if len(r.latency) > 0 {
			p50, p99 = r.percentile(func(l latencies) time.Duration { return l.p50 }), r.percentile(func(l latencies) time.Duration { return l.p99 })
		}
		ours := "-"
		if len(r.ours) > 0 {
			ours = number(median(r.ours), r.unit)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.path, ours, limit, ratio, target, p50, p99)
	}
	return table.Flush()
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "MISSED"
}

func (r row) percentile(of func(latencies) time.Duration) string {
	values := make([]float64, len(r.latency))
	for i, l := range r.latency {
		values[i] = float64(of(l))
	}
	return fmt.Sprintf("%.2f ms", median(values)/float64(time.Millisecond))
}

// number writes a value with thousands apart.
func number(v float64, unit string) string {
	digits := fmt.Sprint(int64(math.Round(v)))
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String() + unit
}

// median of an odd number of values is the one in the middle, of an even number the mean of the two.
func median(values []float64) float64 {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// percentiles sorts the values.
func percentiles(values []time.Duration) latencies {
	slices.Sort(values)
	at := func(share float64) time.Duration {
		return values[min(int(share*float64(len(values))), len(values)-1)]
	}
	return latencies{p50: at(0.50), p99: at(0.99)}
}
