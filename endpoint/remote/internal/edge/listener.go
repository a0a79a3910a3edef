package edge

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Listener closes connections over a limit immediately, so that their clients do not wait in vain.
type Listener struct {
	net.Listener
	// Remote, if not nil, returns the remote address of a connection.
	Remote func(net.Conn) net.Addr

	stall   time.Duration
	max     int64
	open    atomic.Int64
	refused atomic.Uint64
}

// Listen returns a listener of at most max connections at a time, which end after the stall time without progress. 0 means no
// limit of connections. Closing it closes l.
func Listen(l net.Listener, max int, stall time.Duration) *Listener {
	return &Listener{Listener: l, max: int64(max), stall: stall}
}

// Open returns the number of open connections.
func (l *Listener) Open() int64 { return l.open.Load() }

// Refused returns the number of connections over the limit, since the start.
func (l *Listener) Refused() uint64 { return l.refused.Load() }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
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
		if l.Remote != nil {
			c.remote = l.Remote(conn)
		}
		return c, nil
	}
}
