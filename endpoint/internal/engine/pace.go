package engine

import (
	"sync/atomic"
	"time"
)

// pace is how long calls of an endpoint take of late: a longer one counts at once, shorter ones bring it down by an
// eighth each. So what it says is true of nearly all calls.
type pace struct{ of atomic.Int64 }

// unknownPace is the pace of an endpoint that was not called yet.
const unknownPace = time.Millisecond

// Add notes a call.
func (p *pace) Add(d time.Duration) {
	before := p.Get()
	after := max(d, before-before/8, 1)
	if after != before {
		p.of.Store(int64(after)) // another call may have stored at the same time: either is as good
	}
}

func (p *pace) Get() time.Duration {
	if d := p.of.Load(); d > 0 {
		return time.Duration(d)
	}
	return unknownPace
}
