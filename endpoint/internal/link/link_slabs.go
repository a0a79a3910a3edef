package link

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// plainBody is how many bytes a request may have that an owner reads in any case: one with more, or with descriptors,
// may be refused unread.
const plainBody = 8 << 10

// withSlabs adds the slabs that go back to a call. The caller puts them back where it is not sent.
func (l *Link) withSlabs(c *Request) (back transfer.SlabReturns) {
	if !l.pools || c.Op != message.OpCall || !c.Calls {
		return back
	}
	if back = l.Slabs.Back(); back.Empty() {
		return back
	}
	if len(c.Files) > 0 {
		l.returnSlabs(back)
		return transfer.SlabReturns{}
	}
	c.Callee.SlabsReturned, c.Callee.SlabsDropped = back.Returned, back.Dropped
	return back
}

// withoutSlabs undoes withSlabs for a call that may be refused unread: the slabs go before it.
func (l *Link) withoutSlabs(c *Request, back transfer.SlabReturns) {
	c.Callee.SlabsReturned, c.Callee.SlabsDropped = nil, nil
	l.returnSlabs(back)
}

// returnSlabs gives slabs back without a call.
func (l *Link) returnSlabs(back transfer.SlabReturns) {
	if !back.Empty() {
		l.Tell(Request{Op: message.OpReturnSlabs, Body: message.ReturnSlabs{Returned: back.Returned, Dropped: back.Dropped}})
	}
}

// slabsGone takes the news of slabs that the owner does not use again. It takes the frame.
func (l *Link) slabsGone(frame wire.Frame) error {
	defer frame.Files.Close()
	var news message.SlabsGone
	if err := message.Unmarshal(frame.Body, &news); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	l.Slabs.Gone(news.Slabs)
	return nil
}
