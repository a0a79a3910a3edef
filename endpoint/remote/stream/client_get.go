package stream

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// Get requests a set and returns it in new memory of the client's device, owned by the caller. If the connection
// breaks, Get resumes, unless the server has a different set under that name by then. Errors are those of this package,
// wrapped in *RemoteError if the server returned them.
func (c *Client) Get(ctx context.Context, request Request) (*Set, error) {
	g := &getting{client: c, request: request}
	defer g.free()
	err := c.attempts(ctx, g.run)
	if err != nil {
		return nil, remoteError(fmt.Sprintf("get %q", request.Name), err)
	}
	return g.finish()
}

// getting is the state of a Get over its calls.
type getting struct {
	client  *Client
	request Request
	id      string            // of the described set
	upload  *modelwire.Upload // nil until the server has described the set
	writer  int
}

func (g *getting) free() {
	if g.upload != nil {
		g.upload.Abandon()
	}
}

func (g *getting) run(ctx context.Context) (progressed bool, err error) {
	call, err := g.client.rpc.Get(ctx, callOptions...)
	if err != nil {
		return false, err
	}
	request := &streampb.GetRequest{
		Name: g.request.Name, Version: g.request.Version, Tensors: g.request.Tensors, Parameters: g.request.Parameters,
		Credit: uint64(g.client.limits.Window),
	}
	if g.upload != nil {
		request.Id, request.Resume = g.id, positionsOf(g.upload.Positions())
	}
	if err := call.SendMsg(request); err != nil {
		return false, endOf(call, err)
	}
	chunks := bulk.NewPump(ctx, call, newChunk, dataField)
	first, message, err := chunks.Next(g.client.limits.Stall)
	if err != nil {
		return false, unexpected(err)
	}
	message.Free()
	if err := g.describe(first.GetSet()); err != nil {
		return false, err
	}
	return g.receive(call, chunks)
}

// describe allocates the memory for the described set, unless an earlier call did.
func (g *getting) describe(set *streampb.Set) error {
	m, err := describe(set, g.client.limits)
	if err != nil {
		return err
	}
	if g.upload != nil && g.id == set.GetId() && g.upload.Manifest().Identity() == m.Identity() {
		return nil
	}
	g.free()
	g.id = set.GetId()
	g.upload, err = modelwire.NewUpload(m, g.client.opts.Device, g.client.pool.Open(rights.Sender(context.Background())), false)
	return err
}

func (g *getting) receive(call grpc.BidiStreamingClient[streampb.GetRequest, streampb.Chunk], chunks *bulk.Pump[*streampb.Chunk]) (progressed bool, err error) {
	if g.writer, _, err = g.upload.Begin(); err != nil {
		return false, err
	}
	owed := uint64(0)
	for {
		chunk, message, err := chunks.Next(g.client.limits.Stall)
		if errors.Is(err, io.EOF) {
			return progressed, g.upload.Missing()
		}
		if err != nil {
			return progressed, err
		}
		n := uint64(message.Data().Len())
		err = g.upload.Write(g.writer, pieceOf(int(chunk.GetTensor()), chunk, message.Data()))
		message.Free()
		if err != nil {
			return progressed, err
		}
		progressed = true
		g.client.progress(g.upload.Done(), g.upload.Manifest().Bytes)
		if owed += n; owed >= uint64(g.client.limits.Window)/4 {
			if err := call.Send(&streampb.GetRequest{Credit: owed}); err != nil && !errors.Is(err, io.EOF) {
				return progressed, err
			}
			owed = 0
		}
	}
}

func (g *getting) finish() (*Set, error) {
	held, err := g.upload.Finish(g.writer)
	if err != nil {
		return nil, err
	}
	m := g.upload.Manifest()
	return &Set{ID: g.id, Name: m.Name, Version: m.Version, Tensors: held.Value, release: func() error { held.Release(); return nil }}, nil
}

// unexpected converts the end of a call to an error if a message was required.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the server ended the call", io.ErrUnexpectedEOF)
	}
	return err
}
