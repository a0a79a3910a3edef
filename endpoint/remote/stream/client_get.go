package stream

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
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
	upload  *upload // nil until the server has described the set
}

func (g *getting) free() {
	if g.upload != nil {
		g.upload.abandon()
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
		request.Id = g.upload.description.id
		g.upload.mu.Lock()
		request.Resume = g.upload.positionsLocked()
		g.upload.mu.Unlock()
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
	d, err := describe(set, g.client.limits)
	if err != nil {
		return err
	}
	if g.upload != nil && g.upload.description.id == d.id && g.upload.description.equal(d) {
		return nil
	}
	g.free()
	g.upload, err = newUpload(d, g.client.opts.Device, g.client.pool.Open(admission.Sender(context.Background())), false)
	return err
}

func (g *getting) receive(call grpc.BidiStreamingClient[streampb.GetRequest, streampb.Chunk], chunks *bulk.Pump[*streampb.Chunk]) (progressed bool, err error) {
	writer, _, err := g.upload.begin()
	if err != nil {
		return false, err
	}
	owed := uint64(0)
	for {
		chunk, message, err := chunks.Next(g.client.limits.Stall)
		if errors.Is(err, io.EOF) {
			return progressed, g.upload.missing()
		}
		if err != nil {
			return progressed, err
		}
		data := message.TakeData()
		n := uint64(data.Len())
		if err := g.upload.write(writer, chunk.GetTensor(), chunk, data); err != nil {
			return progressed, err
		}
		progressed = true
		g.client.progress(g.upload.done(), g.upload.description.dataBytes())
		if owed += n; owed >= uint64(g.client.limits.Window)/4 {
			if err := call.Send(&streampb.GetRequest{Credit: owed}); err != nil && !errors.Is(err, io.EOF) {
				return progressed, err
			}
			owed = 0
		}
	}
}

func (g *getting) finish() (*Set, error) {
	u := g.upload
	u.mu.Lock()
	writer := u.writer
	u.mu.Unlock()
	sd, err := u.finish(writer)
	if err != nil {
		return nil, err
	}
	d := u.description
	return &Set{ID: d.id, Name: d.name, Version: d.version, Tensors: sd}, nil
}

// unexpected converts the end of a call to an error if a message was required.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the server ended the call", io.ErrUnexpectedEOF)
	}
	return err
}
