package endpoint

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latency is a histogram of durations: each power of two of nanoseconds in eight steps, so that a quantile is off by at most an
// eighth. Adding costs two atomic operations.
type latency struct {
	count   atomic.Uint64
	failed  atomic.Uint64
	buckets [64 * latencySteps]atomic.Uint32
}

const latencySteps = 8

// bucketOf is the bucket of a duration in nanoseconds.
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
	l.count.Add(1)
	if failed {
		l.failed.Add(1)
	}
	l.buckets[bucketOf(uint64(max(d, 0)))].Add(1)
}

// quantiles are the durations within which the given parts of all runs were, in rising order of the parts.
func (l *latency) quantiles(parts ...float64) []time.Duration {
	var sum uint64
	for i := range l.buckets {
		sum += uint64(l.buckets[i].Load())
	}
	out := make([]time.Duration, len(parts))
	var seen uint64
	next := 0
	for i := range l.buckets {
		seen += uint64(l.buckets[i].Load())
		for next < len(parts) && sum > 0 && float64(seen) >= parts[next]*float64(sum) {
			out[next] = bucketLimit(i)
			next++
		}
	}
	return out
}
