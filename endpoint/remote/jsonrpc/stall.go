package jsonrpc

import (
	"io"
	"net/http"
	"time"
)

// stallReader ends the reading of a body whose sender has stopped sending. Without it a slow sender holds its place for ever; with one deadline for
// all, a large body could not be slow. It is a timer beside the connection and no deadline of it, which would cost a small request more than its
// reading does.
type stallReader struct {
	r     io.Reader
	stall time.Duration
	timer *time.Timer
	armed time.Time
	cut   func()
}

func newStallReader(w http.ResponseWriter, r io.Reader, stall time.Duration) *stallReader {
	control := http.NewResponseController(w)
	return &stallReader{r: r, stall: stall, cut: func() {
		_ = control.SetReadDeadline(time.Unix(1, 0)) // long ago: what reads now ends
	}}
}

// Read implements io.Reader.
func (s *stallReader) Read(p []byte) (int, error) {
	switch now := time.Now(); {
	case s.timer == nil:
		s.timer, s.armed = time.AfterFunc(s.stall, s.cut), now
	case now.Sub(s.armed) > s.stall/4:
		s.timer.Reset(s.stall)
		s.armed = now
	}
	return s.r.Read(p)
}

// release ends the watch over a body that was read in full. Of one that was not, the rest is not waited for either.
func (s *stallReader) release(read bool) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if !read {
		s.cut()
	}
}
