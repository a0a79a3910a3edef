package stream

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// Exchange is a call in which the server answers each tensor with another tensor. One goroutine may send while another
// receives.
type Exchange struct {
	client  *Client
	ctx     context.Context // ends with Close
	call    grpc.BidiStreamingClient[streampb.Chunk, streampb.Chunk]
	cancel  context.CancelFunc
	sending *lockedStream
	granted *credit
	in      *incoming
	sent    atomic.Uint32
}

// Exchange starts a call. The caller closes it.
func (c *Client) Exchange(ctx context.Context) (*Exchange, error) {
	ctx, cancel := context.WithCancel(ctx)
	call, err := c.rpc.Exchange(ctx, callOptions...)
	if err != nil {
		cancel()
		return nil, remoteError("exchange", err)
	}
	x := &Exchange{client: c, ctx: ctx, call: call, cancel: cancel, sending: &lockedStream{call: call}, granted: newCredit()}
	x.in = newIncoming(ctx, c.limits, c.pool, c.opts.Device, false, x.granted, x.grant)
	chunks := bulk.NewPump(ctx, call, newChunk, dataField)
	contain.Go(func() { x.in.run(chunks) }, x.in.end) // ends with the call
	if err := x.grant(uint64(c.limits.Window)); err != nil {
		x.Close()
		return nil, remoteError("exchange", err)
	}
	return x, nil
}

// grant grants the server credit. It has no effect if the server has ended the call.
func (x *Exchange) grant(bytes uint64) error {
	if err := x.sending.grant(bytes); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Send sends a tensor and waits for credit if necessary. It borrows the tensor, which must not be written until it was
// answered.
func (x *Exchange) Send(item *Item) error {
	out := &sender{ctx: x.ctx, call: x.sending, credit: x.granted, stall: x.client.limits.Stall, host: x.client.opts.Host}
	err := out.tensor(x.sent.Add(1)-1, item.Tensor.Alias(), nil, specOf(item.ID, item.Tensor, item.Metadata))
	if errors.Is(err, io.EOF) {
		err = x.why()
	}
	return remoteError("exchange", err)
}

// why returns the reason that the call ended.
func (x *Exchange) why() error {
	for {
		a, err := x.in.next(context.Background())
		if err != nil {
			return unexpected(err)
		}
		a.done()
	}
}

// CloseSend ends sending.
func (x *Exchange) CloseSend() error {
	return remoteError("exchange", x.sending.SendMsg(&streampb.Chunk{End: true}))
}

// Recv returns the next answer, owned by the caller. Its ID is the ID of the tensor that it answers. The error is
// io.EOF after the last answer.
func (x *Exchange) Recv() (*Item, error) {
	a, err := x.in.next(x.ctx)
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, remoteError("exchange", err)
	}
	item := &Item{ID: a.item.ID, Tensor: a.item.Tensor.Alias(), Metadata: a.item.Metadata}
	a.done()
	if err := x.grant(a.owed); err != nil {
		item.Tensor.Close()
		return nil, remoteError("exchange", err)
	}
	return item, nil
}

// Close ends the call and discards tensors in transfer.
func (x *Exchange) Close() error {
	x.cancel()
	x.in.free()
	return nil
}
