package endpoint

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
)

// ResultDevice returns a device that allocates the memory of a function's results. ctx is the context of the call. If
// the same client calls repeatedly and closes its results, their memory is reused and stays mapped on both sides. A
// result is then one message, whatever its size. Fresh memory costs more than the rest of such a call.
//
//	out, err := tensor.Empty(endpoint.ResultDevice(ctx, dev), tensor.Float32, shape)
//
// [tensor.Empty], and functions that fill the tensor such as [tensor.FromSlice], get memory with the contents
// of the client's last result; [tensor.Zeros] zeroes it. The memory is used for one client only. It is not reused while
// a tensor in it is open on either side, or after it was published, passed on or cached.
//
// A function that keeps a tensor in this memory prevents its reuse. Only the owner can map it writable, so the receiver
// cannot pass it to an endpoint with [WritableArguments]. ResultDevice returns dev itself if such memory is
// unavailable: for clients in this process or without support for it; for cached, managed, task and stream endpoints;
// for GPU memory; and beyond [Limits].SlabBytes.
func ResultDevice(ctx context.Context, dev driver.Device) driver.Device {
	return server.ResultDevice(ctx, dev)
}
