// Package edge ends connections whose peers make no progress, and limits their number.
//
// A [Listener] accepts connections that have a deadline in both directions. A write fails if the peer reads nothing for the
// stall time. A read fails if the peer sends nothing for the stall time while it owes bytes. Connections may be idle for ever:
// only the protocol knows whether a peer owes bytes, and reports it with [Conn.Expect]. [Protect] does this for the requests of
// an HTTP server, and limits the streams of HTTP/2, which share a connection.
package edge

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Expectation describes the data that the peer of a connection owes.
type Expectation int

// Nothing means that the connection may be idle. More means that each byte extends the deadline of the next one. End means
// that the rest must arrive within the stall time.
const (
	Nothing Expectation = iota
	More
	End
)

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	stall   time.Duration
	remote  net.Addr
	release func() // frees the place in the Listener
	stalled func() // counts the connection

	read, write deadline

	expected Expectation // guarded by read.mu, like until
	until    time.Time   // for End
}

// deadline is that of one direction: the earlier of those of the caller and of progress.
type deadline struct {
	mu               sync.Mutex
	set              func(time.Time) error
	caller, progress time.Time // zero if there is none
	armed            time.Time // when progress was set; zero if it must be set
}

func (d *deadline) applyLocked() error {
	at := d.progress
	if at.IsZero() || !d.caller.IsZero() && d.caller.Before(at) {
		at = d.caller
	}
	return d.set(at)
}

// armLocked sets the deadline of progress.
func (d *deadline) armLocked(now, at time.Time) {
	d.armed, d.progress = now, at
	_ = d.applyLocked() // fails for a closed connection, as the read or write does
}

// again reports whether a write that moved n bytes continues after its error, and extends its deadline.
func (d *deadline) again(n int64, err error, stall time.Duration) bool {
	if n <= 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !d.caller.IsZero() && !now.Before(d.caller) {
		return false
	}
	d.armLocked(now, now.Add(stall))
	return true
}

func newConn(conn net.Conn, stall time.Duration) *Conn {
	c := &Conn{Conn: conn, stall: stall, remote: conn.RemoteAddr(), release: func() {}, stalled: func() {}}
	c.read.set, c.write.set = conn.SetReadDeadline, conn.SetWriteDeadline
	return c
}

// Of returns the Conn below conn, such as that of a TLS connection, or nil.
func Of(conn net.Conn) *Conn {
	for {
		if c, ok := conn.(*Conn); ok {
			return c
		}
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = outer.NetConn()
	}
}

// Expect records what the peer owes. It applies to the reads that follow; only Nothing changes the deadline of a blocked
// read. The stall time of End begins with the first of consecutive calls. A nil Conn has no deadlines.
func (c *Conn) Expect(what Expectation) {
	if c == nil {
		return
	}
	d := &c.read
	d.mu.Lock()
	defer d.mu.Unlock()
	if what == c.expected {
		return
	}
	c.expected = what
	switch {
	case what == End:
		c.until = time.Now().Add(c.stall)
		d.armed = time.Time{} // the next read sets it
	case what == Nothing && !d.progress.IsZero():
		d.armLocked(time.Time{}, time.Time{})
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.armRead()
	n, err := c.Conn.Read(p)
	if err != nil && c.read.expired(err) {
		c.stalled()
	}
	return n, err
}

// expired reports whether err is the end of the deadline of progress.
func (d *deadline) expired(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.progress.IsZero() && !time.Now().Before(d.progress) && (d.caller.IsZero() || d.progress.Before(d.caller))
}

// Stalled counts the connection as stalled, because the peer makes no progress with a part that the caller watches. A nil Conn
// is not counted.
func (c *Conn) Stalled() {
	if c != nil {
		c.stalled()
	}
}

func (c *Conn) armRead() {
	d := &c.read
	d.mu.Lock()
	defer d.mu.Unlock()
	switch c.expected {
	case More:
		c.extendLocked(d)
	case End:
		if d.armed.IsZero() {
			d.armLocked(time.Now(), c.until)
		}
	}
}

// extendLocked moves the deadline of progress. It skips the call if the deadline is recent, because setting it costs more than a
// small write.
func (c *Conn) extendLocked(d *deadline) {
	if now := time.Now(); now.Sub(d.armed) >= c.stall/4 {
		d.armLocked(now, now.Add(c.stall))
	}
}

func (c *Conn) armWrite() {
	c.write.mu.Lock()
	defer c.write.mu.Unlock()
	c.extendLocked(&c.write)
}

// Write implements net.Conn. It fails if the peer reads nothing for the stall time.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.armWrite()
	for {
		wrote, err := c.Conn.Write(p[n:])
		if n += wrote; !c.write.again(int64(wrote), err, c.stall) {
			if err != nil && c.write.expired(err) {
				c.stalled()
			}
			return n, err
		}
	}
}

// ReadFrom implements io.ReaderFrom, so that the kernel sends files.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	kernel, ok := c.Conn.(io.ReaderFrom)
	limited, isLimited := r.(*io.LimitedReader)
	if !ok || !isLimited {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	if _, isFile := limited.R.(*os.File); !isFile {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	c.armWrite()
	for {
		before := limited.N
		wrote, err := kernel.ReadFrom(limited)
		n += wrote
		if before-limited.N != wrote || !c.write.again(wrote, err, c.stall) {
			return n, err // after a partial write, the unsent bytes of r are lost
		}
	}
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.SetWriteDeadline(at))
}

// SetReadDeadline implements net.Conn. A read ends at this deadline or that of Expect, if it is earlier.
func (c *Conn) SetReadDeadline(at time.Time) error {
	c.read.mu.Lock()
	defer c.read.mu.Unlock()
	c.read.caller = at
	return c.read.applyLocked()
}

// SetWriteDeadline implements net.Conn. A write ends at this deadline or that of progress, if it is earlier.
func (c *Conn) SetWriteDeadline(at time.Time) error {
	c.write.mu.Lock()
	defer c.write.mu.Unlock()
	c.write.caller = at
	return c.write.applyLocked()
}

// finish gives the peer the stall time for the rest of a request, unless the caller has set a deadline. The server sets another
// one for the next request.
func (c *Conn) finish() {
	c.Expect(Nothing)
	c.read.mu.Lock()
	defer c.read.mu.Unlock()
	if c.read.caller.IsZero() {
		c.read.caller = time.Now().Add(c.stall)
		_ = c.read.applyLocked() // fails for a closed connection, as the read does
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.release()
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// NetConn returns the connection of the system.
func (c *Conn) NetConn() net.Conn { return c.Conn }
