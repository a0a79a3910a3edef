package link

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// plainBody is the size in bytes up to which the owner always reads requests without descriptors. It may refuse other
// requests unread.
const plainBody = 8 << 10

// withSlabs adds returned slabs to a call. If the call is not sent, the caller must put the slabs back.
func (l *Link) withSlabs(c *Request) (back transfer.SlabReturns) {
	if !l.pools || c.Op != message.OpCall || !c.Calls {
		return back
	}
	if back = l.Slabs.TakeReturns(); back.Empty() {
		return back
	}
	if len(c.Files) > 0 {
		l.returnSlabs(back)
		return transfer.SlabReturns{}
	}
	c.Callee.SlabsReturned, c.Callee.SlabsDropped = back.Returned, back.Dropped
	return back
}

// withoutSlabs removes the slabs from a call that may be refused unread, and sends them before it.
func (l *Link) withoutSlabs(c *Request, back transfer.SlabReturns) {
	c.Callee.SlabsReturned, c.Callee.SlabsDropped = nil, nil
	l.returnSlabs(back)
}

// returnSlabs returns slabs to the owner without a call.
func (l *Link) returnSlabs(back transfer.SlabReturns) {
	if !back.Empty() {
		l.SendNoReply(Request{Op: message.OpReturnSlabs, Body: message.ReturnSlabs{Returned: back.Returned, Dropped: back.Dropped}})
	}
}

// slabsGone handles the event that the owner will not reuse some slabs. It takes ownership of the frame.
func (l *Link) slabsGone(frame wire.Frame) error {
	defer frame.Files.Close()
	var news message.SlabsGone
	if err := message.Unmarshal(frame.Body, &news); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	l.Slabs.MarkGone(news.Slabs)
	return nil
}
