package endpoint

import (
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/wire"
)

// load is what a request makes the owner keep for as long as it is in flight. The zero load is none.
type load struct {
	of    *atomic.Int64 // of the session, all its loads together
	bytes int64
	// What its descriptors and its body count of the owner's budgets; nil for nothing.
	files, body *wire.Charge
}

// fileLoad is what a descriptor counts: the memory that the kernel and this process need for it and its mapping, and there are only so many.
const fileLoad = 16 << 10

// carry takes over the charge of a request, unless it fails, and adds its load to what the session carries. It refuses the one too many instead of waiting: who waits does not read, and
// would not see the request to cancel what it waits for.
func (ses *session) carry(frame wire.Frame) (load, error) {
	n := int64(len(frame.Body)) + int64(frame.Files.Len())*fileLoad
	limit := ses.server.opts.Limits.RequestBytes
	if sum := ses.carried.Add(n); sum > limit && sum > n && !ses.own {
		ses.carried.Add(-n)
		return load{}, over(limitRequestBytes, "the requests of this client in flight have %d bytes, descriptors included, and may have %d", sum-n, limit)
	}
	return load{of: &ses.carried, bytes: n, files: frame.Files.Hold(), body: frame.Charge}, nil
}

// lift takes the load off the session. It is called once.
func (l load) lift() {
	if l.of != nil {
		l.of.Add(-l.bytes)
		l.files.Release()
		l.body.Release()
	}
}
