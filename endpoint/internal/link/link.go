// Package link is a client's end of one connection: it pairs answers and events with requests.
package link

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Link is one connection of a client, from its hello to its end. It pairs answers and events with requests; who dials
// again when it ends is the client's business.
type Link struct {
	conn inproc.Conn
	// Receiver reads the connection, Server is what the owner said of itself.
	Receiver inproc.Receiver
	Server   message.Hello
	// sharesContext sends the contexts of requests with them: the server of this process gets them.
	sharesContext bool

	requests

	// Keeps: the owner keeps memory of arguments, and Known is what the client knows of that.
	Keeps bool
	Known transfer.Known
	// Offers: the owner takes offers of endpoints.
	Offers bool
	// Digests: the owner computes digests of what is published.
	Digests bool
	pools   bool // the owner uses memory of results again

	// Slabs are those of the owner's results that are mapped here.
	Slabs transfer.SlabMappings

	ObjectEvents ObjectEvents // what was heard of destroyed objects
	queue        sendQueue

	Done chan struct{} // closed when the reading goroutine has ended
}

// Handshake exchanges hellos on a fresh connection. It takes conn. The caller starts read.
func Handshake(ctx context.Context, conn *wire.Conn, hello message.Hello) (*Link, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	agreed, err := message.ClientHandshake(conn, hello)
	if !stop() {
		err = fmt.Errorf("%w: %w", status.ErrUnavailable, context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		return nil, handshakeError(err)
	}
	l := makeLink(conn, agreed.Peer)
	l.Keeps = agreed.Has(message.FeatureKeep)
	l.Offers = agreed.Has(message.FeatureOffer)
	l.Digests = agreed.Has(message.FeatureDigests)
	if agreed.Has(message.FeaturePool) {
		l.pools = true
		l.Slabs.Allow(func() { l.returnSlabs(l.Slabs.Back()) })
	}
	l.Receiver = wire.NewReceiver(conn, l.dispatch)
	return l, nil
}

// Peer is the owner's process, as the kernel knows it.
func (l *Link) Peer() wire.Credentials { return l.conn.Peer() }

// makeLink is a link without its receiver.
func makeLink(conn inproc.Conn, server message.Hello) *Link {
	return &Link{
		conn: conn, Server: server, Done: make(chan struct{}),
		requests: requests{pending: map[uint64]*waiter{}, events: map[uint64]func(wire.Frame) error{}, Over: make(chan struct{})},
	}
}

// Read passes frames on while nobody waits for an answer, who would do that himself, until the connection ends.
func (l *Link) Read() {
	defer close(l.Done)
	l.fail(l.Receiver.Run())
}

// dispatch hands a frame to whom it is for. It takes the frame. An error ends the link.
func (l *Link) dispatch(frame wire.Frame) error {
	switch {
	case frame.Kind == wire.KindError && frame.ID == 0: // not to a request: the owner says why it hangs up
		defer frame.Files.Close()
		return status.RemoteError(frame)
	case frame.Kind == wire.KindResponse || frame.Kind == wire.KindError:
		return l.deliver(frame)
	case frame.Kind == wire.KindEvent:
		return l.pass(frame)
	case frame.Kind == wire.KindGoodbye:
		defer frame.Files.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.endLocked(errOwnerLeft)
		return l.overLocked()
	}
	frame.Files.Close()
	return fmt.Errorf("%w: an owner does not send %s frames", status.ErrProtocol, frame.Kind)
}

// deliver gives an answer to the request that waits for it.
func (l *Link) deliver(frame wire.Frame) error {
	l.mu.Lock()
	w := l.pending[frame.ID]
	delete(l.pending, frame.ID)
	if w == nil {
		l.mu.Unlock()
		frame.Files.Close()
		return fmt.Errorf("%w: answer to request %d, which was not sent or was answered before", status.ErrProtocol, frame.ID)
	}
	over := l.overLocked()
	if !w.gone {
		w.answer <- frame // has room: a waiter gets one answer
		l.mu.Unlock()
		return over
	}
	l.mu.Unlock()
	switch {
	case w.done != nil:
		w.done(frame, nil)
	case w.late != nil:
		w.late(frame)
	case w.returns:
		l.dropResult(frame)
	default:
		frame.Files.Close()
	}
	return over
}

// pass gives an event to the request that it belongs to. It takes the frame. One that comes after ignore was on its way
// already.
func (l *Link) pass(frame wire.Frame) error {
	l.mu.Lock()
	item := l.events[frame.ID]
	l.mu.Unlock()
	switch {
	case frame.ID == 0 && l.pools:
		return l.slabsGone(frame)
	case item == nil:
		frame.Files.Close()
		return nil
	}
	return item(frame)
}

// asItem makes a taker of frames of one of events.
func asItem(event func(message.Event)) func(wire.Frame) error {
	return func(frame wire.Frame) error {
		defer frame.Files.Close()
		var e message.Event
		if err := message.Unmarshal(frame.Body, &e); err != nil {
			return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
		}
		if len(e.Name) > catalog.MaxNameBytes { // nor would it be kept
			return fmt.Errorf("%w: event of a name of %d bytes", status.ErrProtocol, len(e.Name))
		}
		event(e)
		return nil
	}
}

// NewPipe is a link to a server of this process, whose hello has come. It takes conn. The caller starts read.
func NewPipe(conn *inproc.Pipe, server message.Hello) *Link {
	l := makeLink(conn, server)
	l.Digests = true
	l.Receiver = inproc.NewReceiver(conn, l.dispatch)
	return l
}

// NewOwn is newPipeLink for the server's own client, whose requests carry their contexts.
func NewOwn(conn *inproc.Pipe, server message.Hello) *Link {
	l := NewPipe(conn, server)
	l.sharesContext = true
	return l
}
