package endpoint

import (
	"os"
	"path/filepath"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"
)

// socketLook is how often a server looks whether its socket file is still there.
const socketLook = 500 * time.Millisecond

// watchSocket binds the socket again when its file was removed or replaced: nobody could reach the server any more, and
// its lock would keep every other away. It returns when the server closes.
func (s *Server) watchSocket() {
	if s.sock.ID() == (unixsock.FileID{}) { // handed over by who bound it
		return
	}
	s.warnUnreachable()
	ticker := time.NewTicker(socketLook)
	defer ticker.Stop()
	failed := ""
	for {
		select {
		case <-s.stopping:
			return
		case <-ticker.C:
		}
		if !s.sock.Lost() {
			continue
		}
		switch err := s.rebind(); {
		case err == nil:
			failed = ""
			s.log.Warn("the socket file was removed or replaced while the server runs; it is bound again", "socket", s.opts.Socket)
		case err.Error() != failed: // once for each reason
			failed = err.Error()
			s.log.Warn("the socket file was removed or replaced while the server runs, and cannot be bound again; nobody new reaches this server",
				"socket", s.opts.Socket, "error", err)
		}
	}
}

// rebind listens on a new socket file, where clients of this process find the server too.
func (s *Server) rebind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil
	}
	s.listener.Conceal(s.sock.ID())
	defer func() { s.listener.Announce(s.sock.ID()) }()
	return s.sock.Rebind()
}

// warnUnreachable says so where users that may connect cannot enter the socket's directory.
func (s *Server) warnUnreachable() {
	if len(s.opts.AllowUIDs) == 0 {
		return
	}
	dir := filepath.Dir(s.opts.Socket)
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
		s.log.Warn("users that this server allows may not be able to enter the directory of its socket; run chmod o+x on it, or serve in another one",
			"directory", dir, "uids", s.opts.AllowUIDs)
	}
}
