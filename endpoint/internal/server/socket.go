package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/handover"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

// Bind creates the socket of the server, or uses an inherited listener, which it takes, if l is not nil. An empty
// [Config].Socket becomes the default path or the listener's. Clients that dial before [Server.Serve] wait in the
// kernel's queue.
func (s *Server) Bind(l *net.UnixListener) (err error) {
	path := &s.Sessions.Socket
	var bound *transport.Socket
	if l != nil {
		if *path == "" {
			*path = l.Addr().String()
		}
		bound = transport.HandedOver(*path, l)
		if err := bound.Own(); err != nil { // clients verify the user of this process, not that of the service manager
			return errors.Join(err, bound.Close())
		}
	} else {
		if *path == "" {
			if *path, err = transport.SocketPath("", 0); err != nil {
				return err
			}
		}
		if bound, err = transport.Listen(*path, s.socketPermissions(), s.LockWait); err != nil {
			return err
		}
	}
	s.setSocket(bound)
	return nil
}

func (s *Server) setSocket(bound *transport.Socket) {
	s.socket = &socket{
		Socket: bound, path: s.Sessions.Socket, others: s.admitsOthers, log: s.Log,
		listener: &transport.PipeListener{Dial: s.Sessions.Connect}, accepted: make(chan struct{}),
	}
}

// Inherit uses the socket that a predecessor has handed over. It takes the files.
func (s *Server) Inherit(path string, state *handover.State) error {
	s.Sessions.Socket = path
	bound, err := transport.Inherit(path, s.socketPermissions(), state.Listener, state.Lock, state.Bound)
	state.Listener, state.Lock = nil, nil
	if err != nil {
		return err
	}
	s.setSocket(bound)
	return nil
}

// HandOverSocket adds duplicates of the listener and the lock to the state for a successor.
func (s *Server) HandOverSocket(state *handover.State) (err error) {
	state.Listener, state.Lock, state.Bound, err = s.socket.HandOver()
	return err
}

// OwnSocket completes Inherit when this server begins to serve.
func (s *Server) OwnSocket() error { return s.socket.Own() }

// LeaveSocket stops accepting and returns when all accepted clients have sessions. The socket stays to the successor.
func (s *Server) LeaveSocket() {
	s.socket.Leave()
	<-s.socket.accepted
}

// Serving reports whether the server accepts clients.
func (s *Server) Serving() bool { return s.serving.Load() }

// Announce lets clients of this process connect without the socket.
func (s *Server) Announce() { s.socket.listener.Announce(s.socket.ID()) }

// Bound reports whether the server has a socket.
func (s *Server) Bound() bool { return s.socket != nil }

// accept admits clients until the server stops. It returns [status.ErrServerClosed], or why it cannot accept.
func (s *Server) accept() error {
	s.serving.Store(true)
	defer s.serving.Store(false)
	s.Sessions.Open()
	return s.socket.accept(s.Sessions)
}

// Stop admits no further clients, removes the socket and returns the current sessions.
func (s *Server) Stop() []*session.Session {
	sessions := s.Sessions.Stop()
	if s.socket != nil {
		s.socket.close()
	}
	return sessions
}

// socket is the server's socket file and its entry in the table of servers in this process.
type socket struct {
	*transport.Socket
	path     string
	others   func() bool // reports whether other users than the server's own may connect
	log      *slog.Logger
	listener *transport.PipeListener
	accepted chan struct{} // closed when accept has ended, or will admit no more clients

	once sync.Once // closes accepted

	mu     sync.Mutex
	closed bool
}

