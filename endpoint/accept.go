package endpoint

import (
	"errors"
	"log/slog"
	"syscall"
	"time"
)

// How long accepting pauses after a temporary failure: longer after each failure in a row. A change is logged once a
// minute at most.
const (
	minBackoff  = 5 * time.Millisecond
	maxBackoff  = time.Second
	logInterval = time.Minute
)

// acceptBackoff pauses accepting after it failed.
type acceptBackoff struct {
	log      *slog.Logger
	socket   string
	stopping <-chan struct{} // ends a pause

	pause    time.Duration // the current pause; 0 if accepting did not fail the last time
	loggedAt time.Time     // when a failure was logged last
	logged   bool          // the current failure was logged
}

// failed pauses, and logs the first failure of a row.
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

// reset notes that a client was accepted.
func (b *acceptBackoff) reset() {
	b.pause = 0
	if b.logged {
		b.logged = false
		b.log.Warn("clients are accepted again", "socket", b.socket)
	}
}

// temporary reports whether accepting a client may work again later: this process or the host is out of something for
// now.
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
