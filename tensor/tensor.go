package tensor

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Tensor is a [Spec] that was checked against a [Storage], and a reference to that storage. All but the elements'
// values is fixed until Close. Its methods are safe for concurrent use; concurrent writes to the same elements are
// ordered by the callers. After Close what describes the tensor (Spec, Shape, Bytes and so on) still answers, and what
// touches its elements or makes a view fails with [os.ErrClosed].
type Tensor struct {
	spec     Spec // Strides is nil where contiguous
	elements int64
	bytes    int64
	storage  *Storage
	closed   atomic.Bool
}

// New returns an owned tensor over s. It borrows s, adds a reference of its own and copies the slices of spec. Errors
// are those of [Spec.Validate], and [os.ErrClosed] for a closed storage.
func New(s *Storage, spec Spec) (*Tensor, error) {
	spec = spec.Clone()
	t := new(Tensor)
	if err := t.init(s, &spec); err != nil {
		return nil, err
	}
	if !s.retain(1) {
		return nil, fmt.Errorf("storage %d: %w", s.id, os.ErrClosed)
	}
	return t, nil
}

// init checks spec and fills t in, without adding a reference.
func (t *Tensor) init(s *Storage, spec *Spec) error {
	e, err := spec.check(s.bytes)
	if err != nil {
		return err
	}
	t.spec, t.elements, t.bytes, t.storage = *spec, e.elements, e.bytes, s
	if e.contiguous {
		t.spec.Strides = nil
	}
	return nil
}

// Empty returns an owned, zeroed tensor of new memory on dev, row-major. Errors are those of [Spec.Validate] and of
// Alloc.
func Empty(dev driver.Device, dt DType, shape Shape) (*Tensor, error) {
	return newTensor(dev.Alloc, dt, shape)
}

// Uninitialized is [Empty] for those who write all elements: they are not zeroed where the device has memory that need
// not be ([driver.UninitializedAllocator]), and are what this program left there before. Of other devices they are 0.
func Uninitialized(dev driver.Device, dt DType, shape Shape) (*Tensor, error) {
	if u, can := dev.(driver.UninitializedAllocator); can {
		return newTensor(u.AllocUninitialized, dt, shape)
	}
	return newTensor(dev.Alloc, dt, shape)
}

func newTensor(alloc func(bytes int64) (driver.Memory, error), dt DType, shape Shape) (*Tensor, error) {
	spec := Spec{DType: dt, Shape: shape}
	size, err := spec.ByteLen()
	if err != nil {
		return nil, err
	}
	mem, err := alloc(size)
	if err != nil {
		return nil, fmt.Errorf("tensor %v%v: %w", dt, shape, err)
	}
	s := NewStorage(mem)
	t, err := New(s, spec)
	// The tensor has a reference of its own by now; closing ours frees the memory where there is no tensor.
	return t, errors.Join(err, s.Close())
}

// Spec describes the tensor inside its storage. The slices are shared: do not change them. Strides is nil where the
// tensor is contiguous, also when it was made with row-major strides.
func (t *Tensor) Spec() Spec { return t.spec }

// DType is the type of the elements.
func (t *Tensor) DType() DType { return t.spec.DType }

// Shape is the size of each dimension. The slice is shared: do not change it.
func (t *Tensor) Shape() Shape { return t.spec.Shape }

// Strides are the strides in elements, always filled in. Do not change the slice.
func (t *Tensor) Strides() Strides { return t.spec.filled() }

// Rank is the number of dimensions.
func (t *Tensor) Rank() int { return len(t.spec.Shape) }

// NumElements is the number of elements.
func (t *Tensor) NumElements() int64 { return t.elements }

// Bytes is the size of the elements side by side, in bytes, and what WriteTo writes. The storage may be larger, or,
// behind an expanded view, smaller.
func (t *Tensor) Bytes() int64 { return t.bytes }

// Storage is the storage that the tensor is a view of, borrowed: the caller does not close it, and calls Retain to keep
// it.
func (t *Tensor) Storage() *Storage { return t.storage }

// Device is the device that holds the elements, borrowed.
func (t *Tensor) Device() driver.Device { return t.storage.mem.Device() }

// Contiguous reports whether the elements lie row-major without gaps.
func (t *Tensor) Contiguous() bool { return t.spec.Strides == nil }

// Clone returns another owned tensor over the same bytes, as a second holder of them. Copy makes new bytes. The clone
// of a closed tensor is closed.
func (t *Tensor) Clone() *Tensor {
	c := &Tensor{spec: t.spec, elements: t.elements, bytes: t.bytes, storage: t.storage}
	if t.closed.Load() || !t.storage.retain(1) {
		c.closed.Store(true)
	}
	return c
}

// Close gives the reference to the storage back; the last one closes the memory and returns its error. A second Close
// is nil. Slices from [Data] and [RawData] must not be used after it.
func (t *Tensor) Close() error {
	if t.closed.Swap(true) {
		return nil
	}
	return t.storage.Close()
}

// Closed reports whether Close was called.
func (t *Tensor) Closed() bool { return t.closed.Load() }

// hold keeps the memory mapped for the length of one operation, so that a Close meanwhile cannot take it away. The
// caller calls the storage's Close after it.
func (t *Tensor) hold() error {
	if t.closed.Load() || !t.storage.retain(1) {
		return fmt.Errorf("tensor %v%v: %w", t.spec.DType, t.spec.Shape, os.ErrClosed)
	}
	return nil
}
