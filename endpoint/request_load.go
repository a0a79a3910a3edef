package endpoint

import (
	"fmt"
	"sync/atomic"
)

// load is what a request makes the owner keep for as long as it is in flight. The zero load is none.
type load struct {
	of    *atomic.Int64 // of the session, all its loads together
	bytes int64
}

// fileLoad is what a descriptor counts: the memory that the kernel and this process need for it and its mapping, and there are only so many.
const fileLoad = 16 << 10

// carry adds the load of a request to what the session carries. It refuses the one too many instead of waiting: who waits does not read, and
// would not see the request to cancel what it waits for.
func (ses *session) carry(bytes, files int) (load, error) {
	n := int64(bytes) + int64(files)*fileLoad
	limit := ses.server.opts.Limits.RequestBytes
	if sum := ses.carried.Add(n); sum > limit && sum > n {
		ses.carried.Add(-n)
		return load{}, fmt.Errorf("%w: the requests of this client in flight have %d bytes, descriptors included, and may have %d", ErrLimit, sum-n, limit)
	}
	return load{of: &ses.carried, bytes: n}, nil
}

// lift takes the load off the session. It is called once.
func (l load) lift() {
	if l.of != nil {
		l.of.Add(-l.bytes)
	}
}
