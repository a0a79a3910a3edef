package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Conn sends and receives frames over a Unix stream socket. Send may be called from any goroutine, Receive from one at
// a time. A waiting Conn holds no buffer. Close it when done, also after an error.
type Conn struct {
	conn   *net.UnixConn
	limits Limits
	peer   Credentials

	reader reader
	writer writer

	closeOnce sync.Once
	closeErr  error
}

// NewConn takes c, a connected Unix stream socket of which nothing was read yet, and asks the kernel who is at the
// other end. It checks neither that nor anything else: see [Credentials.SameUser] and [ServerHandshake]. On systems
// other than Linux it fails with [errors.ErrUnsupported].
func NewConn(c *net.UnixConn, limits Limits) (*Conn, error) {
	conn := &Conn{conn: c, limits: limits.withDefaults()}
	conn.writer.free.L = &conn.writer.mu
	conn.writer.failed = conn.writeFailed
	conn.reader.flush = conn.flushBeforeRead
	if err := conn.init(); err != nil {
		c.Close()
		return nil, fmt.Errorf("wire connection: %w", err)
	}
	return conn, nil
}

// Peer describes the process at the other end.
func (c *Conn) Peer() Credentials { return c.peer }

// Limits are the limits in force, defaults filled in.
func (c *Conn) Limits() Limits { return c.limits }

// Send sends one frame with its descriptors. It borrows body, which must be one CBOR item ([Marshal]) or nil for an
// empty map, and files, which must stay open until it returns. More descriptors than a frame can carry go ahead in
// frames of their own.
//
// Frames of concurrent Sends do not mix, and those of one goroutine stay in order. A small frame without descriptors
// may be left to the goroutine that is writing at that moment; if that write fails, the next Send and Receive say so. A
// goodbye is with the kernel when Send returns, and so is everything sent before it.
//
// Send waits only while the socket is full, and no longer than [Limits.WriteTimeout]: then, or when a write fails for
// another reason within a frame, it closes the connection, since the peer could not find the next frame. What is larger
// than the limits is [ErrTooLarge] and sends nothing.
func (c *Conn) Send(kind Kind, id uint64, body []byte, files ...*os.File) error {
	return c.send(context.Background(), kind, id, body, nil, files, true)
}

// SendShared is Send of a body that is head followed by tail. Neither is copied, so a tail that many connections are
// sent is in memory once.
func (c *Conn) SendShared(kind Kind, id uint64, head, tail []byte, files ...*os.File) error {
	return c.send(context.Background(), kind, id, head, tail, files, true)
}

// SendContext is Send that waits no longer than ctx lasts. When ctx ends while the socket is full, there are two cases.
// Nothing of the frame was sent, and nothing will be: that is [ErrNotSent], with the cause of ctx. Or some of it was,
// or it is among the frames that go out next: then a goroutine sends the rest, and the error is nil. Body and files are
// the caller's again in both cases. (A frame with more descriptors than one can carry is waited for once the first of
// them are on their way.) A ctx that has ended makes a SendContext that does not wait at all.
func (c *Conn) SendContext(ctx context.Context, kind Kind, id uint64, body []byte, files ...*os.File) error {
	return c.send(ctx, kind, id, body, nil, files, true)
}

// SendLater is Send, except that a small frame may stay in this process until the next Send or [Conn.Flush], or until
// Receive has to wait. It is for servers that answer requests in the goroutine that receives them: the answers to
// requests that came together go out together.
func (c *Conn) SendLater(kind Kind, id uint64, body []byte, files ...*os.File) error {
	return c.send(context.Background(), kind, id, body, nil, files, false)
}

// Flush sends what [Conn.SendLater] left.
func (c *Conn) Flush() error {
	fatal, err := c.writer.flush()
	if fatal {
		c.writeFailed(err)
	}
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// flushBeforeRead runs within Receive, so it must not close the reader.
func (c *Conn) flushBeforeRead() error {
	fatal, err := c.writer.flush()
	switch {
	case !fatal:
		return nil
	case peerGone(err):
		c.endReading()
		return nil
	}
	return fmt.Errorf("send: %w", err)
}

// writeFailed ends the connection after a write that failed within a frame.
func (c *Conn) writeFailed(err error) {
	if peerGone(err) {
		c.endReading()
		return
	}
	c.Close()
}

// endReading lets Receive get what a peer sent before it stopped reading, and then the end, also from a peer that has
// not closed its end altogether: nobody could answer what else it sends.
func (c *Conn) endReading() { _ = c.conn.CloseRead() }

// peerGone reports whether a write failed because the peer has closed its end, before or after it read all that it was
// sent.
func peerGone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

func (c *Conn) send(ctx context.Context, kind Kind, id uint64, body, tail []byte, files []*os.File, now bool) error {
	if body == nil {
		body = emptyMap
	}
	switch size := int64(len(body)) + int64(len(tail)); {
	case !kind.carries() || len(body) == 0:
		return fmt.Errorf("send %s frame of %d bytes: %w", kind, size, os.ErrInvalid)
	case size > c.limits.Frame:
		return fmt.Errorf("send %s frame of %d bytes, the limit is %d: %w", kind, size, c.limits.Frame, ErrTooLarge)
	case len(files) > c.limits.Files:
		return fmt.Errorf("send %s frame with %d descriptors, the limit is %d: %w", kind, len(files), c.limits.Files, ErrTooLarge)
	}
	fatal, err := c.writer.send(ctx, kind, id, body, tail, files, now)
	if fatal {
		c.writeFailed(err)
	}
	if err != nil {
		return fmt.Errorf("send %s frame: %w", kind, err)
	}
	return nil
}

var emptyMap = []byte{0xa0}

// Receive returns the next frame. It waits for as long as the peer is silent; [Conn.SetReadDeadline] bounds that. The
// frame's body and descriptors are the caller's. Between two frames the end of the connection is io.EOF. A frame that
// stops for longer than [Limits.FrameTimeout] is [ErrTimeout]. Any error but that of a deadline is final: descriptors
// that came are closed, and Receive returns the same error again.
func (c *Conn) Receive() (Frame, error) { return c.reader.receive() }

// ReceiveFirst is Receive for the first frame of a connection, which is a hello if all is well: one with more than
// [MaxHello] bytes, or with descriptors, is refused with [ErrProtocol] before memory is allocated.
func (c *Conn) ReceiveFirst() (Frame, error) { return c.reader.receiveFirst() }

// Buffered tells that Receive would return without waiting for the peer, because a whole frame, or what ended the
// connection, is there.
func (c *Conn) Buffered() bool { return c.reader.buffered() }

// SetReadDeadline bounds Receive as [net.Conn] does, one that waits already included; the zero time ends the bound. A
// deadline that passes makes Receive fail with [os.ErrDeadlineExceeded]. Nothing is lost: a later Receive goes on,
// within a frame too.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.conn.SetReadDeadline(t) }

// CloseWrite says that nothing more is sent: the peer's Receive gets io.EOF. Receive goes on.
func (c *Conn) CloseWrite() error { return c.conn.CloseWrite() }

// Close closes the socket and every descriptor that was received but not yet returned by Receive, which ends with
// [net.ErrClosed]. A second Close returns what the first did.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.closeErr = c.conn.Close()
		c.writer.close()
		c.reader.close()
	})
	return c.closeErr
}
