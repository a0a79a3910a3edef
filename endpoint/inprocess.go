package endpoint

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A client finds out that its server is in its own process by the socket file: the servers of this process are known by those they made, from
// the moment when they can be dialled until they do not accept any more. A file is known by device and inode, so neither another name for it
// nor a file that has taken its place misleads: as long as a socket listens, the kernel keeps the inode that it is bound to. A listener that
// was handed over (systemd) was bound by another process, and is dialled like that of a stranger.

var neighbours struct {
	mu sync.Mutex
	of map[unixsock.FileID]*Server
}

// announce lets clients of this process find the server.
func (s *Server) announce() {
	id := s.sock.ID()
	if id == (unixsock.FileID{}) {
		return
	}
	neighbours.mu.Lock()
	defer neighbours.mu.Unlock()
	if neighbours.of == nil {
		neighbours.of = map[unixsock.FileID]*Server{}
	}
	neighbours.of[id] = s
}

// conceal ends that. It comes before the socket is closed: until then no other can have its inode.
func (s *Server) conceal() {
	if s.sock == nil {
		return
	}
	neighbours.mu.Lock()
	defer neighbours.mu.Unlock()
	if id := s.sock.ID(); neighbours.of[id] == s {
		delete(neighbours.of, id)
	}
}

// neighbour is the server of this process that a client which dials the path would reach; nil for that of another process, or of none.
func neighbour(path string) *Server {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	neighbours.mu.Lock()
	defer neighbours.mu.Unlock()
	return neighbours.of[unixsock.FileOf(info)]
}

// connect begins a session for a client of this process, as accepting it and the handshake do for others: when the server serves. The caller
// closes the pipe.
func (s *Server) connect(ctx context.Context, hello message.Hello, limits wire.Limits) (*inproc.Pipe, error) {
	select {
	case <-s.accepting:
	case <-s.stopping:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", status.ErrUnavailable, context.Cause(ctx))
	}
	mine, theirs := inproc.New(s.opts.Limits.Wire, limits)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, fmt.Errorf("%w on %s: its owner has ended", status.ErrUnavailable, s.opts.Socket)
	}
	ses := newSession(s, mine, s.nextID+1)
	ses.surplus = s.clientsLocked() >= s.opts.Limits.Clients
	if err := ses.allowed(); err != nil {
		return nil, err
	}
	s.nextID++
	ses.label, ses.greeted = shortLabel(hello.Label), true
	s.sessions[ses.id] = ses
	go ses.read()
	return theirs, nil
}

// connectSelf begins the session of the server's own client, which does not wait for the server to serve and is not counted as a client. The
// caller closes the pipe.
func (s *Server) connectSelf() (*inproc.Pipe, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, errServerClosing
	}
	theirs := s.selfPipe
	if s.selfPipe = nil; theirs == nil { // the connection before has broken
		s.nextID++
		theirs = s.newSelfLocked()
	}
	s.sessions[s.self.id] = s.self
	s.selves++
	go s.self.read()
	return theirs, nil
}

// newSelfLocked makes the session of the server's own client, and returns the client's end of its pipe.
func (s *Server) newSelfLocked() *inproc.Pipe {
	mine, theirs := inproc.New(s.opts.Limits.Wire, s.opts.Limits.Wire)
	s.self = newSession(s, mine, s.nextID)
	s.self.own, s.self.greeted, s.self.label = true, true, shortLabel(s.opts.Label)
	s.self.answers = nil // the limits are those of clients
	s.resultMemory.exempt(s.self.id)
	return theirs
}

// errServerClosing refuses what this process asks of its own server once that has begun to close.
var errServerClosing = fmt.Errorf("%w: %w", status.ErrUnavailable, status.ErrServerClosed)

// newSelfLink is newLink of a server's own client.
func newSelfLink(s *Server) (*link, error) {
	conn, err := s.connectSelf()
	if err != nil {
		return nil, err
	}
	l := makeLink(conn, s.introduction())
	l.receiver = inproc.NewReceiver(conn, l.dispatch)
	l.lendsContext = true
	return l, nil
}

// newNeighbourLink is newLink to a server of this process.
func newNeighbourLink(ctx context.Context, s *Server, hello message.Hello, limits wire.Limits) (*link, error) {
	conn, err := s.connect(ctx, hello, limits)
	if err != nil {
		return nil, err
	}
	l := makeLink(conn, s.introduction())
	l.receiver = inproc.NewReceiver(conn, l.dispatch)
	return l, nil
}
