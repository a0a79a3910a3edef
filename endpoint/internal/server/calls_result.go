package server

import (
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// returned is the reply with the result of a call. The memory of the result is charged to the client until Done.
type returned struct {
	engine  *engine.Engine
	result  engine.ResultRef
	client  *client
	message message.Returned
	files   []*os.File           // owned by the result or the slabs
	slabs   *transfer.SlabExport // a result in slabs or within the frame; nil for others
	loans   transfer.Loans       // numbers of memory that may be sent again
	undo    func()               // removes the client's reference to a managed result; nil for others
	charged bool                 // the client's memory counts the result
}

// Size implements session.Reply.
func (p *returned) Size() int {
	return len(p.message.Value) + engine.HandleBytes*len(p.message.Handles) + transfer.InlineBytes(p.message.Handles)
}

// AppendTo implements session.Reply.
func (p *returned) AppendTo(b []byte) ([]byte, error) {
	b, err := message.AppendReturned(slices.Grow(b, p.Size()), &p.message)
	if p.slabs != nil {
		// The client owns the memory as soon as the message is sent. It may return the slab before the session calls Done,
		// and the next result can use the slab only after this result was released.
		p.release()
	}
	return b, err
}

// Attachments implements session.Reply.
func (p *returned) Attachments() session.Attachments {
	out := session.Attachments{Files: p.files}
	if p.result.Result != nil {
		out.Storages = p.result.Payload.Storages
	}
	return out
}

// Done implements session.Reply.
func (p *returned) Done(sent bool) {
	if p.slabs != nil {
		if !sent {
			p.slabs.MarkUnsent()
		}
		p.slabs.Close()
	}
	if !sent {
		p.loans.MarkUnsent()
	}
	if !sent && p.undo != nil {
		p.undo()
	}
	p.release()
}

// release releases the result.
func (p *returned) release() {
	if p.result.Result != nil {
		if p.charged {
			p.engine.Memory.Remove(p.client.session.ID, p.result.Result)
		}
		p.result.Release()
		p.result = engine.ResultRef{}
	}
}

// deliver sets p to the reply for a result, and takes the caller's reference to it. For a managed result it adds a
// reference for the client. of is the outcome of the task that made the result, or nil.
func (o *callOperations) deliver(p *returned, c *client, d *engine.Definition, res engine.ResultRef, cached bool, of *engine.Outcome) (session.Reply, error) {
	*p = returned{engine: o.engine, result: res, client: c}
	if err := p.fill(o, d, of); err != nil {
		p.Done(false)
		return nil, err
	}
	p.message.Cached = cached
	return p, nil
}

// fill shares the result with the client, step by step. Done releases what is filled, also after an error.
func (p *returned) fill(o *callOperations, d *engine.Definition, of *engine.Outcome) (err error) {
	c, res := p.client, p.result
	if d.Plain() && of == nil {
		if p.slabs, err = c.shareSlabs(res.Result); err != nil {
			return err
		}
	}
	if p.slabs != nil {
		p.message, p.files = message.Returned{Value: res.Payload.Value, Handles: p.slabs.Handles}, p.slabs.Files
		for i := range p.slabs.Handles {
			if err := engine.CheckLasting(p.slabs.Handles[i].Kind, false); err != nil {
				return err
			}
		}
	} else if p.message, p.files, err = c.share(res.Result, d.Options.Managed); err != nil {
		res.Discard() // a result that cannot be shared must not stay cached
		return err
	}
	id := c.session.ID
	if err := o.engine.Memory.Add(id, res.Result); err != nil {
		return err
	}
	p.charged = true
	if p.slabs != nil {
		return nil
	}
	if d.Options.Managed && !res.Empty() {
		obj, token, err := o.engine.Objects.Refer(res, d, of, id, c.session.LimitOf(o.objects))
		if err != nil {
			return err
		}
		p.message.Object = &message.ObjectRef{ID: obj.ID, Server: o.server, Token: token}
		p.undo = func() { _, _ = o.engine.ReleaseReference(obj.ID, token, id) }
		o.engine.SetObject(of, obj)
	}
	if !d.Plain() || of != nil {
		p.message.Handles, p.files, p.loans = c.slabs.ShareAgain(&res.Sent, res.Payload.Storages, p.message.Handles, p.files)
	}
	return nil
}

// shareSlabs shares a result in slabs or within the frame. It returns nil if no memory of the result is shared so.
func (c *client) shareSlabs(r *engine.Result) (*transfer.SlabExport, error) {
	slabs, err := c.slabs.Share(r.Payload.Storages)
	if slabs != nil || err != nil || !c.inline {
		return slabs, err
	}
	return c.slabs.ShareInline(r.Payload.Value, r.Payload.Storages)
}

// share prepares a result for sending to the client. kept is true if the server keeps it for the client. The result owns
// the files.
func (c *client) share(res *engine.Result, kept bool) (message.Returned, []*os.File, error) {
	out, files, err := res.Returned(c.session.InProcess())
	for i := 0; err == nil && i < len(out.Handles); i++ {
		err = engine.CheckLasting(out.Handles[i].Kind, kept)
	}
	return out, files, err
}
