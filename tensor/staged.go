package tensor

import (
	"encoding/binary"
	"io"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
)

// stageGap is the largest gap between two elements that is read through. Reading it costs less than a second read of
// memory that the processor cannot address.
const stageGap = 64 << 10

// stagedReader reads a tensor's bytes in row-major order from memory that the processor cannot address, for any strides,
// during an access. It copies a chunk of the tensor at a time and reads the memory of a chunk in the order of its
// addresses, in large pieces, each piece once. The cost grows with the number of elements, because the number of chunks is
// limited or they do not share memory. It holds one chunk and one piece.
type stagedReader struct {
	mem  driver.Memory
	spec Spec
	size int64 // bytes of an element

	// A chunk is a range of indices of dimension split, with fixed indices before it and all indices after it.
	split int
	rows  int64   // indices of a chunk
	index []int64 // of dimensions 0 to split, of the next chunk
	ended bool

	chunk []byte // elements of the last chunk in row-major order
	rest  []byte // the unread part of chunk

	piece []byte // bytes of the memory from base on
	base  int64
	last  int64 // end of the part of the memory to which piece belongs
}

// newStagedReader returns a reader of a tensor whose elements have whole bytes. limit is the size in bytes of a chunk.
func newStagedReader(t access, limit int64) *stagedReader {
	r := &stagedReader{mem: t.storage.mem, spec: Spec{Shape: t.spec.Shape, Strides: t.spec.filled(), ByteOffset: t.spec.ByteOffset},
		size: int64(t.spec.DType.BitSize()) / 8, rows: 1, ended: t.elements == 0}
	inner := r.size // bytes of the dimensions after split
	for r.split = len(r.spec.Shape) - 1; r.split >= 0; r.split-- {
		n := r.spec.Shape[r.split]
		r.rows = min(n, max(1, limit/max(inner, 1)))
		if r.rows < n || r.split == 0 {
			break
		}
		inner *= n
	}
	r.index = make([]int64, r.split+1)
	return r
}

// chunkBytes returns the size of the chunks of a strided tensor.
func chunkBytes(t *Tensor) int64 {
	var strides Strides
	for d, n := range t.spec.Shape {
		if n > 1 {
			strides = append(strides, t.spec.filled()[d])
		}
	}
	if slices.IsSortedFunc(strides, func(a, b int64) int { return int(min(max(b-a, -1), 1)) }) {
		return stageChunk
	}
	return max(stageChunk, min(t.bytes/8, stageMost))
}

// resume makes the reader continue in another access.
func (r *stagedReader) resume(t access) error {
	r.mem = t.storage.mem
	return nil
}

// Read fills p with the remaining bytes.
func (r *stagedReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if len(r.rest) == 0 {
			if r.ended {
				return n, io.EOF
			}
			if err := r.next(); err != nil {
				return n, err
			}
		}
		k := copy(p[n:], r.rest)
		r.rest = r.rest[k:]
		n += k
	}
	return n, nil
}

// next reads the next chunk.
func (r *stagedReader) next() error {
	part := Spec{Shape: r.spec.Shape, Strides: r.spec.Strides}
	offset := r.spec.ByteOffset
	if r.split >= 0 {
		for d, i := range r.index {
			offset += i * r.spec.Strides[d] * r.size
		}
		part.Shape, part.Strides = slices.Clone(part.Shape[r.split:]), part.Strides[r.split:]
		part.Shape[0] = min(r.rows, part.Shape[0]-r.index[r.split])
	}
	elements, err := part.Shape.NumElements()
	if err != nil {
		return err
	}
	if bytes := elements * r.size; int64(cap(r.chunk)) < bytes {
		r.chunk = make([]byte, bytes)
	} else {
		r.chunk = r.chunk[:bytes]
	}
	r.piece = r.piece[:0] // an older piece may be stale
	if err := r.fill(&part, offset); err != nil {
		return err
	}
	r.rest = r.chunk
	r.advance()
	return nil
}

// advance moves index to the next chunk.
func (r *stagedReader) advance() {
	step := r.rows
	for d := r.split; d >= 0; d-- {
		if r.index[d] += step; r.index[d] < r.spec.Shape[d] {
			return
		}
		r.index[d], step = 0, 1
	}
	r.ended = true
}

