package grpcguard

import (
	"bufio"
	"container/list"
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
)

// readBuffer is the size of a connection's read buffer, which replaces the buffer of the transport.
const readBuffer = 32 << 10

// conn is a connection that counts DATA frames.
type conn struct {
	net.Conn
	edge   *edge.Conn // below Conn; nil without a Listener of package edge
	guard  *Guard
	reader *bufio.Reader
	frames scanner // used only by the reading goroutine

	written  outgoing      // used only by the writing goroutine
	draining chan struct{} // used only by the reading goroutine: closed when no answers are left

	mu          sync.Mutex
	streams     map[uint32]*stream
	answers     map[uint32]*stream // calls whose answer is not entirely written
	injected    []byte             // frames of reset that Read returns
	interrupted bool               // reset has interrupted Read
	lost        bool               // the client has left; there are no new answers
	drained     chan struct{}      // closed when no answers are left; nil without waiters

	unproven *list.Element // guarded by guard.mu; nil once a known client has used the connection
}

// Read implements net.Conn. It returns the frames of reset between those of the client.
func (c *conn) Read(p []byte) (int, error) {
	for {
		if !c.frames.partial() {
			if n := c.takeInjected(p); n > 0 {
				return n, nil
			}
		}
		n, err := c.reader.Read(p)
		if n == 0 && err != nil {
			if c.wasInterrupted(err) || !c.frames.partial() && c.lose() {
				continue
			}
			c.drain()
			return 0, err
		}
		c.frames.scan(p[:n], c.find)
		switch {
		case !c.frames.partial():
			c.edge.Expect(edge.Nothing)
		case c.frames.data: // the rate of messages limits DATA frames
			c.edge.Expect(edge.More)
		default:
			c.edge.Expect(edge.End)
		}
		return n, nil // the next read returns the error
	}
}

// Write implements net.Conn. It returns no error: the transport ends the calls in order after Read has failed.
func (c *conn) Write(p []byte) (int, error) {
	c.written.scan(p, c.wroteData, c.wrote)
	if _, err := c.Conn.Write(p); err != nil {
		_ = c.Conn.Close() // Read fails
	}
	return len(p), nil
}

func (c *conn) find(id uint32) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// open records the call whose headers the transport is processing, and returns its stream id. It returns false if no
// header block precedes the call, or its stream is known: its messages could not be charged.
func (c *conn) open(s *stream) (id uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id = c.frames.opening
	if id == 0 || c.streams[id] != nil {
		return 0, false
	}
	c.streams[id] = s
	return id, true
}

func (c *conn) forget(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, id)
}

// each calls f for each call.
func (c *conn) each(f func(*stream)) {
	c.mu.Lock()
	streams := make([]*stream, 0, len(c.streams))
	for _, s := range c.streams {
		streams = append(streams, s)
	}
	c.mu.Unlock()
	for _, s := range streams {
		f(s)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.guard.remove(c)
	return c.Conn.Close()
}

// AuthInfo is the AuthInfo of a guarded connection. It wraps the AuthInfo of the credentials.
type AuthInfo struct {
	credentials.AuthInfo
	conn *conn
}

// Inner returns the AuthInfo of the credentials for p, or nil if there is none.
func Inner(p *peer.Peer) credentials.AuthInfo {
	if own, ok := p.AuthInfo.(AuthInfo); ok {
		return own.AuthInfo
	}
	return p.AuthInfo
}

func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		if own, ok := p.AuthInfo.(AuthInfo); ok {
			return own.conn
		}
	}
	return nil
}

// guarded wraps credentials so that their connections are guarded.
type guarded struct {
	credentials.TransportCredentials
	guard *Guard
}

// ServerHandshake implements credentials.TransportCredentials.
func (g guarded) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	plain, info, err := g.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := &conn{Conn: plain, edge: edge.Of(raw), guard: g.guard, reader: bufio.NewReaderSize(plain, readBuffer), streams: make(map[uint32]*stream)}
	c.frames.skip, c.frames.reset = prefaceBytes, c.cancelled
	c.edge.Expect(edge.End)
	g.guard.add(c)
	return c, AuthInfo{info, c}, nil
}

// Clone implements credentials.TransportCredentials.
func (g guarded) Clone() credentials.TransportCredentials {
	return guarded{g.TransportCredentials.Clone(), g.guard}
}
