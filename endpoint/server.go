package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

// Server owns state dicts and shares them in place with other processes of the host. Its methods are safe for
// concurrent use.
type Server struct {
	*caller
	opts    ServerOptions
	id      string
	log     *slog.Logger
	devices transfer.Devices

	core      *server.Server    // performs the operations of clients
	models    *server.Models    // published versions
	endpoints server.Endpoints  // callable endpoints
	engine    *engine.Engine    // runs endpoints and keeps results
	sessions  *session.Register // connected clients
	totals    server.Totals     // resources held for clients
	own       *Client           // client for this process's calls

	socket   *socket  // nil if the server has no socket
	reclaims []func() // unregister the callbacks for devices that run out of memory
	budgets  budgets
	adopted  []server.Adopted
}

// budgets holds the origin of the limits on kept results, for reports.
type budgets struct{ results, tasks string }

// NewServer binds the socket and returns a server without models. Clients that connect before Serve wait in the
// kernel's queue. Publish before Serve so that the first client finds the models. Errors: [ErrInUse] if a live owner
// has the socket, [ErrPermission] if others may write to its directory, [ErrConfiguration] for invalid options.
func NewServer(opts ServerOptions) (*Server, error) {
	if opts.Local && (opts.Socket != "" || opts.Listener != nil) {
		return nil, status.Configuration(fmt.Errorf("%w: a local server has no socket", status.ErrInvalid))
	}
	s, err := newOwner(opts)
	if err != nil || opts.Local {
		return s, err
	}
	bound, err := bind(&s.opts)
	if err != nil {
		return nil, err
	}
	s.sessions.Socket, s.core.Bound = s.opts.Socket, true
	s.socket = &socket{Socket: bound, path: s.opts.Socket, allowed: s.opts.AllowUIDs, log: s.log, listener: &transport.PipeListener{Dial: s.sessions.Connect}}
	if opts.Keep != nil {
		if s.adopted, err = s.models.Adopt(opts.Keep); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	s.socket.listener.Announce(bound.ID())
	return s, nil
}

// ID returns the id of this server. A restarted owner has a new one.
func (s *Server) ID() string { return s.id }

// Socket returns the path that clients dial.
func (s *Server) Socket() string { return s.opts.Socket }

// Adopted returns the versions of earlier servers that this server has adopted, sorted by name and number.
func (s *Server) Adopted() []AdoptedVersion {
	list := make([]AdoptedVersion, len(s.adopted))
	for i, a := range s.adopted {
		list[i] = AdoptedVersion{Name: a.Name, Version: a.Version, Current: a.Current, Source: a.Source, SourceID: a.SourceID}
	}
	return list
}

// Serve accepts clients until ctx ends or the server is closed. Call it once. When ctx ends, Serve shuts the server
// down, allows ten seconds for work in flight, and returns nil or the error of [Server.Shutdown]. After Shutdown or
// Close it returns [ErrServerClosed].
func (s *Server) Serve(ctx context.Context) error {
	if s.socket == nil {
		return status.Configuration(fmt.Errorf("%w: a local server cannot serve clients", status.ErrInvalid))
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

// serveDrain is the time that requests and tasks in flight have to finish after the context of Serve ends.
const serveDrain = 10 * time.Second

// accept admits clients until the server closes.
func (s *Server) accept() error {
	s.core.Serving.Store(true)
	defer s.core.Serving.Store(false)
	s.sessions.Open()
	return s.socket.accept(s.sessions)
}

// Shutdown stops accepting, sends goodbye to every client, waits for requests and tasks in flight, and frees the
// server's resources. It does not wait for idle clients. If ctx ends first, running work is cancelled, has 50 ms to
// end, and Shutdown returns the cause of ctx. A result that a function returns after that is released. Memory that
// clients have attached stays valid.
func (s *Server) Shutdown(ctx context.Context) error {
	sessions := s.beginClose()
	s.models.StopDigests() // fail waiting requests at once
	for _, ses := range sessions {
		if !ses.Own { // this process may still watch its tasks end
			server.GoodbyeWorker(ctx, ses)
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

// Close disconnects every client, cancels running work and frees the server's resources. Functions have one second to
// observe their context. A result that a function returns after that is released. A second Close returns nil.
func (s *Server) Close() error { return s.close(closeGrace) }

// close is Close with a given grace period.
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
	_ = s.engine.Tasks.Shutdown(now) // returns the same error as now
	_ = s.engine.Results.Close(now)  // the sessions wait for running builds
	select {
	case <-s.sessions.Done():
	case <-time.After(grace):
		s.log.Warn("functions of endpoints still run after the server has closed", "socket", s.opts.Socket)
	}
	s.own.serverClosed()
	return s.models.Close()
}

// Grace periods for functions to observe their context: in Close, and at the end of a Shutdown whose context has ended.
const (
	closeGrace = time.Second
	lateGrace  = closeGrace / 20
)

// beginClose stops accepting and returns the open sessions.
func (s *Server) beginClose() []*session.Session {
	sessions := s.sessions.Stop()
	if s.socket != nil {
		s.socket.close()
	}
	return sessions
}

// trim frees about the given number of bytes of unused memory. It reports whether it freed any.
func (s *Server) trim(bytes int64) bool {
	slabs := s.core.TrimSlabs()
	return s.engine.Trim(bytes) || slabs > 0
}
