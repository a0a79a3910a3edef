package engine

import (
	"sync/atomic"
	"time"
)

// peakEWMA is a moving average of call durations that follows a peak at once: a longer call sets it, each shorter one
// lowers it by an eighth. So nearly all calls take no longer than it says.
//
// A long call after many short ones is ignored; it counts if another one follows soon. Mostly the function did nothing
// unusual, and the kernel gave its processor to another process meanwhile.
type peakEWMA struct {
	of    atomic.Int64
	short atomic.Int32 // calls since the last long one, up to shortRun
}

const (
	// unmeasured is the value for an endpoint that was not called yet.
	unmeasured = time.Millisecond
	// longCall is the duration from which a peak may be ignored. A shorter one raises the average by little.
	longCall = 20 * time.Microsecond
	// shortRun is how many short calls must come before a peak that is ignored.
	shortRun = 32
)

// Add notes a call. Of two at the same time one may be lost, which does no harm.
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
