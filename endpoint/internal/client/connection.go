package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Conn is one connection of a client, from its hello to its end. It matches answers and events to requests. It does not
// reconnect.
type Conn struct {
	transport transport.Conn
	// receiver reads the connection. Server is the owner's hello.
	receiver transport.Receiver
	Server   message.Hello
	// sharesContext is set if requests carry their contexts to the server of this process.
	sharesContext bool

	requests

	// keeps is set if the owner keeps argument memory mapped. Known is the client's record of that memory.
	keeps bool
	known transfer.Known
	// offers is set if the owner accepts offers of endpoints.
	offers bool
	// Digests is set if the owner computes digests of published versions.
	Digests bool
	// Conditions is set if the owner compares the current version of a name before it changes it.
	Conditions bool
	// Parts is set if the owner publishes versions of several parts.
	Parts      bool
	placements bool // the owner makes placements
	pools      bool // the owner reuses result memory
	inline     bool // small memory may be within frames
	labels     bool // the owner keeps the labels of tasks

	// slabs are the owner's result slabs that are mapped here.
	slabs transfer.SlabMappings

	objects objectEvents // events of destroyed objects
	queue   sendQueue

	Done chan struct{} // closed when the reading goroutine has ended
}

// handshake exchanges hellos on a new connection. It takes ownership of raw. The caller starts Read.
func handshake(ctx context.Context, raw *wire.Conn, hello message.Hello) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	agreed, err := message.ClientHandshake(raw, hello)
	if !stop() {
		err = ended.Cause(ctx)
	}
	if err != nil && (ctx.Err() != nil || errors.Is(err, wire.ErrTimeout)) {
		err = fmt.Errorf("%w: process %d listens, but does not answer: %w", status.ErrUnavailable, raw.Peer().PID, err)
	}
	if err != nil {
		raw.Close()
		return nil, handshakeError(err)
	}
	conn := newConn(raw, agreed.Peer)
	conn.keeps = agreed.Has(message.FeatureKeep)
	conn.inline = agreed.Has(message.FeatureInline)
	conn.labels = agreed.Has(message.FeatureTaskLabels)
	conn.offers = agreed.Has(message.FeatureOffer)
	conn.Digests = agreed.Has(message.FeatureDigests)
	conn.Conditions = agreed.Has(message.FeatureConditions)
	conn.placements = agreed.Has(message.FeaturePlacements)
	conn.Parts = agreed.Has(message.FeatureParts)
	if agreed.Has(message.FeaturePool) {
		conn.pools = true
		conn.slabs.Allow(func() { conn.returnSlabs(conn.slabs.TakeReturns()) }, agreed.Has(message.FeatureRepeat))
	}
	conn.receiver = wire.NewReceiver(raw, conn.dispatch)
	return conn, nil
}

// Peer returns the credentials of the owner's process as reported by the kernel.
func (c *Conn) Peer() wire.Credentials { return c.transport.Peer() }

// newConn returns a connection without its receiver.
func newConn(transport transport.Conn, server message.Hello) *Conn {
	return &Conn{
		transport: transport, Server: server, Done: make(chan struct{}),
		requests: requests{pending: map[uint64]*waiter{}, events: map[uint64]func(wire.Frame) error{}, over: make(chan struct{})},
	}
}

// read dispatches frames until the connection ends. It reads only while no goroutine waits for an answer, because
// waiters read the connection themselves.
func (c *Conn) read() {
	defer close(c.Done)
	c.fail(c.receiver.Run())
}

// dispatch passes a frame to its request. It takes ownership of the frame. An error ends the connection.
func (c *Conn) dispatch(frame wire.Frame) error {
	switch {
	case frame.Kind == wire.KindError && frame.ID == 0: // not the answer to a request: the reason why the owner closes the connection
		defer frame.Files.Close()
		return status.RemoteError(frame)
	case frame.Kind == wire.KindResponse || frame.Kind == wire.KindError:
		return c.deliver(frame)
	case frame.Kind == wire.KindEvent:
		return c.pass(frame)
	case frame.Kind == wire.KindGoodbye:
		defer frame.Files.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endLocked(errOwnerLeft)
		return c.overLocked()
	}
	frame.Files.Close()
	return fmt.Errorf("%w: an owner does not send %s frames", status.ErrProtocol, frame.Kind)
}

