// Package stall stops reading a body if its sender stops sending.
package stall

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// Reader reads a body with a timeout for each read. Without a timeout, a slow sender would hold its slot forever. A
// single deadline for the whole body would fail large bodies on slow connections. Reader uses a timer instead of the
// connection's read deadline, which would cost more than reading a small request.
type Reader struct {
	r     io.Reader
	stall time.Duration
	rate  int64         // minimum in bytes per second; 0 means none
	left  time.Duration // with a rate: how much longer the sender may be silent
	timer *time.Timer
	armed time.Time
	cut   func()
	bytes int64
	ended bool
}

// NewReader returns a reader of r, the body of the request that w answers. Reading fails if nothing arrives for the
// duration stall.
func NewReader(w http.ResponseWriter, r io.Reader, stall time.Duration) *Reader {
	control := http.NewResponseController(w)
	return &Reader{r: r, stall: stall, cut: func() {
		_ = control.SetReadDeadline(time.Unix(1, 0)) // in the past: a blocked read fails
	}}
}

// AtLeast makes the reader fail with admission.ErrSlow if the sender is slower than rate, in bytes per second.
func (s *Reader) AtLeast(rate int64) *Reader {
	s.rate, s.left = rate, s.stall
	return s
}

// Read implements io.Reader.
func (s *Reader) Read(p []byte) (int, error) {
	now := time.Now()
	switch {
	case s.timer == nil:
		s.timer, s.armed = time.AfterFunc(s.stall, s.cut), now
	case now.Sub(s.armed) > s.stall/4:
		s.timer.Reset(s.stall)
		s.armed = now
	}
	n, err := s.r.Read(p)
	s.bytes += int64(n)
	s.ended = s.ended || err == io.EOF //nolint:errorlint // as io.Reader has it
	if s.rate > 0 && err == nil {
		return n, s.measure(n, time.Since(now))
	}
	return n, err
}

// measure accounts for n bytes for which Read has waited.
func (s *Reader) measure(n int, waited time.Duration) error {
	if s.left -= waited; s.left <= 0 {
		s.cut()
		return fmt.Errorf("%w of %d bytes a second: see --min-rate", admission.ErrSlow, s.rate)
	}
	earned := time.Duration(float64(n) / float64(s.rate) * float64(time.Second))
	s.left = min(s.stall, s.left+earned)
	return nil
}

// Ended reports whether a body of length bytes was read in full. -1 means that the length is unknown.
func (s *Reader) Ended(length int64) bool { return s.ended || length >= 0 && s.bytes == length }

// Release ends the timeout. If the body was not read in full, Release also stops waiting for the rest, and the
// connection closes after the response.
func (s *Reader) Release(read bool) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if !read {
		s.cut()
	}
}
