// Package tensor describes arrays of numbers in memory that may be shared with other processes, and reads and writes
// them in place.
//
// A [Spec] is a plain value: data type, shape, strides and byte offset. A [Storage] is a counted reference to one
// [driver.Memory]. A [Tensor] is a Spec that was validated against a Storage, with a reference to it. Nothing is copied
// unless a function's name contains Copy. The memory is closed with the last tensor or reference.
//
// The caller owns the tensor that a constructor, Copy or Alias returns, and closes it. Views (Narrow, Select, Transpose,
// Reshape, View and so on) are other shapes of a tensor's elements. A view lives as long as the tensor it was made
// from and needs no Close. After that tensor was closed, its views return [os.ErrClosed]. Alias of a view lives on.
//
// Surprises:
//   - Strides count elements, offsets count bytes. Any byte offset is valid, because safetensors files are not aligned.
//     Only [Data], which returns Go slices, requires alignment.
//   - Data types under a byte (Float4E2M1FN, Float6E2M3FN, Float6E3M2FN) are packed with the lowest bits first, as in
//     DLPack. Views of them must begin on a byte.
//   - Bytes are little-endian, in memory and in files.
//   - Zeros returns zeroed elements, Empty elements that the caller must write.
//   - Alias returns another reference to the same bytes. Copy creates new ones.
package tensor

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Tensor is a [Spec] validated against a [Storage]. It has a reference to that storage, or is a view of a tensor that has
// one. Everything except the elements'
// values is constant until Close. Its methods are safe for concurrent use; callers order concurrent writes to the same
// elements. After Close, the description (Spec, Shape, Bytes and so on) remains available, and access to elements or
// views fails with [os.ErrClosed].
type Tensor struct {
	spec     Spec // Strides is nil if contiguous
	elements int64
	bytes    int64
	storage  *Storage
	parent   *Tensor // of a view, which has no reference to the storage; otherwise nil
	closed   atomic.Bool
	kept     atomic.Bool // Close has no effect
}

// New returns an owned tensor over s. It borrows s, adds a reference and copies the slices of spec. It returns the errors of
// [Spec.Validate], and [os.ErrClosed] for a closed storage.
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

// init checks spec and initializes t without adding a reference.
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

// Zeros returns an owned, row-major tensor of zeros in new memory on dev. It returns the errors of [Spec.Validate] and of
// Alloc.
func Zeros(dev driver.Device, dt DType, shape Shape) (*Tensor, error) {
	if err := driver.CheckDevice(dev); err != nil {
		return nil, err
	}
	return newTensor(dev.Alloc, dt, shape)
}

// Empty is [Zeros] for callers that write all elements. On a [driver.UninitializedAllocator] the elements are not zeroed
// and may hold data that this program left there. On other devices they are 0.
func Empty(dev driver.Device, dt DType, shape Shape) (*Tensor, error) {
	if err := driver.CheckDevice(dev); err != nil {
		return nil, err
	}
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
	// The tensor has its own reference; closing this one frees the memory if there is no tensor.
	return t, errors.Join(err, s.Close())
}

// Spec describes the tensor inside its storage. Its slices are shared and must not be changed. Strides is nil if the
// tensor is contiguous, even if it was created with row-major strides.
func (t *Tensor) Spec() Spec { return t.spec }

// DType returns the type of the elements.
func (t *Tensor) DType() DType { return t.spec.DType }

// Shape returns the size of each dimension. The slice is shared and must not be changed.
func (t *Tensor) Shape() Shape { return t.spec.Shape }

// Strides returns the strides in elements, always filled in. The slice must not be changed.
func (t *Tensor) Strides() Strides { return t.spec.filled() }

// Rank returns the number of dimensions.
func (t *Tensor) Rank() int { return len(t.spec.Shape) }

// NumElements returns the number of elements.
func (t *Tensor) NumElements() int64 { return t.elements }

// Bytes returns the size of the adjacent elements in bytes, which is what WriteTo writes. The storage may be larger or,
// for an expanded view, smaller.
func (t *Tensor) Bytes() int64 { return t.bytes }

// Storage returns the storage of the tensor, borrowed: call Retain to keep it.
func (t *Tensor) Storage() *Storage { return t.storage }

// Device returns the device of the elements, borrowed.
func (t *Tensor) Device() driver.Device { return t.storage.mem.Device() }

// Contiguous reports whether the elements are row-major without gaps.
func (t *Tensor) Contiguous() bool { return t.spec.Strides == nil }

// Alias returns another owned tensor over the same bytes, which lives until its own Close. Copy creates new bytes. The
// alias of a closed tensor is closed.
func (t *Tensor) Alias() *Tensor {
	c := &Tensor{spec: t.spec, elements: t.elements, bytes: t.bytes, storage: t.storage}
	if t.Closed() || !t.storage.retain(1) {
		c.closed.Store(true)
	}
	return c
}

// Close releases the reference to the storage; the last one closes the memory and returns its error. The views of the
// tensor are closed with it. Slices of their elements ([Data], [RawData]) must not be used afterwards. A second Close
// returns nil. Close of a view closes only that view and views of it; it is not required. Close of a tensor that belongs
// to a state dict has no effect.
func (t *Tensor) Close() error {
	if t.kept.Load() {
		return nil
	}
	return t.end()
}

func (t *Tensor) end() error {
	if t.closed.Swap(true) || t.parent != nil {
		return nil
	}
	return t.storage.Close()
}

// Closed reports whether Close was called, for the tensor or one that it is a view of.
func (t *Tensor) Closed() bool {
	for ; t != nil; t = t.parent {
		if t.closed.Load() {
			return true
		}
	}
	return false
}

// hold keeps the memory mapped during one operation, so that a concurrent Close does not unmap it. The caller calls the
// storage's Close afterwards.
func (t *Tensor) hold() error {
	if t.Closed() || !t.storage.retain(1) {
		return t.closedError()
	}
	return nil
}

func (t *Tensor) closedError() error {
	return fmt.Errorf("tensor %v%v: %w", t.spec.DType, t.spec.Shape, os.ErrClosed)
}