// deliver sends an answer to the waiter of its request.
func (c *Conn) deliver(frame wire.Frame) error {
	c.mu.Lock()
	w := c.pending[frame.ID]
	delete(c.pending, frame.ID)
	if w == nil {
		c.mu.Unlock()
		frame.Files.Close()
		return fmt.Errorf("%w: answer to request %d, which is not in flight", status.ErrProtocol, frame.ID)
	}
	over := c.overLocked()
	if !w.abandoned {
		w.answer <- frame // never blocks: each waiter gets one answer
		c.mu.Unlock()
		return over
	}
	c.mu.Unlock()
	switch {
	case w.done != nil:
		if err := w.done(frame, nil); err != nil {
			return err
		}
	case w.late != nil:
		w.late(frame)
	case w.returns:
		c.dropResult(frame)
	default:
		frame.Files.Close()
	}
	return over
}

// pass sends an event to the receiver of its request. It takes ownership of the frame. It drops events without a
// receiver: they were sent before Ignore took effect.
func (c *Conn) pass(frame wire.Frame) error {
	c.mu.Lock()
	item := c.events[frame.ID]
	c.mu.Unlock()
	switch {
	case frame.ID == 0 && c.pools:
		return c.slabsGone(frame)
	case item == nil:
		frame.Files.Close()
		return nil
	}
	return item(frame)
}

// newPipe returns a connection to a server of this process whose hello was received. It takes ownership of pipe. The
// caller starts Read.
func newPipe(pipe *transport.Pipe, server message.Hello) *Conn {
	conn := newConn(pipe, server)
	conn.Digests, conn.Conditions, conn.Parts, conn.placements, conn.labels = true, true, true, true, true
	conn.receiver = transport.NewPipeReceiver(pipe, conn.dispatch)
	return conn
}

// newOwn is [newPipe] for the server's own client, whose requests carry their contexts.
func newOwn(pipe *transport.Pipe, server message.Hello) *Conn {
	conn := newPipe(pipe, server)
	conn.sharesContext = true
	return conn
}

// handshakeError adds the likely cause to the error of a failed handshake.
func handshakeError(err error) error {
	var refused *message.Error
	if errors.As(err, &refused) {
		return fmt.Errorf("owner: %w", status.DecodeError(refused))
	}
	switch {
	case errors.Is(err, status.ErrProtocol), errors.Is(err, status.ErrUnavailable):
		return err
	case errors.Is(err, message.ErrEncoding):
		return fmt.Errorf("%w: %w", status.ErrProtocol, err)
	}
	return fmt.Errorf("%w: %w", status.ErrUnavailable, err)
}

// fail ends the connection and all its waiters.
func (c *Conn) fail(err error) {
	err = lost(err)
	c.mu.Lock()
	c.endLocked(err) // before the connection is closed, so that a request that fails to send gets the reason
	c.mu.Unlock()
	c.transport.Close()
	var done []func(wire.Frame, error) error
	c.mu.Lock()
	err = c.err
	for _, w := range c.pending {
		switch {
		case w.done != nil:
			done = append(done, w.done)
		case !w.abandoned:
			close(w.answer)
		}
	}
	c.pending, c.events = nil, nil
	c.mu.Unlock()
	c.slabs.Close()
	for _, f := range done {
		_ = f(wire.Frame{}, err) // the connection has ended
	}
}

// lost wraps the error that ended a connection for its users.
func lost(err error) error {
	var remote *message.Error
	switch {
	case errors.Is(err, status.ErrProtocol), errors.As(err, &remote):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: the connection ended", status.ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", status.ErrUnavailable, err)
}

// sendError returns the error of a request that could not be sent. It prefers the reader's error to the writer's: an
// owner sends the reason before it closes the connection.
func (c *Conn) sendError(ctx context.Context, err error) error {
	if errors.Is(err, wire.ErrNotSent) {
		return ended.Cause(ctx)
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		select {
		case <-c.over: // the reader has received everything that was sent
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if errors.Is(err, wire.ErrTooLarge) {
		return status.WithClass(status.ErrLimit, err)
	}
	return lost(err)
}

// farewellTime is the maximum time to send a goodbye. An owner that does not read it will see the end of the
// connection.
const farewellTime = 100 * time.Millisecond

// hangUp sends a goodbye, closes the connection and returns when its goroutines have ended.
func (c *Conn) hangUp() {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	_ = c.transport.SendContext(ctx, wire.KindGoodbye, 0, nil)
	c.cut()
}

// cut closes the connection and returns when its goroutines have ended.
func (c *Conn) cut() {
	c.transport.Close()
	c.wait()
}

// wait returns when the connection and its goroutines have ended.
func (c *Conn) wait() {
	<-c.Done
	c.queue.close()
}