// accept admits clients until the register stops.
func (s *socket) accept(sessions *session.Register) error {
	var watch sync.WaitGroup
	ended := make(chan struct{})
	watch.Go(func() { s.watch(sessions.Stopping(), ended) })
	defer watch.Wait()
	defer close(ended)
	defer s.admitted()
	backoff := acceptBackoff{log: s.log, socket: s.path, stopping: sessions.Stopping()}
	for {
		l := s.Accepting()
		c, err := l.AcceptUnix()
		if err == nil {
			backoff.reset()
			sessions.Admit(c)
			continue
		}
		if sessions.Stopped() {
			return status.ErrServerClosed
		}
		if s.Left() {
			s.admitted()
			<-sessions.Stopping()
			return status.ErrServerClosed
		}
		if s.Accepting() != l { // was rebound
			continue
		}
		if !temporary(err) {
			return fmt.Errorf("accept on %s: %w", s.path, err)
		}
		backoff.failed(err)
	}
}

// admitted records that accept admits no more clients.
func (s *socket) admitted() { s.once.Do(func() { close(s.accepted) }) }

// close removes the socket, so that the server can no longer be dialled.
func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.listener.Conceal(s.ID())
	if err := s.Close(); err != nil {
		s.log.Warn("the socket was not closed cleanly", "socket", s.path, "error", err)
	}
}

// socketLook is the interval at which a server checks that its socket file exists.
const socketLook = 500 * time.Millisecond

// watch rebinds the socket if its file was removed or replaced. Otherwise the server would be unreachable while its
// lock keeps other servers from starting. It returns when the server closes, or cannot accept any more.
func (s *socket) watch(stopping, ended <-chan struct{}) {
	if s.ID() == (transport.FileID{}) { // inherited listener; its file belongs to the process that bound it
		return
	}
	s.warnUnreachable()
	ticker := time.NewTicker(socketLook)
	defer ticker.Stop()
	failed := ""
	for {
		select {
		case <-stopping:
			return
		case <-ended:
			return
		case <-ticker.C:
		}
		if !s.Lost() {
			continue
		}
		switch err := s.rebind(); {
		case err == nil:
			failed = ""
			s.log.Warn("the socket file was removed or replaced while the server runs; it is bound again", "socket", s.path)
		case err.Error() != failed: // log each reason once
			failed = err.Error()
			s.log.Warn("the socket file was removed or replaced while the server runs, and cannot be bound again; new clients cannot reach this server",
				"socket", s.path, "error", err)
		}
	}
}

// rebind listens on a new socket file and registers it for clients in this process.
func (s *socket) rebind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.listener.Conceal(s.ID())
	defer func() { s.listener.Announce(s.ID()) }()
	return s.Rebind()
}

// warnUnreachable logs a warning if permitted users cannot enter the socket's directory.
func (s *socket) warnUnreachable() {
	if !s.others() {
		return
	}
	dir := filepath.Dir(s.path)
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o011 == 0 {
		s.log.Warn("users that this server allows may not be able to enter the directory of its socket; run chmod o+x on it, or serve in another one",
			"directory", dir)
	}
}

// Pauses after temporary failures to accept: doubled after each consecutive failure. Failures and recoveries are logged
// at most once a minute.
const (
	minBackoff  = 5 * time.Millisecond
	maxBackoff  = time.Second
	logInterval = time.Minute
)

// acceptBackoff pauses after failures to accept.
type acceptBackoff struct {
	log      *slog.Logger
	socket   string
	stopping <-chan struct{} // ends a pause

	pause    time.Duration // the current pause; 0 if the last accept succeeded
	loggedAt time.Time     // the time of the last logged failure
	logged   bool          // the current series of failures was logged
}

// failed pauses. It logs the first failure of a series.
func (b *acceptBackoff) failed(err error) {
	if b.pause == 0 && time.Since(b.loggedAt) >= logInterval {
		b.loggedAt, b.logged = time.Now(), true
		b.log.Warn("cannot accept clients for now", "socket", b.socket, "error", err)
	}
	b.pause = max(min(2*b.pause, maxBackoff), minBackoff)
	timer := time.NewTimer(b.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.stopping:
	}
}

// reset records that a client was accepted.
func (b *acceptBackoff) reset() {
	b.pause = 0
	if b.logged {
		b.logged = false
		b.log.Warn("clients are accepted again", "socket", b.socket)
	}
}

// temporary reports whether accepting may succeed later, because this process or the host lacks a resource for now.
func temporary(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
