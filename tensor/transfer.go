package tensor

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	// transferPiece is the number of bytes that pass through the host at a time if they cannot be passed on directly.
	transferPiece = 1 << 20
	// directPiece is the number of bytes of the memory that a writer gets at a time, small enough to be interrupted in
	// between.
	directPiece = 8 << 20
)

// maxRepeated is the size of the largest expanded tensor that is copied into Go memory. Its size is independent of the
// storage and may come from another process.
const maxRepeated = 1 << 30

// WriteTo writes the elements to w in row-major order as Bytes bytes. Bits behind the last element of a packed type are
// written as 0. If t is contiguous in host memory, w gets pieces of the memory itself, which it must not change. It
// implements [io.WriterTo]; errors are those of w and of the memory, and [os.ErrClosed].
func (t *Tensor) WriteTo(w io.Writer) (n int64, err error) {
	err = t.reading(func(a access) error {
		n, err = a.writeTo(w)
		return err
	})
	return n, err
}

func (t access) writeTo(w io.Writer) (int64, error) {
	if t.bytes == 0 {
		return 0, nil
	}
	if raw, ok := t.contiguous(); ok && t.tailMask() == 0xFF {
		return writePieces(w, raw)
	}
	r, err := newReader(t)
	if err != nil {
		return 0, err
	}
	buf, done := make([]byte, min(t.bytes, transferPiece)), int64(0)
	for done < t.bytes {
		p := buf[:min(int64(len(buf)), t.bytes-done)]
		if _, err := io.ReadFull(r, p); err != nil {
			return done, err
		}
		n, err := writePieces(w, p)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// writePieces writes all of p. A short write without an error is an error.
func writePieces(w io.Writer, p []byte) (int64, error) {
	done := int64(0)
	for len(p) > 0 {
		piece := p[:min(len(p), directPiece)]
		n, err := w.Write(piece)
		done += int64(n)
		if err == nil && n < len(piece) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return done, err
		}
		p = p[n:]
	}
	return done, nil
}

// copyable returns nil if t may be copied into Go memory, otherwise an error.
func (t *Tensor) copyable() error {
	if t.bytes > t.storage.bytes && t.bytes > maxRepeated {
		return fmt.Errorf("%w: shape %v repeats a storage of %d bytes to %d", ErrBounds, t.spec.Shape, t.storage.bytes, t.bytes)
	}
	return nil
}

// ReadBytes returns a copy of the elements in row-major order, as WriteTo writes them. An expanded tensor over 1 GiB is
// refused with [ErrBounds].
func (t *Tensor) ReadBytes() ([]byte, error) {
	if err := t.copyable(); err != nil {
		return nil, err
	}
	var out []byte
	err := t.reading(func(a access) error {
		r, err := newReader(a)
		if err != nil {
			return err
		}
		out = make([]byte, t.bytes)
		_, err = io.ReadFull(r, out)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// FillFrom reads exactly Bytes bytes from r and writes them as the elements in row-major order. If r has fewer, the
// error is [io.ErrUnexpectedEOF] and the elements before it stay written. Other errors are [driver.ErrReadOnly],
// [ErrNotContiguous] for a tensor that cannot be filled (expanded, or a strided view of a packed type), and
// [os.ErrClosed].
func (t *Tensor) FillFrom(r io.Reader) error {
	return t.writing(func(a access) error {
		defer t.storage.written()
		if raw, ok := a.contiguous(); ok && t.tailMask() == 0xFF {
			return fill(r, raw)
		}
		w := newWriter(a)
		buf := make([]byte, min(t.bytes, transferPiece))
		for left := t.bytes; left > 0; {
			p := buf[:min(int64(len(buf)), left)]
			if err := fill(r, p); err != nil {
				return err
			}
			if _, err := w.Write(p); err != nil {
				return err
			}
			left -= int64(len(p))
		}
		return nil
	})
}

// fill reads all of p. It does not read if p is empty, and an early end is always unexpected.
func fill(r io.Reader, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, err := io.ReadFull(r, p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// zeros is an endless source of zero bytes.
type zeros struct{}

// Read fills p with zeros.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Zero sets all elements to the zero bits. It returns the errors of FillFrom.
func (t *Tensor) Zero() error { return t.FillFrom(zeros{}) }

// CopyFrom copies the elements of src, which has the same data type and may be strided and on another device. Its shape
// is that of t, or one that [Tensor.Expand] expands to that of t. If both overlap in memory, even through two mappings,
// src is first copied to the host. Contiguous tensors of devices that can access each other's memory are copied without
// the host. It borrows src. Errors are [ErrDType], [ErrShape] and those of FillFrom.
func (t *Tensor) CopyFrom(src *Tensor) error {
	if t.spec.DType != src.spec.DType {
		return fmt.Errorf("%w: a copy from %v to %v", ErrDType, src.spec.DType, t.spec.DType)
	}
	if !t.spec.Shape.Equal(src.spec.Shape) {
		repeated, err := src.Expand(t.spec.Shape)
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		return t.CopyFrom(repeated)
	}
	return src.reading(func(from access) error {
		return t.writing(func(to access) error { return to.copyFrom(from) })
	})
}

func (t access) copyFrom(src access) error {
	if t.bytes == 0 {
		return nil
	}
	defer t.storage.written()
	if overlap(t.Tensor, src.Tensor) {
		all, err := src.ReadBytes()
		if err == nil {
			_, err = newWriter(t).Write(all)
		}
		return err
	}
	whole := t.tailMask() == 0xFF
	if t.data == nil && src.data == nil && whole && t.Contiguous() && src.Contiguous() {
		err := t.storage.mem.CopyFrom(t.spec.ByteOffset, src.storage.mem, src.spec.ByteOffset, t.bytes)
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	if raw, ok := t.contiguous(); ok && whole {
		r, err := newReader(src)
		if err == nil {
			_, err = io.ReadFull(r, raw)
		}
		return err
	}
	_, err := src.writeTo(newWriter(t))
	return err
}

// overlap reports whether two tensors may share bytes, which may be mapped more than once.
func overlap(a, b *Tensor) bool {
	beginA, beginB := a.spec.ByteOffset, b.spec.ByteOffset
	if a.storage.Origin() != b.storage.Origin() {
		placeA, knownA := place(a)
		placeB, knownB := place(b)
		if !knownA || !knownB || placeA.Object != placeB.Object {
			return false
		}
		beginA, beginB = beginA+placeA.Offset, beginB+placeB.Offset
	}
	spanA, errA := a.spec.Extent()
	spanB, errB := b.spec.Extent()
	return errA != nil || errB != nil || beginA < beginB+spanB && beginB < beginA+spanA
}

// place returns the system's identification of the memory of t.
func place(t *Tensor) (driver.Place, bool) {
	d, err := t.storage.mem.Describe()
	return d.Place, err == nil && d.Place.Object != ""
}

// Copy returns an owned, contiguous tensor of new memory on dev with the same elements; a nil dev is the device of t.
// It returns the errors of [Zeros] and CopyFrom, and [ErrBounds] as for ReadBytes.
func (t *Tensor) Copy(dev driver.Device) (*Tensor, error) {
	if err := t.copyable(); err != nil {
		return nil, err
	}
	if t.Closed() { // before memory is allocated
		return nil, t.hold()
	}
	if dev == nil {
		dev = t.Device()
	}
	c, err := Empty(dev, t.spec.DType, t.spec.Shape)
	if err != nil {
		return nil, err
	}
	if err := c.CopyFrom(t); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Equal reports whether both tensors have the same data type, shape and elements, bit for bit: a NaN equals itself, and
// zeros of different signs differ. Devices and strides may differ. It returns the errors of the memory and [os.ErrClosed].
func (t *Tensor) Equal(o *Tensor) (equal bool, err error) {
	err = t.reading(func(a access) error {
		return o.reading(func(b access) error {
			equal, err = a.equal(b)
			return err
		})
	})
	return equal, err
}

func (t access) equal(o access) (bool, error) {
	if t.spec.DType != o.spec.DType || !t.spec.Shape.Equal(o.spec.Shape) {
		return false, nil
	}
	a, err := newReader(t)
	if err != nil {
		return false, err
	}
	b, err := newReader(o)
	if err != nil {
		return false, err
	}
	piece := min(t.bytes, transferPiece/4)
	bufA, bufB := make([]byte, piece), make([]byte, piece)
	for left := t.bytes; left > 0; left -= piece {
		piece = min(piece, left)
		if _, err := io.ReadFull(a, bufA[:piece]); err != nil {
			return false, err
		}
		if _, err := io.ReadFull(b, bufB[:piece]); err != nil {
			return false, err
		}
		if !bytes.Equal(bufA[:piece], bufB[:piece]) {
			return false, nil
		}
	}
	return true, nil
}
