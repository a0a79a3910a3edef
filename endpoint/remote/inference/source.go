package inference

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/mem"
)

// source provides the elements of an input in the protocol's encoding: row-major and little-endian, each text preceded
// by its length.
type source interface {
	// bytes returns the total number of bytes.
	bytes() int64
	// read fills p with the next bytes.
	read(p []byte) error
}

// sourceReader reads a source to its end.
type sourceReader struct{ source }

// Read implements io.Reader.
func (s *sourceReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), s.bytes())
	if n == 0 {
		return 0, io.EOF
	}
	return int(n), s.read(p[:n])
}

// memorySource provides elements from this process's memory.
type memorySource struct{ data []byte }

func (s *memorySource) bytes() int64 { return int64(len(s.data)) }

func (s *memorySource) read(p []byte) error {
	if len(p) > len(s.data) {
		return errEarly
	}
	s.data = s.data[copy(p, s.data):]
	return nil
}

// errEarly is returned if a source has fewer bytes than announced.
var errEarly = fmt.Errorf("%w: the data ended early", ErrInvalid)

// bufferSource provides elements from buffers that a transport received. It borrows them.
type bufferSource struct {
	data mem.BufferSlice
	left int64
	at   int // position in the first buffer
}

func newBufferSource(data mem.BufferSlice) *bufferSource {
	return &bufferSource{data: data, left: int64(data.Len())}
}

func (s *bufferSource) bytes() int64 { return s.left }

func (s *bufferSource) read(p []byte) error {
	if int64(len(p)) > s.left {
		return errEarly
	}
	s.left -= int64(len(p))
	for len(p) > 0 {
		piece := s.data[0].ReadOnlyData()[s.at:]
		n := copy(p, piece)
		if p = p[n:]; n == len(piece) {
			s.data, s.at = s.data[1:], 0
		} else {
			s.at += n
		}
	}
	return nil
}

// streamSource provides the next elements of a body. Sources of one body must be read in order.
type streamSource struct {
	r    io.Reader
	left int64
}

func (s *streamSource) bytes() int64 { return s.left }

func (s *streamSource) read(p []byte) error {
	if int64(len(p)) > s.left {
		return errEarly
	}
	s.left -= int64(len(p))
	_, err := io.ReadFull(s.r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errEarly
	}
	if err != nil {
		return errBody(err)
	}
	return nil
}

// regionSource provides elements from a client's shared memory. The client can change or remove them during a read.
type regionSource struct {
	region *region
	at     int64
	left   int64
}

func (s *regionSource) bytes() int64 { return s.left }

func (s *regionSource) read(p []byte) error {
	if int64(len(p)) > s.left {
		return errEarly
	}
	if err := s.region.memory.readAt(p, s.at); err != nil {
		return fmt.Errorf("shared memory region %q: %w", s.region.name, err)
	}
	s.at += int64(len(p))
	s.left -= int64(len(p))
	return nil
}
