package endpoint

import (
	"errors"
	"log/slog"
	"syscall"
	"time"
)

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
