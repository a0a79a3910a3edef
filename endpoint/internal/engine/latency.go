package engine

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latency is a histogram of durations: each power of two of nanoseconds in eight steps, so that a quantile is off by at
// most an eighth. Adding costs a few atomic operations. The steps of a power take memory when the first duration falls
// into it: those of an endpoint fall into few.
type latency struct {
	Count  atomic.Uint64
	Failed atomic.Uint64
	Total  atomic.Uint64 // in nanoseconds; enough for 584 years
	powers [latencyPowers]atomic.Pointer[latencyRow]
}

const (
	latencySteps  = 8
	latencyPowers = 61 // the first has the durations below 8 ns, the last those of the longest time.Duration
)

// latencyRow counts the durations of one power of two.
type latencyRow [latencySteps]atomic.Uint64

// bucketOf is the bucket of a duration in nanoseconds, which is one that a time.Duration can have.
func bucketOf(ns uint64) int {
	if ns < latencySteps {
		return int(ns)
	}
	power := bits.Len64(ns) - 1 // at least 3
	return (power-2)*latencySteps + int(ns>>(power-3))&(latencySteps-1)
}

// bucketLimit is the largest duration of a bucket.
func bucketLimit(bucket int) time.Duration {
	if bucket < latencySteps {
		return time.Duration(bucket)
	}
	power := bucket/latencySteps + 2
	return time.Duration((uint64(latencySteps+bucket%latencySteps+1) << (power - 3)) - 1)
}

// add notes one run.
func (l *latency) add(d time.Duration, failed bool) {
	ns := uint64(max(d, 0))
	l.Count.Add(1)
	if failed {
		l.Failed.Add(1)
	}
	l.Total.Add(ns)
	bucket := bucketOf(ns)
	l.row(bucket / latencySteps)[bucket%latencySteps].Add(1)
}

// row has the steps of a power.
func (l *latency) row(power int) *latencyRow {
	p := &l.powers[power]
	if row := p.Load(); row != nil {
		return row
	}
	p.CompareAndSwap(nil, new(latencyRow)) // else another was faster
	return p.Load()
}

// Quantiles are the durations within which the given parts of all runs were, in rising order of the parts; 0 where
// there was no run.
func (l *latency) Quantiles(parts ...float64) []time.Duration {
	var counts [latencyPowers * latencySteps]uint64
	var sum uint64
	for power := range l.powers {
		row := l.powers[power].Load()
		if row == nil {
			continue
		}
		for step := range row {
			n := row[step].Load()
			counts[power*latencySteps+step] = n
			sum += n
		}
	}
	out := make([]time.Duration, len(parts))
	var seen uint64
	next := 0
	for i, n := range counts {
		seen += n
		for next < len(parts) && sum > 0 && float64(seen) >= parts[next]*float64(sum) {
			out[next] = bucketLimit(i)
			next++
		}
	}
	return out
}
