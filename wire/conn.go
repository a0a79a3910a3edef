// Package wire carries frames and file descriptors between processes of one host over a Unix stream socket.
//
//	conn, err := wire.NewConn(socket, wire.Limits{})
//	err = conn.Send(wire.KindRequest, id, body, files...)
//	frame, err := conn.Receive()
//
// A frame is a 16-byte header, one CBOR item, and its descriptors. Package wire/message defines the items. PROTOCOL.md
// specifies the protocol, protocol.cddl is its schema, fields.json has its tables, and testdata has vectors for other
// implementations.
//
// All input is checked against [Limits] before memory is allocated for it. If a peer violates the protocol, the
// connection ends with [ErrProtocol] and all received descriptors are closed.
//
// A surprise: descriptors arrive with the first byte that they were sent with. A socket that carries them must be read
// by recvmsg alone, so never read the socket of a Conn directly.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// Conn sends and receives frames over a Unix stream socket. Send may be called from any goroutine, Receive from one at
// a time. A waiting Conn holds no buffer. The caller closes it, also after an error.
type Conn struct {
	conn   *net.UnixConn
	limits Limits
	peer   Credentials

	reader reader
	writer writer

	closeOnce sync.Once
	closeErr  error
}

// NewConn takes c, a connected Unix stream socket from which nothing was read, and reads the peer's credentials from
// the kernel. It does not check them: see [Credentials.SameUser] and [ServerHandshake]. On systems other than Linux it
// returns [errors.ErrUnsupported].
func NewConn(c *net.UnixConn, limits Limits) (*Conn, error) {
	conn := &Conn{conn: c, limits: limits.WithDefaults()}
	conn.writer.free.L = &conn.writer.mu
	conn.writer.failed = conn.writeFailed
	conn.reader.flush = conn.flushBeforeRead
	if err := conn.init(); err != nil {
		c.Close()
		return nil, fmt.Errorf("wire connection: %w", err)
	}
	return conn, nil
}

// Peer returns the credentials of the peer.
func (c *Conn) Peer() Credentials { return c.peer }

// Limits returns the limits in force, with defaults filled in.
func (c *Conn) Limits() Limits { return c.limits }

// Send sends one frame with its descriptors. It borrows body, which must be one CBOR item ([Marshal]) or nil for an
// empty map, and files, which must stay open until Send returns. Descriptors beyond the capacity of one frame precede
// it in separate frames.
//
// Frames of concurrent Sends do not mix. Frames of one goroutine stay in order. An error of Send is the outcome of its
// own frame: the peer has not received it and never will. A small frame without descriptors may be left to the goroutine
// that is writing; if that write fails, the connection ends, and the next Send and Receive return the error. After a
// goodbye, Send returns when the kernel has it and everything sent before it.
//
// Send waits only while the socket is full, at most [Limits.WriteTimeout]. After that, or if a write fails within a
// frame, it closes the connection, because the peer could not find the next frame. A frame over the limits is refused
// with [ErrTooLarge], and nothing is sent.
func (c *Conn) Send(kind Kind, id uint64, body []byte, files ...*os.File) error {
	return c.send(context.Background(), kind, id, body, nil, files, true)
}

// SendShared is Send with a body of head followed by tail. Neither is copied, so connections can share a tail.
func (c *Conn) SendShared(kind Kind, id uint64, head, tail []byte, files ...*os.File) error {
	return c.send(context.Background(), kind, id, head, tail, files, true)
}

// SendContext is Send that waits until ctx ends at most. If ctx ends while the socket is full and nothing of the frame
// was sent, it returns [ErrNotSent] with the cause of ctx, and nothing will be sent. If part of it was sent or queued,
// a goroutine sends the rest and the error is nil. The caller owns body and files again in both cases. Once the first
// descriptors of a frame with more than one frame can carry are sent, SendContext waits for the rest. It does not wait
// if ctx has ended.
func (c *Conn) SendContext(ctx context.Context, kind Kind, id uint64, body []byte, files ...*os.File) error {
	return c.send(ctx, kind, id, body, nil, files, true)
}

// SendLater is Send, but a small frame may stay in this process until the next Send, [Conn.Flush] or waiting Receive.
// Servers that answer requests on the receiving goroutine use it to send the answers of requests that arrived together
// in one write.
func (c *Conn) SendLater(kind Kind, id uint64, body []byte, files ...*os.File) error {
	return c.send(context.Background(), kind, id, body, nil, files, false)
}

