package endpoint

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

// socket is the server's socket file and its entry in the table of servers in this process.
type socket struct {
	*transport.Socket
	path     string
	allowed  []uint32 // users, besides the server's own, that may connect
	log      *slog.Logger
	listener *transport.PipeListener

	mu     sync.Mutex
	closed bool
}

// bind creates the socket that the options specify.
func bind(opts *ServerOptions) (*transport.Socket, error) {
	if opts.Listener != nil {
		if opts.Socket == "" {
			opts.Socket = opts.Listener.Addr().String()
		}
		return transport.HandedOver(opts.Socket, opts.Listener), nil
	}
	if opts.Socket == "" {
		path, err := transport.SocketPath("", 0)
		if err != nil {
			return nil, err
		}
		opts.Socket = path
	}
	return transport.Listen(opts.Socket, len(opts.AllowUIDs) > 0)
}

// accept admits clients until the register stops.
func (s *socket) accept(sessions *session.Register) error {
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(sessions.Stopping()) })
	defer watch.Wait()
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
		if s.Accepting() != l { // was rebound
			continue
		}
		if !temporary(err) {
			return fmt.Errorf("accept on %s: %w", s.path, err)
		}
		backoff.failed(err)
	}
}

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
// lock keeps other servers from starting. It returns when the server closes.
func (s *socket) watch(stopping <-chan struct{}) {
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
	if len(s.allowed) == 0 {
		return
	}
	dir := filepath.Dir(s.path)
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
		s.log.Warn("users that this server allows may not be able to enter the directory of its socket; run chmod o+x on it, or serve in another one",
			"directory", dir, "uids", s.allowed)
	}
}
