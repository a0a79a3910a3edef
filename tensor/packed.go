package tensor

import "io"

// packedReader reads the elements of a packed type in row-major order and repacks them, lowest bits first.
type packedReader struct {
	src   *source
	walk  *walker
	run   run
	first int64 // bit of the first element in the storage
	bits  int64 // of an element
	acc   uint  // bits that do not fill a byte yet
	held  int64 // number of bits in acc
}

func newPackedReader(t access) (*packedReader, error) {
	r := &packedReader{walk: newWalker(&t.spec, true), first: t.spec.ByteOffset * 8, bits: int64(t.spec.DType.BitSize())}
	var err error
	r.src, err = newStagedSource(t)
	return r, err
}

// resume makes the reader continue in another access.
func (r *packedReader) resume(t access) (err error) {
	r.src, err = newStagedSource(t)
	return err
}

// Read fills p with the remaining elements; the last byte is padded with zero bits.
func (r *packedReader) Read(p []byte) (int, error) {
	for n := range p {
		for r.held < 8 {
			code, err := r.next()
			if err == io.EOF && r.held > 0 {
				r.held = 8
				break
			}
			if err != nil {
				return n, err
			}
			r.acc |= uint(code) << r.held
			r.held += r.bits
		}
		p[n] = byte(r.acc)
		r.acc >>= 8
		r.held -= 8
	}
	return len(p), nil
}

// next returns the code of the next element.
func (r *packedReader) next() (byte, error) {
	if r.run.count == 0 {
		var ok bool
		if r.run, ok = r.walk.next(); !ok {
			return 0, io.EOF
		}
	}
	code, err := r.src.code(r.first+r.run.offset*r.bits, r.bits)
	r.run.offset += r.run.stride
	r.run.count--
	return code, err
}

// code reads the element of a packed type at a bit of the storage.
func (s *source) code(bit, bits int64) (byte, error) {
	first, last := bit/8, (bit+bits-1)/8
	at, err := s.window(first, last-first+1)
	if err != nil {
		return 0, err
	}
	both := uint(at[0])
	if last > first {
		both |= uint(at[1]) << 8
	}
	return byte(both>>(bit%8)) & (1<<bits - 1), nil
}

// unpack expands packed codes of the given bits to one code per byte. dst has one byte for each code.
func unpack(dst, packed []byte, bits int64) {
	acc, held := uint(0), int64(0)
	for i := range dst {
		if held < bits {
			acc |= uint(packed[0]) << held
			packed, held = packed[1:], held+8
		}
		dst[i] = byte(acc) & (1<<bits - 1)
		acc >>= bits
		held -= bits
	}
}
