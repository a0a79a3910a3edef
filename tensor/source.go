package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	// stageWhole is the size of the largest strided tensor of a packed type that is copied to the host whole. Memory
	// that the processor cannot address is read much faster in one piece.
	stageWhole = 64 << 20
	// stageChunk is the size of the part of another strided tensor that is copied to the host and rearranged there. If
	// its dimensions are not in the order of the addresses, it is an eighth of the tensor, at most stageMost: each chunk
	// then reads most of the memory, so their number is limited.
	stageChunk = 32 << 20
	stageMost  = 1 << 30
	// stagePiece is the size of the pieces in which the memory is read.
	stagePiece = 4 << 20
	// stageBlock is the minimum size of a block that is read separately.
	stageBlock = 64 << 10
	// stageWindow is the number of bytes read for single elements.
	stageWindow = 4 << 10
)

// source reads a tensor's storage. Offsets are in bytes of the storage.
type source struct {
	mem  driver.Memory
	data []byte // bytes of the memory from base on, if the processor can address them or they were staged
	base int64
}

// newSource returns a source for the memory of t during the access.
func newSource(t access) *source { return &source{mem: t.storage.mem, data: t.data} }

// newStagedSource is newSource for single elements in any order. It copies the memory of a small tensor to the host.
func newStagedSource(t access) (*source, error) {
	s := newSource(t)
	if s.data != nil {
		return s, nil
	}
	span, err := t.spec.Extent()
	if err != nil || t.Contiguous() || span > stageWhole || span == 0 {
		return s, err
	}
	s.data, s.base = make([]byte, span), t.spec.ByteOffset
	return s, readFull(s.mem, s.data, s.base)
}

// readFull fills p from memory.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at offset %d: %w", len(p), off, err)
}

// read fills p from one offset.
func (s *source) read(p []byte, off int64) error {
	if s.data != nil {
		copy(p, s.data[off-s.base:])
		return nil
	}
	return readFull(s.mem, p, off)
}

// window returns at least n bytes starting at off. If the processor cannot address the memory, more are read at once,
// because the next element is usually near.
func (s *source) window(off, n int64) ([]byte, error) {
	if s.data == nil || off < s.base || off+n > s.base+int64(len(s.data)) {
		piece := make([]byte, max(n, min(stageWindow, s.mem.Bytes()-off)))
		if err := readFull(s.mem, piece, off); err != nil {
			return nil, err
		}
		s.data, s.base = piece, off
	}
	return s.data[off-s.base:], nil
}

// gather fills p with blocks that are stride bytes apart, the first at off.
func (s *source) gather(p []byte, off, stride, block int64) error {
	if s.data != nil {
		gather(p, s.data[off-s.base:], stride, block)
		return nil
	}
	for ; len(p) > 0; p, off = p[block:], off+stride { // large blocks: see newReader
		if err := readFull(s.mem, p[:block], off); err != nil {
			return err
		}
	}
	return nil
}

// gather copies blocks that are stride bytes apart in src to adjacent places in dst. Common element sizes are moved as
// numbers, which is several times as fast as copying so few bytes.
func gather(dst, src []byte, stride, block int64) {
	switch block {
	case 1:
		for i, o := 0, int64(0); i < len(dst); i, o = i+1, o+stride {
			dst[i] = src[o]
		}
	case 2:
		for o := int64(0); len(dst) >= 2; dst, o = dst[2:], o+stride {
			binary.NativeEndian.PutUint16(dst, binary.NativeEndian.Uint16(src[o:]))
		}
	case 4:
		for o := int64(0); len(dst) >= 4; dst, o = dst[4:], o+stride {
			binary.NativeEndian.PutUint32(dst, binary.NativeEndian.Uint32(src[o:]))
		}
	case 8:
		for o := int64(0); len(dst) >= 8; dst, o = dst[8:], o+stride {
			binary.NativeEndian.PutUint64(dst, binary.NativeEndian.Uint64(src[o:]))
		}
	default:
		for o := int64(0); len(dst) > 0; dst, o = dst[block:], o+stride {
			copy(dst[:block], src[o:])
		}
	}
}
