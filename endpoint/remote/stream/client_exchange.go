package stream

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pump"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// Exchange is a call in which the server answers each tensor by another one. One goroutine may send while another
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

// Exchange begins a call. The caller closes it.
func (c *Client) Exchange(ctx context.Context) (*Exchange, error) {
	ctx, cancel := context.WithCancel(ctx)
	call, err := c.rpc.Exchange(ctx, callOptions...)
	if err != nil {
		cancel()
		return nil, remoteError("exchange", err)
	}
	x := &Exchange{client: c, ctx: ctx, call: call, cancel: cancel, sending: &lockedStream{call: call}, granted: newCredit()}
	x.in = newIncoming(c.limits, c.budget, c.opts.Device, x.granted, x.grant)
	go x.in.run(pump.New(ctx, call, newChunk, dataField)) // ends with the call
	if err := x.grant(uint64(c.limits.Window)); err != nil {
		x.Close()
		return nil, remoteError("exchange", err)
	}
	return x, nil
}

// grant lets the server send more. A server that has ended the call needs none.
func (x *Exchange) grant(bytes uint64) error {
	if err := x.sending.grant(bytes); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Send sends a tensor, which it borrows: nobody may write to it until it was answered. It waits for the server's
// credit.
func (x *Exchange) Send(item *Item) error {
	out := &sender{ctx: x.ctx, call: x.sending, credit: x.granted, stall: x.client.limits.Stall, host: x.client.opts.Host}
	err := out.tensor(x.sent.Add(1)-1, item.Tensor.Clone(), nil, specOf(item.ID, item.Tensor, item.Metadata))
	if errors.Is(err, io.EOF) {
		err = x.why()
	}
	return remoteError("exchange", err)
}

// why is why the call ended.
func (x *Exchange) why() error {
	for {
		a, err := x.in.next(context.Background())
		if err != nil {
			return unexpected(err)
		}
		a.done()
	}
}

// CloseSend says that nothing more will be sent.
func (x *Exchange) CloseSend() error {
	return remoteError("exchange", x.sending.SendMsg(&streampb.Chunk{End: true}))
}

// Recv returns the next answer, owned; ID is that of the tensor that it answers. The error is io.EOF when all were
// answered.
func (x *Exchange) Recv() (*Item, error) {
	a, err := x.in.next(x.ctx)
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, remoteError("exchange", err)
	}
	item := &Item{ID: a.item.ID, Tensor: a.item.Tensor.Clone(), Metadata: a.item.Metadata}
	a.done()
	if err := x.grant(a.owed); err != nil {
		item.Tensor.Close()
		return nil, remoteError("exchange", err)
	}
	return item, nil
}

// Close ends the call, whatever is still on its way.
func (x *Exchange) Close() error {
	x.cancel()
	x.in.free()
	return nil
}
