package endpoint

import (
	"errors"
	"syscall"
	"time"
)

// How long accepting rests after it failed for a reason that may pass: longer after each failure in a row. The log hears of a change once a
// minute at most.
const (
	firstRest  = 5 * time.Millisecond
	longRest   = time.Second
	saidSeldom = time.Minute
)

// rests are how accepting goes on after it failed.
type rests struct {
	last time.Duration // 0 if it did not fail the last time
	said time.Time     // when the log was told last that it fails
	told bool          // the log knows that it fails
}

// failed rests, and tells the log if that is news.
func (r *rests) failed(s *Server, err error) {
	if r.last == 0 && time.Since(r.said) >= saidSeldom {
		r.said, r.told = time.Now(), true
		s.log.Warn("cannot accept clients for now", "socket", s.opts.Socket, "error", err)
	}
	r.last = max(min(2*r.last, longRest), firstRest)
	timer := time.NewTimer(r.last)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.stopping:
	}
}

// over notes that a client was accepted.
func (r *rests) over(s *Server) {
	r.last = 0
	if r.told {
		r.told = false
		s.log.Warn("clients are accepted again", "socket", s.opts.Socket)
	}
}

// temporary reports whether accepting a client may work again later: this process or the host is out of something for now.
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
