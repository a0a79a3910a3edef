package module

import (
	"context"
	"io"
)

// streamPiece is the number of bytes written between two checks of the context.
const streamPiece = 1 << 20

// stream is a writer that stops when its context ends and counts its bytes.
type stream struct {
	ctx      context.Context
	w        io.Writer
	progress func(bytes int64)
}

// Write writes p in pieces.
func (s *stream) Write(p []byte) (int, error) {
	written := 0
	for {
		if err := context.Cause(s.ctx); err != nil {
			return written, err
		}
		piece := p[written:min(len(p), written+streamPiece)]
		n, err := s.w.Write(piece)
		written += n
		if s.progress != nil {
			s.progress(int64(n))
		}
		if err != nil || written == len(p) {
			return written, err
		}
	}
}
