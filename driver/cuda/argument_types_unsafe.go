package cuda

import (
	"reflect"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
)

// argumentKind is the way in which a value becomes a parameter of a kernel.
type argumentKind uint8

const (
	valueArgument   argumentKind = iota // its bytes
	intArgument                         // int, in the size that the kernel takes
	uintArgument                        // uint, in the size that the kernel takes
	memoryArgument                      // *Memory
	addressArgument                     // another type with a device address
)

var (
	regionType      = reflect.TypeFor[Region]()
	addressableType = reflect.TypeFor[driver.Addressable]()
	memoryType      = reflect.TypeFor[*Memory]()
)

// argumentType returns how a value of type t becomes a parameter of size bytes, which may be unknownSize, and the bytes
// it has then. All ways to launch a kernel use it, so they accept the same types.
func argumentType(t reflect.Type, size int) (kind argumentKind, bytes int, err error) {
	bytes = int(t.Size())
	switch {
	case t == memoryType:
		kind, bytes = memoryArgument, 8
	case t.Implements(regionType) || t.Implements(addressableType):
		kind, bytes = addressArgument, 8
	case t.Kind() == reflect.Int:
		kind, bytes = intArgument, size
	case t.Kind() == reflect.Uint:
		kind, bytes = uintArgument, size
	default:
		if err := plainType(t); err != nil {
			return kind, bytes, err
		}
	}
	switch {
	case bytes == unknownSize:
		return kind, bytes, invalid("the driver does not report the size of the parameter: instead of %s use %s32 or %[2]s64", t, t.Kind())
	case size != unknownSize && bytes != size:
		return kind, bytes, invalid("%s has %d bytes, the kernel takes %d", t, bytes, size)
	case (kind == intArgument || kind == uintArgument) && size != 1 && size != 2 && size != 4 && size != 8:
		return kind, bytes, invalid("%s is a number, the kernel takes %d bytes", t, size)
	}
	return kind, bytes, nil
}

// plainType checks that values of the type have a fixed layout without pointers, the same in Go and C.
func plainType(t reflect.Type) error {
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return nil
	case reflect.Array:
		return plainType(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if err := plainType(t.Field(i).Type); err != nil {
				return err
			}
		}
		return nil
	case reflect.Int, reflect.Uint:
		return invalid("%s has no fixed size: use %s32 or %[2]s64", t, t.Kind())
	}
	return invalid("%s cannot be passed to a kernel", t)
}

// valueBytes returns the bytes of a value of a plain type.
func valueBytes(v reflect.Value) []byte {
	at := reflect.New(v.Type())
	at.Elem().Set(v)
	return unsafe.Slice((*byte)(at.UnsafePointer()), v.Type().Size())
}

// errNilMemory is the error of a pointer to memory that is nil.
var errNilMemory = invalid("nil memory: for a null pointer use a cu.DevicePtr")

// isNil reports whether a value of any type is nil.
func isNil(v reflect.Value) bool {
	return (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil()
}

// fitInt returns v as a number of the given bytes.
func fitInt(v, bytes int) (uint64, error) {
	if bits := 8 * bytes; bits < 64 && (v < -1<<(bits-1) || v > 1<<(bits-1)-1) {
		return 0, invalid("%d does not fit the %d bytes that the kernel takes", v, bytes)
	}
	return uint64(v), nil
}

// fitUint returns v as a number of the given bytes.
func fitUint(v uint, bytes int) (uint64, error) {
	if bits := 8 * bytes; bits < 64 && v>>bits != 0 {
		return 0, invalid("%d does not fit the %d bytes that the kernel takes", v, bytes)
	}
	return uint64(v), nil
}
