package cuda

import (
	"math"
	"os"
	"reflect"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// unknownSize is the size of a parameter if the driver does not report it.
const unknownSize = -1

// arguments holds a kernel's arguments as bytes, each aligned for its size.
type arguments struct {
	values  []byte
	offsets []int
	used    []*resource // objects that must stay open until the kernel is queued
}

// add appends one argument for a parameter of size bytes.
func (a *arguments) add(arg any, size int) error {
	switch v := arg.(type) {
	case nil:
		return invalid("nil argument: for a null pointer use cu.DevicePtr(0)")
	case *Memory:
		if v == nil {
			return invalid("nil memory: for a null pointer use cu.DevicePtr(0)")
		}
		a.used = append(a.used, &v.resource)
		return a.number(uint64(v.ptr), 8, size, arg)
	case driver.Addressable, Region:
		p, err := a.address(arg)
		if err != nil {
			return err
		}
		return a.number(p, 8, size, arg)
	case cu.DevicePtr:
		return a.number(uint64(v), 8, size, arg)
	case float32: // the most common types avoid reflection
		return a.number(uint64(math.Float32bits(v)), 4, size, arg)
	case int32:
		return a.number(uint64(v), 4, size, arg)
	case uint32:
		return a.number(uint64(v), 4, size, arg)
	case int64:
		return a.number(uint64(v), 8, size, arg)
	case uint64:
		return a.number(v, 8, size, arg)
	}
	v := reflect.ValueOf(arg)
	kind, bytes, err := argumentType(v.Type(), size)
	if err != nil {
		return err
	}
	switch kind {
	case intArgument:
		n, err := fitInt(int(v.Int()), bytes)
		if err != nil {
			return err
		}
		return a.number(n, bytes, size, arg)
	case uintArgument:
		n, err := fitUint(uint(v.Uint()), bytes)
		if err != nil {
			return err
		}
		return a.number(n, bytes, size, arg)
	}
	return a.put(valueBytes(v), size, arg)
}

// Region is a part of memory of a device, such as the elements of a *tensor.Tensor. A type of another package that
// refers to memory of this package implements it, so that a launch uses the memory as if it were the argument: Close of
// the memory waits for the kernel, and the address is not exposed.
type Region interface {
	// Region returns the memory, which the caller borrows, and the offset in bytes at which the region begins.
	Region() (mem driver.Memory, offset int64, err error)
}

// container is a [*Memory], or a type that embeds one, such as [*Managed] or a type of another package.
type container interface{ memory() *Memory }

func (m *Memory) memory() *Memory { return m }

// address returns the device address of an argument, and adds the memory of this package that contains it to a.used.
// Memory of other packages is not tracked: its DevicePointer exposes the address.
func (a *arguments) address(arg any) (uint64, error) {
	if isNil(reflect.ValueOf(arg)) {
		return 0, errNilMemory
	}
	var offset int64
	if r, ok := arg.(Region); ok {
		mem, at, err := r.Region()
		if err != nil {
			return 0, err
		}
		arg, offset = mem, at
		if arg != nil && isNil(reflect.ValueOf(arg)) {
			return 0, errNilMemory
		}
	}
	if c, ok := arg.(container); ok {
		m := c.memory()
		if m == nil {
			return 0, errNilMemory
		}
		a.used = append(a.used, &m.resource)
		// A type of another size is a part of the memory, whose address only its own method returns.
		if part, ok := arg.(driver.Addressable); !ok || part.Bytes() == m.bytes {
			return uint64(m.ptr) + uint64(offset), nil
		}
	}
	if m, ok := arg.(driver.Addressable); ok {
		if p := m.DevicePointer(); p != 0 {
			return p + uint64(offset), nil
		}
		return 0, os.ErrClosed
	}
	return 0, invalid("memory of %T is not on a CUDA device", arg)
}

// number appends the lowest bytes of n.
func (a *arguments) number(n uint64, bytes, size int, arg any) error {
	if err := a.begin(bytes, size, arg); err != nil {
		return err
	}
	a.values = appendInt(a.values, n, bytes)
	return nil
}

// put appends the bytes of an argument.
func (a *arguments) put(b []byte, size int, arg any) error {
	if err := a.begin(len(b), size, arg); err != nil {
		return err
	}
	a.values = append(a.values, b...)
	if len(b) == 0 {
		a.values = append(a.values, 0) // an empty value needs an address too
	}
	return nil
}

// begin reserves space for an argument. It fails if the parameter has a different size.
func (a *arguments) begin(bytes, size int, arg any) error {
	if size != unknownSize && size != bytes {
		return invalid("%T has %d bytes, the kernel takes %d", arg, bytes, size)
	}
	// No type needs more than 16; the driver reads each value by its own address.
	a.values = pad(a.values, (len(a.values)+15)/16*16)
	a.offsets = append(a.offsets, len(a.values))
	return nil
}

// appendInt appends the lowest bytes of n. Both supported architectures are little-endian.
func appendInt(b []byte, n uint64, size int) []byte {
	for range size {
		b = append(b, byte(n))
		n >>= 8
	}
	return b
}

func pad(b []byte, to int) []byte {
	for len(b) < to {
		b = append(b, 0)
	}
	return b
}
