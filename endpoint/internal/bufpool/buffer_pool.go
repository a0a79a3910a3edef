// Package bufpool keeps buffers for the bodies of frames.
package bufpool

import "sync"

// Pool keeps buffers for the bodies of frames to be sent.
type Pool struct{ pool sync.Pool }

// Bodies are the buffers of this process.
var Bodies Pool

// maxBody is the largest buffer that is kept for another frame.
const maxBody = 64 << 10

// Get returns an empty buffer. The caller puts it back when the frame has been sent.
func (p *Pool) Get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

// Put takes a buffer back, unless it is too large to be kept.
func (p *Pool) Put(b *[]byte) {
	if cap(*b) <= maxBody {
		*b = (*b)[:0]
		p.pool.Put(b)
	}
}
