package inference

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/mem"
)

// source is where the elements of an input come from, in the protocol's encoding: row-major and little-endian, texts
// with their lengths in front.
type source interface {
	// bytes is how many there are.
	bytes() int64
	// read fills p with the next of them.
	read(p []byte) error
}

// memorySource has elements in memory of this process.
type memorySource struct{ data []byte }

func (s *memorySource) bytes() int64 { return int64(len(s.data)) }

func (s *memorySource) read(p []byte) error {
	if len(p) > len(s.data) {
		return errEarly
	}
	s.data = s.data[copy(p, s.data):]
	return nil
}

// errEarly is a source with less than it said.
var errEarly = fmt.Errorf("%w: the data ended early", ErrInvalid)

// bufferSource has elements in buffers that a transport received. It borrows them.
type bufferSource struct {
	data mem.BufferSlice
	left int64
	at   int // in the first buffer
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

// streamSource has the next elements of a body. Sources of one body are read in their order.
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
	return err
}

// regionSource has elements in shared memory of a client. They may change while they are read, and vanish.
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