// Flush sends the frames that [Conn.SendLater] has queued.
func (c *Conn) Flush() error {
	end, err := c.writer.flush()
	if end != nil {
		c.writeFailed(end)
	}
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// flushBeforeRead runs within Receive and must not close the reader.
func (c *Conn) flushBeforeRead() error {
	end, _ := c.writer.flush()
	switch {
	case end == nil:
		return nil
	case peerGone(end):
		c.endReading()
		return nil
	}
	return fmt.Errorf("send: %w", end)
}

// writeFailed ends the connection after a write failed within a frame.
func (c *Conn) writeFailed(err error) {
	if peerGone(err) {
		c.endReading()
		return
	}
	c.Close()
}

// endReading lets Receive return what the peer sent before it stopped reading, and then the end, even if the peer keeps
// its end open. Further requests could not be answered.
func (c *Conn) endReading() { _ = c.conn.CloseRead() }

// peerGone reports whether a write failed because the peer closed its end, before or after it read everything.
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
	end, err := c.writer.send(ctx, kind, id, body, tail, files, now)
	if end != nil {
		c.writeFailed(end)
	}
	if err != nil {
		return fmt.Errorf("send %s frame: %w", kind, err)
	}
	return nil
}

var emptyMap = []byte{0xa0}

// Receive returns the next frame. It waits until the peer sends; [Conn.SetReadDeadline] limits that. The caller owns
// the frame's body and descriptors. The end of the connection between two frames is io.EOF. A frame that takes longer
// than [Limits.FrameTimeout] is [ErrTimeout]. Every error except that of a deadline is final: received descriptors are
// closed, and Receive returns the same error again.
func (c *Conn) Receive() (Frame, error) { return c.reader.receive() }

// ReceiveFirst is Receive for the first frame of a connection, which must be a hello. A first frame over [MaxHello]
// bytes, or with descriptors, is refused with [ErrProtocol] before memory is allocated.
func (c *Conn) ReceiveFirst() (Frame, error) { return c.reader.receiveFirst() }

// Buffered reports whether Receive would return without waiting for the peer, because a whole frame or the end of the
// connection has been read.
func (c *Conn) Buffered() bool { return c.reader.buffered() }

// SetReadDeadline limits Receive as [net.Conn] does, including one that is waiting. The zero time removes the limit.
// After the deadline, Receive fails with [os.ErrDeadlineExceeded]. A later Receive continues without loss, even within
// a frame.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.conn.SetReadDeadline(t) }

// CloseWrite ends the sending side: the peer's Receive returns io.EOF. Receive continues.
func (c *Conn) CloseWrite() error { return c.conn.CloseWrite() }

// Close closes the socket and every received descriptor that Receive has not returned. Receive then fails with
// [net.ErrClosed]. A second Close returns the result of the first.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.closeErr = c.conn.Close()
		c.writer.close()
		c.reader.close()
	})
	return c.closeErr
}

// Credentials identify the process that created the peer's socket. The kernel recorded them at connect or listen. The
// peer cannot forge them, but it may have passed the socket to another process since.
type Credentials struct {
	// PID is the process id in this PID namespace, or 0 if the process is not visible from it.
	PID int32
	// UID and GID are the effective user and group. An id without a mapping in this user namespace is [NoID].
	UID, GID uint32
}

// NoID is the UID or GID of a peer whose id the kernel cannot express in this user namespace. No user or group has it. The
// kernel reports such a peer with the overflow id, usually 65534, which a process of this namespace may have too. In a
// namespace without a mapping for every id, the overflow id is therefore never accepted as a user.
const NoID = userns.None

// Mapped returns nil if the peer's user has an id in this user namespace, and otherwise an error with the cause and the
// remedy.
func (c Credentials) Mapped() error {
	if c.UID == NoID {
		return errUnmapped
	}
	return nil
}

// Trusted reports whether the peer runs as the effective user of this process or as one of others. A user without a
// mapping is never trusted.
func (c Credentials) Trusted(others []uint32) bool {
	return c.SameUser() || c.UID != NoID && slices.Contains(others, c.UID)
}

// SameUser reports whether the peer runs as the effective user of this process. Both sides usually require it: memory
// and names are not for other users, root included.
func (c Credentials) SameUser() bool { return userns.Self(c.UID) }

// unmappedError is evaluated when it is printed, because the overflow id can be configured.
type unmappedError struct{}

var errUnmapped error = unmappedError{}

func (unmappedError) Error() string { return userns.Unmapped("the peer") }
