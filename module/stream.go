package module

import (
	"context"
	"io"
)

// streamPiece is how many bytes are written between two looks at the context.
const streamPiece = 1 << 20

// stream is a writer that stops when its context ends and counts what went through.
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
