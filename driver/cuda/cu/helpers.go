package cu

import (
	"strings"
	"unsafe"
)

// DeviceLocation is the memory of a device, as [MemAllocationProp], [MemAccessDesc] and [MemPoolProps] name it.
func DeviceLocation(dev Device) MemLocation {
	l := MemLocation{Type: MEM_LOCATION_TYPE_DEVICE}
	*l.Id() = int32(dev)
	return l
}

// tensorMapAlign is what the driver asks of the address of a tensor map, in bytes; C compilers align it to 128.
const tensorMapAlign = 128

// NewTensorMap allocates a tensor map that is aligned as the driver and the device ask.
func NewTensorMap() *TensorMap {
	b := make([]byte, unsafe.Sizeof(TensorMap{})+tensorMapAlign)
	skip := -uintptr(unsafe.Pointer(&b[0])) & (tensorMapAlign - 1)
	return (*TensorMap)(unsafe.Pointer(&b[skip]))
}

// CString is s with the NUL that C wants behind it, for parameters of type *byte. What stands behind a NUL inside s is
// not seen by C.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// maxString is where GoString stops looking for the NUL, in bytes.
const maxString = 1 << 20

// GoString copies the NUL-terminated text at p, which the driver or C may own; nil is the empty string. Text without a
// NUL in its first MiB is cut there.
func GoString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for n < maxString && *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return strings.Clone(unsafe.String(p, n))
}
