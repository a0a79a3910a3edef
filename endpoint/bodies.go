package endpoint

import "sync"

// bodyPool keeps buffers for the bodies of frames to be sent.
type bodyPool struct{ pool sync.Pool }

var bodies bodyPool

// maxBody is the largest buffer that is kept for another frame.
const maxBody = 64 << 10

// get returns an empty buffer. The caller puts it back when the frame has been sent.
func (p *bodyPool) get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

func (p *bodyPool) put(b *[]byte) {
	if cap(*b) <= maxBody {
		*b = (*b)[:0]
		p.pool.Put(b)
	}
}
