package endpoint

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
)

// ResultDevice is dev for the memory of what a function of an endpoint returns: ctx is the context of its call. Where
// the same client calls again and again and closes what it gets, the memory is used again, both sides keep it mapped,
// and a result is a message, whatever its size; fresh memory costs more than all else that such a call takes.
//
//	out, err := tensor.Uninitialized(endpoint.ResultDevice(ctx, dev), tensor.Float32, shape)
//
// [tensor.Uninitialized], and what fills its tensor by itself such as [tensor.FromSlice], get memory as the client's
// last result left it; [tensor.Empty] zeroes it. No other client ever sees it, and it is not used again while anybody
// may have it: as long as a tensor of it is open on either side, or once it was published, passed on or kept in a
// cache.
//
// It is memory of its receiver: a function that keeps a tensor of it keeps it from being used again. Nobody but the
// owner can map it writable, so that the receiver cannot pass it to an endpoint with [WritableArguments]. Where there
// is no such memory (a client of this process, one that does not know of it, an endpoint that is cached, managed, a
// task or a stream, memory of GPUs, [Limits].SlabBytes) it is dev itself.
func ResultDevice(ctx context.Context, dev driver.Device) driver.Device {
	return session.ResultDevice(ctx, dev)
}
