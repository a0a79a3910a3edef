package endpoint

import (
	"errors"
	"log/slog"
	"syscall"
	"time"
)

// How long accepting pauses after it failed for a reason that may pass: longer after each failure in a row. The log
// hears of a change once a minute at most.
const (
	firstRest  = 5 * time.Millisecond
	longRest   = time.Second
	saidSeldom = time.Minute
)

// acceptBackoff pauses accepting after it failed.
type acceptBackoff struct {
	log      *slog.Logger
	socket   string
	stopping <-chan struct{} // ends a pause

	last time.Duration // 0 if it did not fail the last time
	said time.Time     // when the log was told last that it fails
	told bool          // the log knows that it fails
}

// failed pauses, and tells the log if that is news.
func (b *acceptBackoff) failed(err error) {
	if b.last == 0 && time.Since(b.said) >= saidSeldom {
		b.said, b.told = time.Now(), true
		b.log.Warn("cannot accept clients for now", "socket", b.socket, "error", err)
	}
	b.last = max(min(2*b.last, longRest), firstRest)
	timer := time.NewTimer(b.last)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.stopping:
	}
}

// over notes that a client was accepted.
func (b *acceptBackoff) over() {
	b.last = 0
	if b.told {
		b.told = false
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
