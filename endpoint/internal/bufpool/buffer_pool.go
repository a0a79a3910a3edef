// Package bufpool pools buffers for frame bodies.
package bufpool

import "sync"

// Pool is a pool of buffers for the bodies of outgoing frames.
type Pool struct{ pool sync.Pool }

// Bodies is the process-wide pool.
var Bodies Pool

// maxBody is the maximum size of a pooled buffer.
const maxBody = 64 << 10

// Get returns an empty buffer. The caller calls Put after the frame has been sent.
func (p *Pool) Get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

// Put returns a buffer to the pool unless it is larger than maxBody.
func (p *Pool) Put(b *[]byte) {
	if cap(*b) <= maxBody {
		*b = (*b)[:0]
		p.pool.Put(b)
	}
}
