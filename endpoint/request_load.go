package endpoint

import (
	"github.com/sharedtensor/sharedtensor/wire"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
)

// fileLoad is what a descriptor counts: the memory that the kernel and this process need for it and its mapping, and there are only so many.
const fileLoad = 16 << 10

// carry takes over the charge of a request, unless it fails, and adds its load to what the session carries. It refuses the one too many instead of waiting: who waits does not read, and
// would not see the request to cancel what it waits for.
func (ses *session) carry(frame wire.Frame) (engine.Load, error) {
	n := int64(len(frame.Body)) + int64(frame.Files.Len())*fileLoad
	limit := ses.server.opts.Limits.RequestBytes
	if sum := ses.carried.Add(n); sum > limit && sum > n && !ses.own {
		ses.carried.Add(-n)
		return engine.Load{}, limits.Exceeded(limits.RequestBytes, "the requests of this client in flight have %d bytes, descriptors included, and may have %d", sum-n, limit)
	}
	return engine.Load{Of: &ses.carried, Bytes: n, Files: frame.Files.Hold(), Body: frame.Charge}, nil
}
