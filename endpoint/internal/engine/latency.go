package engine

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// latency is a histogram of durations. Each power of two nanoseconds has eight buckets, so a quantile is at most an
// eighth too large. Adding a duration costs a few atomic operations. The buckets of a power are allocated when its
// first duration is added; an endpoint uses few powers.
type latency struct {
	Count  atomic.Uint64
	Failed atomic.Uint64
	Total  atomic.Uint64 // in nanoseconds; overflows after 584 years
	powers [latencyPowers]atomic.Pointer[latencyRow]
}

const (
	latencySteps  = 8
	latencyPowers = 61 // the first holds durations below 8 ns, the last the longest time.Duration
)

// latencyRow counts the durations of one power of two.
type latencyRow [latencySteps]atomic.Uint64

// bucketOf returns the bucket of a duration in nanoseconds. ns must not exceed the longest time.Duration.
func bucketOf(ns uint64) int {
	if ns < latencySteps {
		return int(ns)
	}
	power := bits.Len64(ns) - 1 // at least 3
	return (power-2)*latencySteps + int(ns>>(power-3))&(latencySteps-1)
}

// bucketLimit returns the longest duration in a bucket.
func bucketLimit(bucket int) time.Duration {
	if bucket < latencySteps {
		return time.Duration(bucket)
	}
	power := bucket/latencySteps + 2
	return time.Duration((uint64(latencySteps+bucket%latencySteps+1) << (power - 3)) - 1)
}

// add records one run.
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

// row returns the buckets of a power and allocates them if needed.
func (l *latency) row(power int) *latencyRow {
	p := &l.powers[power]
	if row := p.Load(); row != nil {
		return row
	}
	p.CompareAndSwap(nil, new(latencyRow)) // if it fails, another goroutine has set it
	return p.Load()
}

// Quantiles returns the durations at the given parts (0 to 1) of all runs, which must be in ascending order. It returns
// zeros if there were no runs.
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

// firstPower is the power of two nanoseconds that bounds the first count of Durations: 8 µs.
const firstPower = 13

// Durations returns counts of runs by duration: element i of those below 8,192·2^i ns that no earlier element counts, up to
// element 23, and element 24 of all longer ones. Zeros at the end are left out.
func (l *latency) Durations() (counts []uint64) {
	counts = make([]uint64, message.DurationCounts)
	for power := range l.powers {
		row := l.powers[power].Load()
		if row == nil {
			continue
		}
		// Row 0 has the durations below 8 ns, row i those from 2^(i+2) ns to below 2^(i+3) ns.
		i := min(max(power+3-firstPower, 0), len(counts)-1)
		for step := range row {
			counts[i] += row[step].Load()
		}
	}
	for len(counts) > 0 && counts[len(counts)-1] == 0 {
		counts = counts[:len(counts)-1]
	}
	return counts
}

// peakEWMA is a moving average of call durations that rises at once and decays slowly: a longer call sets it, and each
// shorter call lowers it by an eighth. Nearly all calls are therefore shorter than its value.
//
// A long call after many short ones is ignored unless another follows soon. Usually the kernel had preempted the
// process during it.
type peakEWMA struct {
	of    atomic.Int64
	short atomic.Int32 // number of calls since the last long one, at most shortRun
}

const (
	// unmeasured is the value before the first call.
	unmeasured = time.Millisecond
	// longCall is the minimum duration of a peak that may be ignored. A shorter one raises the average only slightly.
	longCall = 20 * time.Microsecond
	// shortRun is the number of short calls that must precede a peak for it to be ignored.
	shortRun = 32
)

// Add adds the duration of a call. Of two concurrent calls one may be lost, which is acceptable.
func (p *peakEWMA) Add(d time.Duration) {
	before := p.Get()
	switch short := p.short.Load(); {
	case d <= before || d <= longCall:
		if short < shortRun {
			p.short.Store(short + 1)
		}
	case short > 0:
		p.short.Store(0)
		if short >= shortRun {
			return
		}
	}
	after := max(d, before-before/8, 1)
	if after != before {
		p.of.Store(int64(after))
	}
}

func (p *peakEWMA) Get() time.Duration {
	if d := p.of.Load(); d > 0 {
		return time.Duration(d)
	}
	return unmeasured
}
