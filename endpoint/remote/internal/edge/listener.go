package edge

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Listener closes connections over a limit immediately, so that their clients do not wait in vain.
type Listener struct {
	net.Listener
	// Remote, if not nil, returns the remote address of a connection.
	Remote func(net.Conn) net.Addr
	// Proxy, if not nil, reports whether an address is that of a proxy, whose connections begin with a header of the PROXY
	// protocol. A connection without a correct one is closed. It must be set before Accept.
	Proxy func(netip.Addr) bool

	stall     time.Duration
	max       int64
	open      atomic.Int64
	refused   atomic.Uint64
	stalled   atomic.Uint64
	malformed atomic.Uint64

	start    sync.Once
	accepted chan accepted // connections whose header was read; used only with Proxy
	closed   chan struct{}
	mu       sync.Mutex
	over     bool               // closed is closed
	pending  map[*Conn]struct{} // connections whose header is being read
}

// accepted is a result of Accept.
type accepted struct {
	conn net.Conn
	err  error
}

// Listen returns a listener of at most max connections at a time, which end after the stall time without progress. 0 means no
// limit of connections. Closing it closes l.
func Listen(l net.Listener, max int, stall time.Duration) *Listener {
	return &Listener{Listener: l, max: int64(max), stall: stall, accepted: make(chan accepted), closed: make(chan struct{}), pending: make(map[*Conn]struct{})}
}

// Open returns the number of open connections.
func (l *Listener) Open() int64 { return l.open.Load() }

// Refused returns the number of connections over the limit, since the start.
func (l *Listener) Refused() uint64 { return l.refused.Load() }

// Stalled returns the number of connections with a transfer whose peer made no progress for the stall time, since the start.
func (l *Listener) Stalled() uint64 { return l.stalled.Load() }

// Malformed returns the number of connections of proxies without a correct header, since the start.
func (l *Listener) Malformed() uint64 { return l.malformed.Load() }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	if l.Proxy == nil {
		c, err := l.accept()
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	l.start.Do(func() { go l.readHeaders() })
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// accept returns the next connection within the limit.
func (l *Listener) accept() (*Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if n := l.open.Add(1); l.max > 0 && n > l.max {
			l.open.Add(-1)
			l.refused.Add(1)
			_ = conn.Close() // best effort: the connection was not used
			continue
		}
		c := newConn(conn, l.stall)
		c.release = sync.OnceFunc(func() { l.open.Add(-1) })
		c.stalled = sync.OnceFunc(func() { l.stalled.Add(1) })
		if !l.fromProxy(c) && l.Remote != nil {
			c.remote = l.Remote(conn)
		}
		return c, nil
	}
}

func (l *Listener) fromProxy(c *Conn) bool {
	at, ok := c.Conn.RemoteAddr().(*net.TCPAddr)
	return ok && l.Proxy != nil && l.Proxy(at.AddrPort().Addr().Unmap().WithZone(""))
}

// readHeaders accepts connections until the listener is closed. A proxy that delays its header delays no other connection.
func (l *Listener) readHeaders() {
	for {
		c, err := l.accept()
		switch {
		case err != nil:
			if !l.deliver(accepted{nil, err}) || errors.Is(err, net.ErrClosed) {
				return
			}
		case !l.fromProxy(c):
			l.deliver(accepted{c, nil})
		case !l.begin(c):
			_ = c.Close() // best effort: the connection was not used
		default:
			go func() {
				err := c.acceptProxy()
				l.mu.Lock()
				delete(l.pending, c)
				l.mu.Unlock()
				if err != nil {
					l.malformed.Add(1)
					_ = c.Close() // best effort: the connection was not used
					return
				}
				l.deliver(accepted{c, nil})
			}()
		}
	}
}

// begin records a connection whose header is being read. It returns false if the listener is closed.
func (l *Listener) begin(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.pending[c] = struct{}{}
	}
	return !l.over
}

// deliver passes a result to Accept. It closes the connection if the listener is closed.
func (l *Listener) deliver(a accepted) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.closed:
		if a.conn != nil {
			_ = a.conn.Close() // best effort: the connection was not used
		}
		return false
	}
}

// Close implements net.Listener. It closes connections that Accept has not returned.
func (l *Listener) Close() error {
	l.mu.Lock()
	if !l.over {
		l.over = true
		close(l.closed)
	}
	for c := range l.pending {
		_ = c.Close() // best effort: the connection was not used
	}
	l.mu.Unlock()
	return l.Listener.Close()
}
