// Package stall stops reading a body if its sender stops sending.
package stall

import (
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
	meter *admission.Meter
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
	return &Reader{r: r, stall: stall, meter: admission.NewMeter(admission.Rate{}), cut: func() {
		_ = control.SetReadDeadline(time.Unix(1, 0)) // in the past: a blocked read fails
	}}
}

// AtLeast makes the reader fail with admission.ErrSlow if the sender is slower than rate, in bytes per second.
func (s *Reader) AtLeast(rate int64) *Reader {
	s.meter = admission.NewMeter(admission.Rate{Bytes: rate, Grace: s.stall})
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
	if err == nil {
		if err = s.meter.Add(n, time.Since(now)); err != nil {
			s.cut()
		}
	}
	return n, err
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
