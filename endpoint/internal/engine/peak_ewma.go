package engine

import (
	"sync/atomic"
	"time"
)

// peakEWMA is a moving average of call durations that follows a peak at once: a longer call sets it, each shorter one
// lowers it by an eighth. So nearly all calls take no longer than it says.
type peakEWMA struct{ of atomic.Int64 }

// unmeasured is the value for an endpoint that was not called yet.
const unmeasured = time.Millisecond

// Add notes a call.
func (p *peakEWMA) Add(d time.Duration) {
	before := p.Get()
	after := max(d, before-before/8, 1)
	if after != before {
		p.of.Store(int64(after)) // another call may have stored at the same time: either is as good
	}
}

func (p *peakEWMA) Get() time.Duration {
	if d := p.of.Load(); d > 0 {
		return time.Duration(d)
	}
	return unmeasured
}
