package tensor

import (
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
)

// rowWriter writes a tensor's bytes in row-major order, whatever its strides, for the length of an access.
type rowWriter struct {
	mem    driver.Memory
	data   []byte // the memory, where the processor addresses it
	walk   *walker
	base   int64
	size   int64
	run    run
	inside int64
	tail   byte  // bits of the last byte that are the tensor's
	end    int64 // bytes that are not written yet
}

// newWriter returns a writer of exactly the bytes of t, good for as long as the access, which is one for writing.
func newWriter(t access) *rowWriter {
	w := &rowWriter{mem: t.storage.mem, data: t.data, base: t.spec.ByteOffset, size: 1, tail: 0xFF, end: t.bytes}
	if t.spec.DType.packed() {
		w.tail, w.walk = t.tailMask(), newWalker(&Spec{Shape: Shape{t.bytes}}, false)
	} else {
		w.size, w.walk = int64(t.spec.DType.BitSize())/8, newWalker(&t.spec, false)
	}
	return w
}

// checkWritable is the reason why t cannot be written; nil where it can be.
func (t *Tensor) checkWritable() error {
	if !t.storage.Writable() {
		return fmt.Errorf("tensor %v%v: %w", t.spec.DType, t.spec.Shape, driver.ErrReadOnly)
	}
	if t.Contiguous() {
		return nil
	}
	if t.spec.DType.packed() {
		return fmt.Errorf("%w: %v elements share bytes with others; strided ones cannot be written", ErrNotContiguous, t.spec.DType)
	}
	for d, stride := range t.spec.Strides {
		if stride == 0 && t.spec.Shape[d] > 1 {
			return fmt.Errorf("%w: shape %v with strides %v repeats elements and cannot be written", ErrNotContiguous,
				t.spec.Shape, t.spec.Strides)
		}
	}
	return nil
}

// Write writes the next bytes. More than the tensor has are refused with [io.ErrShortWrite].
func (w *rowWriter) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if w.run.count == 0 {
			var ok bool
			if w.run, ok = w.walk.next(); !ok {
				return n, io.ErrShortWrite
			}
		}
		k, err := w.step(p[n:])
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// step writes up to one block.
func (w *rowWriter) step(p []byte) (int, error) {
	block, off := w.run.block*w.size, w.base+w.run.offset*w.size
	n := min(int64(len(p)), block-w.inside)
	if err := w.put(p[:n], off+w.inside); err != nil {
		return 0, err
	}
	w.end -= n
	if w.inside += n; w.inside == block {
		w.inside = 0
		w.run.offset += w.run.stride
		w.run.count--
	}
	return int(n), nil
}

func (w *rowWriter) put(p []byte, off int64) error {
	if w.tail != 0xFF && int64(len(p)) == w.end {
		return w.putTail(p, off)
	}
	return w.putBytes(p, off)
}

// putTail writes the end of a packed tensor and leaves the bits behind the last element as they are.
func (w *rowWriter) putTail(p []byte, off int64) error {
	whole := len(p) - 1
	if err := w.putBytes(p[:whole], off); err != nil {
		return err
	}
	var last [1]byte
	if err := readFull(w.mem, last[:], off+int64(whole)); err != nil {
		return err
	}
	last[0] = last[0]&^w.tail | p[whole]&w.tail
	return w.putBytes(last[:], off+int64(whole))
}

func (w *rowWriter) putBytes(p []byte, off int64) error {
	if w.data != nil {
		copy(w.data[off:], p)
		return nil
	}
	if len(p) == 0 {
		return nil
	}
	_, err := w.mem.WriteAt(p, off)
	return err
}
