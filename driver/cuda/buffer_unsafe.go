package cuda

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Buffer is an array of values of type T in memory of a device. Its methods count in values and check all ranges. T is
// a number, or an array or a struct of numbers with the same layout in C. A Buffer is an argument of kernels ([Region]).
type Buffer[T any] struct {
	mem    *Memory
	offset int64
	n      int
	owned  bool
}

// elementBytes returns the size of T. It fails if T has no fixed layout.
func elementBytes[T any]() (int64, error) {
	t := reflect.TypeFor[T]()
	if err := plainType(t); err != nil {
		return 0, err
	}
	if t.Size() == 0 {
		return 0, invalid("%s has no bytes", t)
	}
	return int64(t.Size()), nil
}

// sizeOf returns the number of bytes of n values of T.
func sizeOf[T any](n int) (int64, error) {
	size, err := elementBytes[T]()
	if err != nil {
		return 0, err
	}
	if n < 0 || int64(n) > math.MaxInt64/size {
		return 0, invalid("%d values of %d bytes", n, size)
	}
	return int64(n) * size, nil
}

// NewBuffer returns a zeroed buffer of n values, at least 1, which the caller owns. Its memory is of cuMemAlloc, which
// suits small buffers too. Use [BufferOf] for memory of [Device.Alloc], which other processes can map, or of a pool.
func NewBuffer[T any](d *Device, n int) (*Buffer[T], error) {
	bytes, err := sizeOf[T](n)
	if err != nil {
		return nil, d.opError("new buffer", err)
	}
	m, err := d.AllocLegacy(bytes)
	if err != nil {
		return nil, err
	}
	if err := m.Fill(0, bytes, 0); err != nil {
		return nil, joinErrors([]error{err, m.discard()})
	}
	return &Buffer[T]{mem: m, n: n, owned: true}, nil
}

// BufferOf returns a buffer over n values in m at offset, in bytes, a multiple of T's alignment. It borrows m: Close of
// the buffer does not close it.
func BufferOf[T any](m *Memory, offset int64, n int) (*Buffer[T], error) {
	bytes, err := sizeOf[T](n)
	if err == nil {
		err = m.inRange(offset, bytes)
	}
	if err == nil {
		err = aligned(offset, int64(reflect.TypeFor[T]().Align()))
	}
	if err != nil {
		return nil, m.dev.opError("buffer", err)
	}
	return &Buffer[T]{mem: m, offset: offset, n: n}, nil
}

// Len returns the number of values.
func (b *Buffer[T]) Len() int { return b.n }

// Memory returns the memory that contains the buffer, borrowed.
func (b *Buffer[T]) Memory() *Memory { return b.mem }

// Region implements [Region].
func (b *Buffer[T]) Region() (driver.Memory, int64, error) {
	if b == nil {
		return nil, 0, errNilMemory
	}
	return b.mem, b.offset, nil
}

// Slice returns the values from begin to before end. It borrows b.
func (b *Buffer[T]) Slice(begin, end int) (*Buffer[T], error) {
	if begin < 0 || end < begin || end > b.n {
		return nil, b.mem.dev.opError("slice", fmt.Errorf("%w: values %d to %d of %d", driver.ErrRange, begin, end, b.n))
	}
	return &Buffer[T]{mem: b.mem, offset: b.offset + int64(begin)*b.width(), n: end - begin}, nil
}

func (b *Buffer[T]) width() int64 { return int64(unsafe.Sizeof(*new(T))) }

// at returns the offset in the memory of n values at an index.
func (b *Buffer[T]) at(index, n int) (int64, error) {
	if index < 0 || n < 0 || index > b.n || n > b.n-index {
		return 0, fmt.Errorf("%w: %d values at %d of %d", driver.ErrRange, n, index, b.n)
	}
	return b.offset + int64(index)*b.width(), nil
}

// bytesOf returns the bytes of a slice.
func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(T))))
}

// Read copies len(dst) values at index to dst and returns when they have arrived. It is ordered like [Memory.ReadAt].
func (b *Buffer[T]) Read(dst []T, index int) error {
	off, err := b.at(index, len(dst))
	if err != nil {
		return b.mem.dev.opError("read", err)
	}
	_, err = b.mem.ReadAt(bytesOf(dst), off)
	return err
}

// Write copies src to the values at index and returns when the device has them. It is ordered like [Memory.WriteAt].
func (b *Buffer[T]) Write(src []T, index int) error {
	off, err := b.at(index, len(src))
	if err != nil {
		return b.mem.dev.opError("write", err)
	}
	_, err = b.mem.WriteAt(bytesOf(src), off)
	return err
}

// Values returns a copy of all values.
func (b *Buffer[T]) Values() ([]T, error) {
	v := make([]T, b.n)
	return v, b.Read(v, 0)
}

// Fill queues an operation that sets all values to value, for types of 1, 2 or 4 bytes. For other types use
// [Buffer.Write].
func (b *Buffer[T]) Fill(s *Stream, value T) error {
	p := unsafe.Pointer(&value)
	switch n := int64(b.n); b.width() {
	case 1:
		return s.Fill8(b.mem, b.offset, n, *(*uint8)(p))
	case 2:
		return s.Fill16(b.mem, b.offset, n, *(*uint16)(p))
	case 4:
		return s.Fill32(b.mem, b.offset, n, *(*uint32)(p))
	}
	return s.dev.opError("fill", invalid("the device fills values of 1, 2 or 4 bytes, not of %d: use Write", b.width()))
}

