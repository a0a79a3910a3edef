package jsonrpc

import (
	"io"
	"net/http"
	"time"
)

// stallReader ends the reading of a body whose sender has stopped sending. Without it a slow sender holds its place for ever; with one deadline for
// all, a large body could not be slow.
type stallReader struct {
	r       io.Reader
	control *http.ResponseController
	stall   time.Duration
	armed   time.Time
}

func newStallReader(w http.ResponseWriter, r io.Reader, stall time.Duration) *stallReader {
	return &stallReader{r: r, control: http.NewResponseController(w), stall: stall}
}

// Read implements io.Reader.
func (s *stallReader) Read(p []byte) (int, error) {
	if now := time.Now(); now.Sub(s.armed) > s.stall/4 {
		s.armed = now
		_ = s.control.SetReadDeadline(now.Add(s.stall)) // connections in tests may have none
	}
	return s.r.Read(p)
}

// release lifts the deadline, so that the connection can be used again and the end of the client is noticed while the request runs.
func (s *stallReader) release() { _ = s.control.SetReadDeadline(time.Time{}) }
