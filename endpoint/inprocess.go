package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// connect begins a session for a client of this process, as accepting it and the handshake do for others: when the
// server serves. The caller closes the pipe.
func (s *Server) connect(ctx context.Context, hello message.Hello, frames wire.Limits) (*inproc.Pipe, message.Hello, error) {
	select {
	case <-s.accepting:
	case <-s.stopping:
	case <-ctx.Done():
		return nil, message.Hello{}, fmt.Errorf("%w: %w", status.ErrUnavailable, context.Cause(ctx))
	}
	mine, theirs := inproc.New(s.opts.Limits.Wire, frames)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, message.Hello{}, fmt.Errorf("%w on %s: its owner has ended", status.ErrUnavailable, s.opts.Socket)
	}
	ses := newSession(s, mine, s.nextID+1)
	ses.overLimit = s.clientsLocked() >= s.opts.Limits.Clients
	if err := ses.allowed(); err != nil {
		return nil, message.Hello{}, err
	}
	s.nextID++
	ses.label, ses.greeted = limits.ShortLabel(hello.Label), true
	s.sessions[ses.id] = ses
	go ses.read()
	return theirs, s.hello(), nil
}

// connectSelf begins the session of the server's own client, which does not wait for the server to serve and is not
// counted as a client. The caller closes the pipe.
func (s *Server) connectSelf() (*inproc.Pipe, message.Hello, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, message.Hello{}, status.ErrServerClosing
	}
	theirs := s.selfPipe
	if s.selfPipe = nil; theirs == nil { // the connection before has broken
		s.nextID++
		theirs = s.newSelfLocked()
	}
	s.sessions[s.self.id] = s.self
	s.selves++
	go s.self.read()
	return theirs, s.hello(), nil
}

// newSelfLocked makes the session of the server's own client, and returns the client's end of its pipe.
func (s *Server) newSelfLocked() *inproc.Pipe {
	mine, theirs := inproc.New(s.opts.Limits.Wire, s.opts.Limits.Wire)
	s.self = newSession(s, mine, s.nextID)
	s.self.own, s.self.greeted, s.self.label = true, true, limits.ShortLabel(s.opts.Label)
	s.self.answers = nil // the limits are those of clients
	s.engine.Memory.Exempt(s.self.id)
	return theirs
}
