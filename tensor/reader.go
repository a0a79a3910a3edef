package tensor

import "io"

// reader reads a tensor's bytes during an access. After it, resume continues in another access of the same tensor.
type reader interface {
	io.Reader
	resume(t access) error
}

// rowReader reads a tensor's bytes in row-major order, for any strides, during an access.
type rowReader struct {
	src    *source
	walk   *walker
	base   int64 // the tensor's byte offset
	size   int64 // bytes of an element
	run    run   // the rest of the current run: offset and count advance
	inside int64 // number of bytes read of the current block
	tail   byte  // mask of the tensor's bits in the last byte
	left   int64 // number of unread bytes
}

// newReader returns a reader of all bytes of t, valid during the access. Bits behind the last element of a packed type
// are read as 0.
func newReader(t access) (reader, error) {
	packed := t.spec.DType.packed()
	if packed && !t.Contiguous() {
		return newPackedReader(t)
	}
	r := &rowReader{base: t.spec.ByteOffset, size: 1, tail: 0xFF, left: t.bytes}
	if packed { // without gaps, so it is read as bytes
		r.tail, r.walk = t.tailMask(), newWalker(&Spec{Shape: Shape{t.bytes}}, false)
	} else {
		r.size, r.walk = int64(t.spec.DType.BitSize())/8, newWalker(&t.spec, false)
	}
	if t.data == nil && !t.Contiguous() && r.walk.run.block*r.size < stageBlock {
		return newStagedReader(t, chunkBytes(t.Tensor)), nil
	}
	r.src = newSource(t)
	return r, nil
}

// resume makes the reader continue in another access.
func (r *rowReader) resume(t access) error {
	r.src = newSource(t)
	return nil
}

// tailMask returns the mask of the bits of the last byte that belong to a contiguous tensor.
func (t *Tensor) tailMask() byte {
	if bits := t.elements % 8 * int64(t.spec.DType.BitSize()) % 8; bits != 0 {
		return 1<<bits - 1
	}
	return 0xFF
}

// Read fills p with the remaining bytes.
func (r *rowReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if r.run.count == 0 {
			var ok bool
			if r.run, ok = r.walk.next(); !ok {
				return n, io.EOF
			}
		}
		k, err := r.step(p[n:])
		if err != nil {
			return n, err
		}
		n += k
		if r.left -= int64(k); r.left == 0 {
			p[n-1] &= r.tail
		}
	}
	return n, nil
}

// step reads whole blocks of the current run, or part of one if p is short or the block was partly read before.
func (r *rowReader) step(p []byte) (int, error) {
	block, off := r.run.block*r.size, r.base+r.run.offset*r.size
	if r.inside > 0 || int64(len(p)) < block {
		n := min(int64(len(p)), block-r.inside)
		if err := r.src.read(p[:n], off+r.inside); err != nil {
			return 0, err
		}
		if r.inside += n; r.inside == block {
			r.inside = 0
			r.run.offset += r.run.stride
			r.run.count--
		}
		return int(n), nil
	}
	n := min(int64(len(p))/block, r.run.count)
	if err := r.src.gather(p[:n*block], off, r.run.stride*r.size, block); err != nil {
		return 0, err
	}
	r.run.offset += n * r.run.stride
	r.run.count -= n
	return int(n * block), nil
}
