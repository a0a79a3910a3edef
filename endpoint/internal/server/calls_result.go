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
		p.engine.Memory.Remove(p.client.session.ID, p.result.Result)
		p.result.Release()
		p.result = engine.ResultRef{}
	}
}

// deliver sets p to the reply for a result, and takes the caller's reference to it. For a managed result it adds a
// reference for the client. of is the outcome of the task that made the result, or nil.
func (o *callOperations) deliver(p *returned, c *client, d *engine.Definition, res engine.ResultRef, cached bool, of *engine.Outcome) (session.Reply, error) {
	if d.Plain() && of == nil {
		slabs, err := c.shareSlabs(res.Result)
		if slabs != nil || err != nil {
			return o.deliverSlabs(p, c, res, slabs, err)
		}
	}
	out, files, err := c.share(res.Result, d.Options.Managed)
	if err != nil {
		res.Discard() // a result that cannot be shared must not stay cached
		res.Release()
		return nil, err
	}
	out.Cached = cached
	id := c.session.ID
	if err := o.engine.Memory.Add(id, res.Result); err != nil {
		res.Release()
		return nil, err
	}
	var undo func()
	if d.Options.Managed && !res.Empty() {
		obj, token, err := o.engine.Objects.Refer(res, d, of, id, c.session.LimitOf(o.objects))
		if err != nil {
			o.engine.Memory.Remove(id, res.Result)
			res.Release()
			return nil, err
		}
		out.Object = &message.ObjectRef{ID: obj.ID, Server: o.server, Token: token}
		o.engine.SetObject(of, obj)
		undo = func() { _, _ = o.engine.ReleaseReference(obj.ID, token, id) }
	}
	var loans transfer.Loans
	if !d.Plain() || of != nil {
		out.Handles, files, loans = c.slabs.ShareAgain(&res.Sent, res.Payload.Storages, out.Handles, files)
	}
	*p = returned{engine: o.engine, result: res, client: c, message: out, files: files, loans: loans, undo: undo}
	return p, nil
}

// shareSlabs shares a result in slabs or within the frame. It returns nil if no memory of the result is shared so.
func (c *client) shareSlabs(r *engine.Result) (*transfer.SlabExport, error) {
	slabs, err := c.slabs.Share(r.Payload.Storages)
	if slabs != nil || err != nil || !c.inline {
		return slabs, err
	}
	return c.slabs.ShareInline(r.Payload.Value, r.Payload.Storages)
}

// deliverSlabs is deliver for a result in slabs or within the frame. It takes ownership of the slabs too.
func (o *callOperations) deliverSlabs(p *returned, c *client, res engine.ResultRef, slabs *transfer.SlabExport, err error) (session.Reply, error) {
	for i := 0; err == nil && i < len(slabs.Handles); i++ {
		err = engine.CheckLasting(slabs.Handles[i].Kind, false)
	}
	if err == nil {
		err = o.engine.Memory.Add(c.session.ID, res.Result)
	}
	if err != nil {
		if slabs != nil {
			slabs.MarkUnsent()
			slabs.Close()
		}
		res.Release()
		return nil, err
	}
	out := message.Returned{Value: res.Payload.Value, Handles: slabs.Handles}
	*p = returned{engine: o.engine, result: res, client: c, message: out, files: slabs.Files, slabs: slabs}
	return p, nil
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