// axis is a dimension of a chunk.
type axis struct {
	n        int64
	from, to int64 // distance of two indices in the memory and in the chunk, in bytes
}

// fill copies the elements of part, the first at offset in the memory, to the chunk.
func (r *stagedReader) fill(part *Spec, offset int64) error {
	axes := make([]axis, 0, len(part.Shape)+1)
	to := r.size
	for d := len(part.Shape) - 1; d >= 0; d-- {
		if part.Shape[d] > 1 {
			axes = append(axes, axis{part.Shape[d], part.Strides[d] * r.size, to})
		}
		to *= part.Shape[d]
	}
	// In the order of the addresses, with repeated elements innermost.
	slices.SortStableFunc(axes, func(a, b axis) int { return int(min(max(b.from-a.from, -1), 1)) })
	if len(axes) == 0 {
		axes = append(axes, axis{n: 1, from: r.size, to: r.size})
	}
	// Elements with small gaps are read as one part of the memory.
	bytes := r.size
	joined := len(axes)
	for joined > 0 && axes[joined-1].from-bytes <= stageGap {
		joined--
		bytes += (axes[joined].n - 1) * axes[joined].from
	}
	return each(axes[:joined], func(from, to int64) error {
		r.last = offset + from + bytes
		return each(axes[joined:max(joined, len(axes)-1)], func(inner, at int64) error {
			if joined == len(axes) {
				return r.row(axis{n: 1, from: r.size, to: r.size}, offset+from, to)
			}
			return r.row(axes[len(axes)-1], offset+from+inner, to+at)
		})
	})
}

// each calls fn with the distances of all combinations of indices, the last axis fastest.
func each(axes []axis, fn func(from, to int64) error) error {
	if len(axes) == 0 {
		return fn(0, 0)
	}
	for i := range axes[0].n {
		err := each(axes[1:], func(from, to int64) error { return fn(i*axes[0].from+from, i*axes[0].to+to) })
		if err != nil {
			return err
		}
	}
	return nil
}

// row copies the elements of one axis, the first at offset from in the memory, to offset to in the chunk.
func (r *stagedReader) row(a axis, from, to int64) error {
	for a.n > 0 {
		src, err := r.window(from)
		if err != nil {
			return err
		}
		n := a.n
		if a.from > 0 {
			n = min(n, (int64(len(src))-r.size)/a.from+1)
		}
		scatter(r.chunk[to:], src, a.to, a.from, r.size, n)
		a.n, from, to = a.n-n, from+n*a.from, to+n*a.to
	}
	return nil
}

// window returns the bytes from off on, at least one element.
func (r *stagedReader) window(off int64) ([]byte, error) {
	if off < r.base || off+r.size > r.base+int64(len(r.piece)) {
		n := max(r.size, min(stagePiece, r.last-off))
		if int64(cap(r.piece)) < n {
			r.piece = make([]byte, n)
		}
		r.piece, r.base = r.piece[:n], off
		if err := readFull(r.mem, r.piece, off); err != nil {
			r.piece = r.piece[:0]
			return nil, err
		}
	}
	return r.piece[off-r.base:], nil
}

// scatter copies n elements that are from bytes apart in src to places that are to bytes apart in dst.
func scatter(dst, src []byte, to, from, size, n int64) {
	if to == size && from == size {
		copy(dst[:n*size], src)
		return
	}
	switch d, s := int64(0), int64(0); size {
	case 1:
		for ; n > 0; n, d, s = n-1, d+to, s+from {
			dst[d] = src[s]
		}
	case 2:
		for ; n > 0; n, d, s = n-1, d+to, s+from {
			binary.NativeEndian.PutUint16(dst[d:], binary.NativeEndian.Uint16(src[s:]))
		}
	case 4:
		for ; n > 0; n, d, s = n-1, d+to, s+from {
			binary.NativeEndian.PutUint32(dst[d:], binary.NativeEndian.Uint32(src[s:]))
		}
	case 8:
		for ; n > 0; n, d, s = n-1, d+to, s+from {
			binary.NativeEndian.PutUint64(dst[d:], binary.NativeEndian.Uint64(src[s:]))
		}
	default:
		for ; n > 0; n, d, s = n-1, d+to, s+from {
			copy(dst[d:d+size], src[s:s+size])
		}
	}
}
