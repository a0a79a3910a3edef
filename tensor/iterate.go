package tensor

import (
	"io"
	"iter"
)

// Unbind iterates over the views of t without dimension dim, one for each of its indices; a negative dim counts from
// the end. The views live as long as t. An error is the last pair, one of [Tensor.Select].
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
			if !yield(view, nil) {
				return
			}
		}
	}
}

// Elements iterates over the elements of t in row-major order, copied from memory of any device some thousands at a
// time. Writes to t by the loop's body may or may not be visible. An error is the last pair: [ErrDType] if T does not
// match, those of the memory and [os.ErrClosed].
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

// elementReader reads a tensor's elements piece by piece. It holds the memory only while it reads, so the tensor may be
// closed in between.
type elementReader[T Element] struct {
	from   *Tensor
	reader reader
	buf    []T
	raw    []byte // of buf
	piece  []T    // the last piece
	left   int64  // number of unread elements
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
			e.reader = r
		} else if err := e.reader.resume(a); err != nil {
			return err
		}
		_, err := io.ReadFull(e.reader, raw)
		return err
	})
	e.piece, e.left = e.buf[:n], e.left-int64(n)
	return err
}
