package endpoint

import (
	"errors"
	"syscall"
	"time"
)

// How long accepting rests after it failed for a reason that may pass: longer after each failure in a row.
const (
	firstRest = 5 * time.Millisecond
	longRest  = time.Second
)

// rest waits after accepting failed, and tells the log when that begins: once, not at each attempt. last is the rest before, 0 for none; it
// returns how long it was.
func (s *Server) rest(last time.Duration, err error) time.Duration {
	next := min(2*last, longRest)
	if last == 0 {
		next = firstRest
		s.log.Warn("cannot accept clients for now", "socket", s.opts.Socket, "error", err)
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.stopping:
	}
	return next
}

// rested tells the log that accepting works again after a rest.
func (s *Server) rested(last time.Duration) {
	if last > 0 {
		s.log.Warn("clients are accepted again", "socket", s.opts.Socket)
	}
}

// temporary tells whether accepting a client may work again later: this process or the host is out of something for now.
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