// sameLength checks that two sides of a copy have the same number of values.
func sameLength(dst, src int) error {
	if dst != src {
		return fmt.Errorf("%w: a copy of %d values to %d", driver.ErrRange, src, dst)
	}
	return nil
}

// CopyFrom queues a copy of all values of src, which must have the same length and not overlap. It borrows src.
func (b *Buffer[T]) CopyFrom(s *Stream, src *Buffer[T]) error {
	if err := sameLength(b.n, src.n); err != nil {
		return s.dev.opError("copy on device", err)
	}
	return s.CopyOnDevice(b.mem, b.offset, src.mem, src.offset, int64(b.n)*b.width())
}

// Upload queues a copy of all values of pinned memory, which must have the same length. It borrows src, whose values
// must not change before the copy is done.
func (b *Buffer[T]) Upload(s *Stream, src *HostBuffer[T]) error {
	if err := sameLength(b.n, src.n); err != nil {
		return s.dev.opError("copy to device", err)
	}
	return s.CopyToDevice(b.mem, b.offset, src.mem, src.offset, int64(b.n)*b.width())
}

// Download queues a copy of all values to pinned memory, which must have the same length. It borrows dst.
func (b *Buffer[T]) Download(s *Stream, dst *HostBuffer[T]) error {
	if err := sameLength(dst.n, b.n); err != nil {
		return s.dev.opError("copy to host", err)
	}
	return s.CopyToHost(dst.mem, dst.offset, b.mem, b.offset, int64(b.n)*b.width())
}

// Close closes memory that [NewBuffer] allocated, like [Memory.Close]. Otherwise it does nothing.
func (b *Buffer[T]) Close() error {
	if !b.owned {
		return nil
	}
	return b.mem.Close()
}

// HostBuffer is an array of values of type T in pinned memory, for copies by [Buffer.Upload] and [Buffer.Download].
type HostBuffer[T any] struct {
	mem    *HostMemory
	offset int64
	n      int
	owned  bool
}

// NewHostBuffer returns a buffer of n values in pinned memory, which the caller owns.
func NewHostBuffer[T any](d *Device, n int) (*HostBuffer[T], error) {
	bytes, err := sizeOf[T](n)
	if err != nil {
		return nil, d.opError("new host buffer", err)
	}
	m, err := d.AllocHost(bytes)
	if err != nil {
		return nil, err
	}
	return &HostBuffer[T]{mem: m, n: n, owned: true}, nil
}

// HostBufferOf returns a buffer over n values in pinned memory at offset, in bytes. It borrows m. It fails with
// [driver.ErrInvalid] if the address is not a multiple of T's alignment.
func HostBufferOf[T any](m *HostMemory, offset int64, n int) (*HostBuffer[T], error) {
	bytes, err := sizeOf[T](n)
	if err != nil {
		return nil, m.dev.opError("host buffer", err)
	}
	data, err := m.hostRange(offset, bytes)
	if err == nil && uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(reflect.TypeFor[T]().Align()) != 0 {
		err = invalid("the values at %d are not aligned", offset)
	}
	if err != nil {
		return nil, m.dev.opError("host buffer", err)
	}
	return &HostBuffer[T]{mem: m, offset: offset, n: n}, nil
}

// Len returns the number of values.
func (b *HostBuffer[T]) Len() int { return b.n }

// Memory returns the pinned memory that contains the buffer, borrowed.
func (b *HostBuffer[T]) Memory() *HostMemory { return b.mem }

// Values returns the values in place. The slice is valid until Close, as for [HostMemory.Data], and nil after it.
func (b *HostBuffer[T]) Values() []T {
	data := b.mem.Data()
	if data == nil || b.n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&data[b.offset])), b.n)
}

// Close closes memory that [NewHostBuffer] allocated, like [HostMemory.Close]. Otherwise it does nothing.
func (b *HostBuffer[T]) Close() error {
	if !b.owned {
		return nil
	}
	return b.mem.Close()
}

// AllocPitched returns memory for rows of width bytes, which the caller owns, and the distance in bytes between the
// beginnings of rows, which suits the device. elementBytes is the size of the elements that kernels access: 4, 8 or 16.
// The memory is not zeroed. It is memory like that of [Device.AllocLegacy].
func (d *Device) AllocPitched(width, rows int64, elementBytes int) (m *Memory, pitch int64, err error) {
	m, err = made(d, "alloc pitched", func() (*Memory, error) {
		if width <= 0 || rows <= 0 {
			return nil, invalid("%d rows of %d bytes", rows, width)
		}
		m := &Memory{dev: d, writable: true}
		var p uint64
		r := d.p.ctx.MemAllocPitch(&m.ptr, &p, uint64(width), uint64(rows), uint32(elementBytes))
		if err := check("cuMemAllocPitch", r); err != nil {
			return nil, err
		}
		pitch, ptr := int64(p), m.ptr
		m.bytes = pitch * rows
		return m, m.own(d.p, "memory", m.bytes, func() error { return freed("cuMemFree", cu.MemFree(ptr)) })
	})
	if err != nil {
		return nil, 0, err
	}
	return m, m.bytes / rows, nil
}
