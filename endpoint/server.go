package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/models"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
)

// Server owns state dicts and lets other processes of the host use them in place. Its methods are safe for concurrent
// use.
type Server struct {
	caller
	opts    ServerOptions
	id      string
	log     *slog.Logger
	started time.Time
	devices transfer.Devices

	models    *models.Models    // what is published
	endpoints endpoints         // what can be called
	intercept Invoke            // the interceptors; nil for none
	engine    *engine.Engine    // runs it, and keeps what comes of it
	sessions  *session.Register // those who are connected
	totals    session.Totals    // what they make the server hold
	own       *Client           // calls of this process go through it

	socket   *socket // nil for a server that nobody can dial
	serving  atomic.Bool
	reclaims []func() // end what the devices call when they are out of memory
	budgets  budgets
	support  support
}

// budgets say where the bounds of what is kept of results come from.
type budgets struct{ results, tasks string }

// NewServer binds the socket and returns an owner that has published nothing yet. Clients that connect before Serve
// wait in the kernel's queue, so publishing first means that nobody finds the owner empty. Errors: [ErrInUse] for a
// socket with a live owner, [ErrPermission] for a directory that others may write, [ErrConfiguration] for options that
// make no sense.
func NewServer(opts ServerOptions) (*Server, error) {
	s, err := newOwner(opts)
	if err != nil {
		return nil, err
	}
	bound, err := bind(&s.opts)
	if err != nil {
		return nil, err
	}
	s.sessions.Socket = s.opts.Socket
	s.socket = &socket{Socket: bound, path: s.opts.Socket, allowed: s.opts.AllowUIDs, log: s.log, listener: &inproc.Listener{Dial: s.sessions.Connect}}
	s.socket.listener.Announce(bound.ID())
	return s, nil
}

// ID names this server; a restarted owner has another one.
func (s *Server) ID() string { return s.id }

// Socket is the path that clients dial.
func (s *Server) Socket() string { return s.opts.Socket }

// Serve accepts clients until ctx ends or the server is closed. Call it once. When ctx ends, Serve shuts the server
// down, with ten seconds for what is in flight, and returns nil or the error of [Server.Shutdown]. After Shutdown or
// Close it returns [ErrServerClosed].
func (s *Server) Serve(ctx context.Context) error {
	if s.socket == nil {
		return status.Configuration(fmt.Errorf("%w: a local node serves nobody", status.ErrInvalid))
	}
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveDrain)
		defer cancel()
		drained <- s.Shutdown(limited)
	})
	err := s.accept()
	if stop() {
		return err
	}
	if errors.Is(err, status.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, <-drained)
}

// serveDrain is how long requests and tasks in flight get to end when the context of Serve ends.
const serveDrain = 10 * time.Second

// accept admits clients until the server closes.
func (s *Server) accept() error {
	s.serving.Store(true)
	defer s.serving.Store(false)
	s.sessions.Open()
	return s.socket.accept(s.sessions)
}

// Shutdown stops accepting, tells every client goodbye, lets requests and tasks in flight end, and frees what the
// server owns. Idle clients do not hold it up. When ctx ends first, what is still running is cancelled, gets a
// twentieth of a second to end, and the cause of ctx is returned; what a function returns that does not heed its
// context is given back when it does. Memory that clients have attached stays theirs.
func (s *Server) Shutdown(ctx context.Context) error {
	sessions := s.beginClose()
	s.models.StopDigests() // nobody is made to wait for them
	for _, ses := range sessions {
		if !ses.Own { // this process may watch its tasks end
			ses.GoodbyeWorker(ctx)
		}
	}
	err := s.engine.Tasks.Shutdown(ctx)
	for _, ses := range sessions {
		if ses.Own {
			ses.Goodbye()
		}
	}
	select {
	case <-s.sessions.Done():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return errors.Join(err, s.close(lateGrace))
}

// Close cuts every client off, cancels what runs and frees what the server owns. Functions get a second to heed their
// context; what they return later is given back when they do. A second Close is nil.
func (s *Server) Close() error { return s.close(closeGrace) }

// close is Close that waits for so long.
func (s *Server) close(grace time.Duration) error {
	for _, ses := range s.beginClose() {
		ses.Cancel(status.ErrServerClosing)
		ses.Cut()
	}
	s.models.StopDigests()
	for _, remove := range s.reclaims {
		remove()
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.engine.Tasks.Shutdown(now) // its error is that of now
	_ = s.engine.Results.Close(now)  // builds that go on are those that the sessions wait for
	select {
	case <-s.sessions.Done():
	case <-time.After(grace):
		s.log.Warn("functions of endpoints go on after the server has closed", "socket", s.opts.Socket)
	}
	s.own.serverClosed()
	return s.models.Close()
}

// How long functions get to heed their context: in Close, and at the end of a Shutdown whose time is over.
const (
	closeGrace = time.Second
	lateGrace  = closeGrace / 20
)

// beginClose stops accepting and returns the sessions there are.
func (s *Server) beginClose() []*session.Session {
	sessions := s.sessions.Stop()
	if s.socket != nil {
		s.socket.close()
	}
	return sessions
}

// trim gives memory back that is kept without need, of so many bytes if it can, and reports whether there was any.
func (s *Server) trim(bytes int64) bool {
	slabs := s.sessions.TrimSlabs()
	return s.engine.Trim(bytes) || slabs > 0
}
