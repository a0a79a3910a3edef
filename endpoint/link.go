package endpoint

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// link is one connection of a client, from its hello to its end. It pairs answers and events with requests; who dials again when it ends
// is the client's business.
type link struct {
	conn     inproc.Conn
	receiver inproc.Receiver
	server   message.Hello
	// lendsContext makes the contexts of requests go with them: they are of a server's own process.
	lendsContext bool

	mu      sync.Mutex
	pending map[uint64]*waiter
	spare   []*waiter                         // of requests that were answered
	events  map[uint64]func(wire.Frame) error // by the request that they belong to
	lastID  uint64
	err     error // why the link is of no use for new requests

	// keeps: the owner keeps memory of arguments, and known is what the client knows of that.
	keeps bool
	known transfer.Known

	news   objectNews
	outbox outbox

	over chan struct{} // closed when err is set
	done chan struct{} // closed when the reading goroutine has ended
}

// newLink introduces the client on a fresh connection. It takes conn. The caller starts read.
func newLink(ctx context.Context, conn *wire.Conn, hello message.Hello) (*link, error) {
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
	l.keeps = agreed.Has(message.FeatureKeep)
	l.receiver = wire.NewReceiver(conn, l.dispatch)
	return l, nil
}

// makeLink is a link without its receiver.
func makeLink(conn inproc.Conn, server message.Hello) *link {
	return &link{
		conn: conn, server: server, pending: map[uint64]*waiter{}, events: map[uint64]func(wire.Frame) error{},
		over: make(chan struct{}), done: make(chan struct{}),
	}
}

// read passes frames on while nobody waits for an answer, who would do that himself, until the connection ends.
func (l *link) read() {
	defer close(l.done)
	l.fail(l.receiver.Run())
}

// dispatch hands a frame to whom it is for. It takes the frame. An error ends the link.
func (l *link) dispatch(frame wire.Frame) error {
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
func (l *link) deliver(frame wire.Frame) error {
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

// overLocked ends a link whose owner has said goodbye and owes no answer any more.
func (l *link) overLocked() error {
	if l.err != nil && len(l.pending) == 0 {
		return l.err
	}
	return nil
}

// pass gives an event to the request that it belongs to. It takes the frame. One that comes after ignore was on its way already.
func (l *link) pass(frame wire.Frame) error {
	l.mu.Lock()
	item := l.events[frame.ID]
	l.mu.Unlock()
	if item == nil {
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
