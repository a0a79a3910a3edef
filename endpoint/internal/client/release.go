package client

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The methods in this file release resources without waiting for the owner's answer.

// releaseLate releases the lease of an answer whose caller has left.
func (c *Conn) releaseLate(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.Acquired
	if frame.Kind == wire.KindResponse && message.Unmarshal(frame.Body, &got) == nil {
		c.release(got.Lease, frame.ID)
	}
}

// release releases a lease without waiting for the answer. It may run in the goroutine that reads the connection.
func (c *Conn) release(lease, request uint64) {
	c.ignore(request)
	c.sendNoReply(Request{Op: message.OpRelease, Body: message.Release{Leases: []uint64{lease}}})
}

// dropResult releases the resources of an answer whose caller has left.
func (c *Conn) dropResult(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.Returned
	if frame.Kind != wire.KindResponse || message.UnmarshalPayload(frame.Body, &got) != nil {
		return
	}
	c.slabs.Refuse(got.Handles)
	if got.Object != nil {
		c.releaseObject(got.Object.ID, got.Object.Token)
	}
}

// cancelLateTask cancels a task whose submitter left before the answer. It takes ownership of the answer's frame.
func (c *Conn) cancelLateTask(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.TaskInfo
	if frame.Kind == wire.KindResponse && message.UnmarshalPayload(frame.Body, &got) == nil {
		c.cancelTask(got.ID)
	}
}

// cancelTask cancels a task without waiting for the answer.
func (c *Conn) cancelTask(id string) {
	c.sendNoReply(Request{Op: message.OpTaskCancel, Body: message.Task{ID: id}})
}

// releaseObject releases a reference to an object without waiting for the answer.
func (c *Conn) releaseObject(id string, token uint64) {
	c.sendNoReply(Request{Op: message.OpObjectRelease, Body: releaseOne(id, token)})
}

// releaseLateObject releases the reference of an answer that is no longer needed. It takes ownership of the frame.
func (c *Conn) releaseLateObject(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.ObjectInfo
	if message.UnmarshalPayload(frame.Body, &got) == nil {
		c.releaseObject(got.ID, got.Token)
	}
}

// releaseOne returns the request that releases one reference. Token 0 is for servers without reference tokens.
func releaseOne(id string, token uint64) message.ReleaseObjects {
	ask := message.ReleaseObjects{IDs: []string{id}}
	if token != 0 {
		ask.Tokens = []uint64{token}
	}
	return ask
}

// unwatch stops the events of a watch and ends it without waiting for the answer.
func (c *Conn) unwatch(id uint64) {
	c.receiver.Listen(-1)
	c.endWatch(id)
}

// endWatch sends the request that ends a watch.
func (c *Conn) endWatch(id uint64) {
	c.ignore(id)
	c.sendNoReply(Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: id}})
}

// withdrawOffer sends the request that ends an offer. Calls that arrive until the owner has received it are answered.
func (c *Conn) withdrawOffer(id uint64) {
	c.sendNoReply(Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: id}})
}

// withdrawLateOffer ends an offer whose answer is no longer needed. It takes ownership of the answer's frame.
func (c *Conn) withdrawLateOffer(frame wire.Frame) {
	frame.Files.Close()
	c.withdrawOffer(frame.ID)
}

// endLateWatch ends a watch whose caller left before the answer. It takes ownership of the answer's frame.
func (c *Conn) endLateWatch(frame wire.Frame) {
	defer frame.Files.Close()
	if frame.Kind == wire.KindResponse {
		c.endWatch(frame.ID)
	}
}

// plainBody is the size in bytes up to which the owner always reads requests without descriptors. It may refuse other
// requests unread.
const plainBody = 8 << 10

// withSlabs adds returned slabs to a call. If the call is not sent, the caller must put the slabs back.
func (c *Conn) withSlabs(req *Request) (back transfer.SlabReturns) {
	if !c.pools || req.Op != message.OpCall || !req.Calls {
		return back
	}
	if back = c.slabs.TakeReturns(); back.Empty() {
		return back
	}
	if len(req.Files) > 0 {
		c.returnSlabs(back)
		return transfer.SlabReturns{}
	}
	req.Callee.SlabsReturned, req.Callee.SlabsDropped = back.Returned, back.Dropped
	return back
}

// withoutSlabs removes the slabs from a call that may be refused unread, and sends them before it.
func (c *Conn) withoutSlabs(req *Request, back transfer.SlabReturns) {
	req.Callee.SlabsReturned, req.Callee.SlabsDropped = nil, nil
	c.returnSlabs(back)
}

// returnSlabs returns slabs to the owner without a call.
func (c *Conn) returnSlabs(back transfer.SlabReturns) {
	if !back.Empty() {
		c.sendNoReply(Request{Op: message.OpReturnSlabs, Body: message.ReturnSlabs{Returned: back.Returned, Dropped: back.Dropped}})
	}
}

// slabsGone handles the event that the owner will not reuse some slabs. It takes ownership of the frame.
func (c *Conn) slabsGone(frame wire.Frame) error {
	defer frame.Files.Close()
	var news message.SlabsGone
	if err := message.Unmarshal(frame.Body, &news); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	c.slabs.MarkGone(news.Slabs)
	return nil
}
