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
	if v.Kind() == reflect.Int || v.Kind() == reflect.Uint {
		return a.addSized(v, size)
	}
	b, err := appendValue(nil, v)
	if err != nil {
		return err
	}
	return a.put(b, size, arg)
}

// Region is a part of memory of a device, such as the elements of a *tensor.Tensor.
type Region interface {
	// Region returns the memory, which the caller borrows, and the offset in bytes at which the region begins.
	Region() (mem driver.Memory, offset int64, err error)
}

// address returns the device address of an argument, and records the memory of this package that it is in.
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
	}
	switch m := arg.(type) {
	case *Memory:
		a.used = append(a.used, &m.resource)
		return uint64(m.ptr) + uint64(offset), nil
	case driver.Addressable:
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

// addSized appends an int or uint in the size that the kernel takes.
func (a *arguments) addSized(v reflect.Value, size int) error {
	var n uint64
	var fits func(bits int) bool
	if v.CanInt() {
		n = uint64(v.Int())
		fits = func(bits int) bool { return v.Int() >= -1<<(bits-1) && v.Int() <= 1<<(bits-1)-1 }
	} else {
		n = v.Uint()
		fits = func(bits int) bool { return bits == 64 || v.Uint() < 1<<bits }
	}
	switch size {
	case 1, 2, 4, 8:
		if size < 8 && !fits(8*size) {
			return invalid("%v does not fit the %d bytes that the kernel takes", v, size)
		}
		return a.number(n, size, size, nil)
	case unknownSize:
		return invalid("the driver does not report the size of the parameter: instead of %s use a sized type such as %s32", v.Kind(), v.Kind())
	}
	return invalid("%s is a number, the kernel takes %d bytes", v.Type(), size)
}

// appendValue appends a value in C's layout, which is Go's for numbers, arrays and structs of them.
func appendValue(b []byte, v reflect.Value) ([]byte, error) {
	var err error
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(b, uint64(v.Int()), int(v.Type().Size())), nil
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return appendInt(b, v.Uint(), int(v.Type().Size())), nil
	case reflect.Float32:
		return appendInt(b, uint64(math.Float32bits(float32(v.Float()))), 4), nil
	case reflect.Float64:
		return appendInt(b, math.Float64bits(v.Float()), 8), nil
	case reflect.Array:
		for i := range v.Len() {
			if b, err = appendValue(b, v.Index(i)); err != nil {
				return nil, err
			}
		}
		return b, nil
	case reflect.Struct:
		start := len(b)
		for i := range v.NumField() {
			b = pad(b, start+int(v.Type().Field(i).Offset))
			if b, err = appendValue(b, v.Field(i)); err != nil {
				return nil, err
			}
		}
		return pad(b, start+int(v.Type().Size())), nil
	}
	return nil, invalid("%s cannot be passed to a kernel", v.Type())
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
