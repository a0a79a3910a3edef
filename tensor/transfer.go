package tensor

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	// transferPiece is how many bytes pass through the host at a time where they cannot be handed on directly.
	transferPiece = 1 << 20
	// directPiece is how many bytes of the memory itself a writer gets at a time: few enough that it can stop in between.
	directPiece = 8 << 20
)

// maxRepeated is the largest expanded tensor that is copied into Go memory: its size says nothing about the storage, and may
// come from another process.
const maxRepeated = 1 << 30

// held runs fn while the storage is held.
func (t *Tensor) held(fn func() error) error {
	if err := t.hold(); err != nil {
		return err
	}
	return errors.Join(fn(), t.storage.Close())
}

// WriteTo writes the elements to w in row-major order, whatever the strides, as Bytes bytes. Bits behind the last element of
// a packed type are written as 0. Where t is contiguous in host memory w gets pieces of the memory itself, which it must not
// change. It implements [io.WriterTo]; errors are those of w and of the memory, and [os.ErrClosed].
func (t *Tensor) WriteTo(w io.Writer) (n int64, err error) {
	err = t.held(func() error {
		n, err = t.writeHeld(w)
		return err
	})
	return n, err
}

func (t *Tensor) writeHeld(w io.Writer) (int64, error) {
	if t.bytes == 0 {
		return 0, nil
	}
	if t.tailMask() == 0xFF {
		if raw, err := t.rawHeld(); err == nil {
			return writePieces(w, raw)
		}
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

// writePieces writes all of p. A writer that takes less without an error is one with an error.
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

// copyable is the error of copying t into Go memory, nil where it may be.
func (t *Tensor) copyable() error {
	if t.bytes > t.storage.bytes && t.bytes > maxRepeated {
		return fmt.Errorf("%w: shape %v repeats a storage of %d bytes to %d", ErrBounds, t.spec.Shape, t.storage.bytes, t.bytes)
	}
	return nil
}

// ReadBytes returns a copy of the elements in row-major order, as WriteTo writes them. A tensor that repeats its storage to
// more than 1 GiB is refused with [ErrBounds].
func (t *Tensor) ReadBytes() ([]byte, error) {
	if err := t.copyable(); err != nil {
		return nil, err
	}
	var out []byte
	err := t.held(func() error {
		r, err := newReader(t)
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

// FillFrom reads exactly Bytes bytes from r and writes them as the elements in row-major order. Where r has fewer the error
// is [io.ErrUnexpectedEOF] and the elements before stay written. Other errors are [driver.ErrReadOnly], [ErrNotContiguous]
// for a tensor that cannot be written (expanded, or a strided view of a packed type), and [os.ErrClosed].
func (t *Tensor) FillFrom(r io.Reader) error {
	return t.held(func() error {
		w, err := newWriter(t)
		if err != nil {
			return err
		}
		defer t.storage.written()
		if t.tailMask() == 0xFF {
			if raw, err := t.rawHeld(); err == nil {
				return fill(r, raw)
			}
		}
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

// fill reads all of p. It begins no read for nothing, and to end early is always unexpected.
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

// zeros is an endless row of zero bytes.
type zeros struct{}

// Read fills p with zeros.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Zero sets all elements to the zero bits. Errors are those of FillFrom.
func (t *Tensor) Zero() error { return t.FillFrom(zeros{}) }

// CopyFrom copies the elements of src, which has the same data type and shape and may be on another device and strided. Where
// both overlap in one storage src is copied to the host whole first. It borrows src. Errors are [ErrDType], [ErrShape] and
// those of FillFrom.
func (t *Tensor) CopyFrom(src *Tensor) error {
	if t.spec.DType != src.spec.DType {
		return fmt.Errorf("%w: a copy from %v to %v", ErrDType, src.spec.DType, t.spec.DType)
	}
	if !t.spec.Shape.Equal(src.spec.Shape) {
		return fmt.Errorf("%w: a copy from %v to %v", ErrShape, src.spec.Shape, t.spec.Shape)
	}
	return src.held(func() error { return t.held(func() error { return t.copyHeld(src) }) })
}

func (t *Tensor) copyHeld(src *Tensor) error {
	w, err := newWriter(t)
	if err != nil || t.bytes == 0 {
		return err
	}
	defer t.storage.written()
	if overlap(t, src) {
		all, err := src.ReadBytes()
		if err == nil {
			_, err = w.Write(all)
		}
		return err
	}
	if t.tailMask() == 0xFF {
		if raw, err := t.rawHeld(); err == nil {
			r, err := newReader(src)
			if err == nil {
				_, err = io.ReadFull(r, raw)
			}
			return err
		}
	}
	_, err = src.writeHeld(w)
	return err
}

// overlap tells whether two tensors may touch the same bytes.
func overlap(a, b *Tensor) bool {
	if a.storage.Origin() != b.storage.Origin() {
		return false
	}
	spanA, errA := a.spec.Extent()
	spanB, errB := b.spec.Extent()
	return errA != nil || errB != nil || a.spec.ByteOffset < b.spec.ByteOffset+spanB && b.spec.ByteOffset < a.spec.ByteOffset+spanA
}

// Copy returns an owned, contiguous tensor of new memory on dev with the same elements; nil means the device of t. Errors
// are those of [Empty] and CopyFrom, and [ErrBounds] as for ReadBytes.
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

// Equal tells whether both tensors have the same data type, shape and elements, bit for bit: a NaN equals itself, and zeros
// of two signs differ. Devices and strides do not matter. Errors are those of the memory and [os.ErrClosed].
func (t *Tensor) Equal(o *Tensor) (equal bool, err error) {
	err = t.held(func() error {
		return o.held(func() error {
			equal, err = t.equalHeld(o)
			return err
		})
	})
	return equal, err
}

func (t *Tensor) equalHeld(o *Tensor) (bool, error) {
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
