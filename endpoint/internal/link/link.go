// Package link implements a client's end of one connection. It matches answers and events to requests.
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

// Link is one connection of a client, from its hello to its end. It matches answers and events to requests. It does not
// reconnect.
type Link struct {
	conn inproc.Conn
	// Receiver reads the connection. Server is the owner's hello.
	Receiver inproc.Receiver
	Server   message.Hello
	// sharesContext is set if requests carry their contexts to the server of this process.
	sharesContext bool

	requests

	// Keeps is set if the owner keeps argument memory mapped. Known is the client's record of that memory.
	Keeps bool
	Known transfer.Known
	// Offers is set if the owner accepts offers of endpoints.
	Offers bool
	// Digests is set if the owner computes digests of published versions.
	Digests bool
	pools   bool // the owner reuses result memory

	// Slabs are the owner's result slabs that are mapped here.
	Slabs transfer.SlabMappings

	ObjectEvents ObjectEvents // events of destroyed objects
	queue        sendQueue

	Done chan struct{} // closed when the reading goroutine has ended
}

// Handshake exchanges hellos on a new connection. It takes ownership of conn. The caller starts Read.
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
		l.Slabs.Allow(func() { l.returnSlabs(l.Slabs.TakeReturns()) })
	}
	l.Receiver = wire.NewReceiver(conn, l.dispatch)
	return l, nil
}

// Peer returns the credentials of the owner's process as reported by the kernel.
func (l *Link) Peer() wire.Credentials { return l.conn.Peer() }

// makeLink returns a link without its receiver.
func makeLink(conn inproc.Conn, server message.Hello) *Link {
	return &Link{
		conn: conn, Server: server, Done: make(chan struct{}),
		requests: requests{pending: map[uint64]*waiter{}, events: map[uint64]func(wire.Frame) error{}, Over: make(chan struct{})},
	}
}

// Read dispatches frames until the connection ends. It reads only while no goroutine waits for an answer, because
// waiters read the connection themselves.
func (l *Link) Read() {
	defer close(l.Done)
	l.fail(l.Receiver.Run())
}

// dispatch passes a frame to its request. It takes ownership of the frame. An error ends the link.
func (l *Link) dispatch(frame wire.Frame) error {
	switch {
	case frame.Kind == wire.KindError && frame.ID == 0: // not the answer to a request: the reason why the owner closes the connection
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

// deliver sends an answer to the waiter of its request.
func (l *Link) deliver(frame wire.Frame) error {
	l.mu.Lock()
	w := l.pending[frame.ID]
	delete(l.pending, frame.ID)
	if w == nil {
		l.mu.Unlock()
		frame.Files.Close()
		return fmt.Errorf("%w: answer to request %d, which is not in flight", status.ErrProtocol, frame.ID)
	}
	over := l.overLocked()
	if !w.abandoned {
		w.answer <- frame // never blocks: each waiter gets one answer
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

// pass sends an event to the receiver of its request. It takes ownership of the frame. It drops events without a
// receiver: they were sent before Ignore took effect.
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

// asItem adapts a receiver of events to one of frames.
func asItem(event func(message.Event)) func(wire.Frame) error {
	return func(frame wire.Frame) error {
		defer frame.Files.Close()
		var e message.Event
		if err := message.Unmarshal(frame.Body, &e); err != nil {
			return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
		}
		if len(e.Name) > catalog.MaxNameBytes { // such a name cannot be published
			return fmt.Errorf("%w: event for a name of %d bytes", status.ErrProtocol, len(e.Name))
		}
		event(e)
		return nil
	}
}

// NewPipe returns a link to a server of this process whose hello was received. It takes ownership of conn. The caller
// starts Read.
func NewPipe(conn *inproc.Pipe, server message.Hello) *Link {
	l := makeLink(conn, server)
	l.Digests = true
	l.Receiver = inproc.NewReceiver(conn, l.dispatch)
	return l
}

// NewOwn is [NewPipe] for the server's own client, whose requests carry their contexts.
func NewOwn(conn *inproc.Pipe, server message.Hello) *Link {
	l := NewPipe(conn, server)
	l.sharesContext = true
	return l
}
