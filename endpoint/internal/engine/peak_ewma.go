package engine

import (
	"sync/atomic"
	"time"
)

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
