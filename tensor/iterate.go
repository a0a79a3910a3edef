package tensor

import (
	"io"
	"iter"
)

// Unbind visits the views of t with dimension dim taken away, at one index of it after the other; dim may be negative
// to count from the end. A view is valid until the loop goes on: clone it to keep it. An error is the last pair; it is
// one of [Tensor.Select].
//
//	for row, err := range x.Unbind(0) {
func (t *Tensor) Unbind(dim int) iter.Seq2[*Tensor, error] {
	return func(yield func(*Tensor, error) bool) {
		d, err := t.dim(dim)
		if err != nil {
			yield(nil, err)
			return
		}
		for i := range t.spec.Shape[d] {
			view, err := t.Select(d, i)
			if err != nil {
				yield(nil, err)
				return
			}
			if !yieldView(view, yield) {
				return
			}
		}
	}
}

// yieldView closes the view also where the loop's body panics.
func yieldView(view *Tensor, yield func(*Tensor, error) bool) bool {
	defer view.Close() // of a view that is valid, and whose storage t has too
	return yield(view, nil)
}

// Elements visits the elements of t in row-major order, whatever its strides, copied from memory of any device some
// thousands at a time. What the loop's body writes to t may be seen or not. An error is the last pair: [ErrDType] where
// T does not fit, those of the memory and [os.ErrClosed].
func Elements[T Element](t *Tensor) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		e, err := newElementReader[T](t)
		for err == nil && e.left > 0 {
			if err = e.next(); err != nil {
				break
			}
			for _, v := range e.piece {
				if !yield(v, nil) {
					return
				}
			}
		}
		if err != nil {
			var none T
			yield(none, err)
		}
	}
}

// elementReader reads a tensor's elements piece by piece. It has the memory only while it reads: the tensor may be
// closed in between.
type elementReader[T Element] struct {
	from   *Tensor
	reader *rowReader
	buf    []T
	raw    []byte // of buf
	piece  []T    // that was read last
	left   int64  // elements that were not read yet
}

func newElementReader[T Element](t *Tensor) (*elementReader[T], error) {
	if err := holds[T](t); err != nil {
		return nil, err
	}
	e := &elementReader[T]{from: t, buf: make([]T, min(t.elements, convertPiece)), left: t.elements}
	var err error
	e.raw, err = bytesOf(e.buf)
	return e, err
}

// next reads the next piece.
func (e *elementReader[T]) next() error {
	n := int(min(e.left, int64(len(e.buf))))
	raw := e.raw[:n*len(e.raw)/len(e.buf)]
	err := e.from.reading(func(a access) error {
		if e.reader == nil {
			r, err := newReader(a)
			if err != nil {
				return err
			}
			e.reader = r.(*rowReader) // types with Go elements are not packed
		} else {
			var err error
			if e.reader.src, err = newSource(a, e.reader.walk.run.block*e.reader.size); err != nil {
				return err
			}
		}
		_, err := io.ReadFull(e.reader, raw)
		return err
	})
	e.piece, e.left = e.buf[:n], e.left-int64(n)
	return err
}
