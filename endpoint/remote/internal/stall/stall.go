// Package stall ends the reading of a body whose sender has stopped sending.
package stall

import (
	"io"
	"net/http"
	"time"
)

// Reader reads a body. Without it a slow sender holds its place for ever; with one deadline for all, a large body could
// not be slow. It is a timer beside the connection and no deadline of it, which would cost a small request more than
// its reading does.
type Reader struct {
	r     io.Reader
	stall time.Duration
	timer *time.Timer
	armed time.Time
	cut   func()
	bytes int64
	ended bool
}

// NewReader returns a reader of r, the body of the request that w answers, which ends with an error when nothing comes
// for so long.
func NewReader(w http.ResponseWriter, r io.Reader, stall time.Duration) *Reader {
	control := http.NewResponseController(w)
	return &Reader{r: r, stall: stall, cut: func() {
		_ = control.SetReadDeadline(time.Unix(1, 0)) // long ago: what reads now ends
	}}
}

// Read implements io.Reader.
func (s *Reader) Read(p []byte) (int, error) {
	switch now := time.Now(); {
	case s.timer == nil:
		s.timer, s.armed = time.AfterFunc(s.stall, s.cut), now
	case now.Sub(s.armed) > s.stall/4:
		s.timer.Reset(s.stall)
		s.armed = now
	}
	n, err := s.r.Read(p)
	s.bytes += int64(n)
	s.ended = s.ended || err == io.EOF //nolint:errorlint // as io.Reader has it
	return n, err
}

// Ended reports whether a body of that length, -1 where it is not known, was read in full.
func (s *Reader) Ended(length int64) bool { return s.ended || length >= 0 && s.bytes == length }

// Release ends the watch over a body that was read in full. Of one that was not, the rest is not waited for either: its
// connection ends with the answer.
func (s *Reader) Release(read bool) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if !read {
		s.cut()
	}
}
