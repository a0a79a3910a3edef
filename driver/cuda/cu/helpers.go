package cu

import (
	"strings"
	"unsafe"
)

// DeviceLocation returns the memory of a device as a location for [MemAllocationProp], [MemAccessDesc] and
// [MemPoolProps].
func DeviceLocation(dev Device) MemLocation {
	l := MemLocation{Type: MEM_LOCATION_TYPE_DEVICE}
	*l.Id() = int32(dev)
	return l
}

// tensorMapAlign is the alignment in bytes that the driver requires for a tensor map. C compilers align it to 128.
const tensorMapAlign = 128

// NewTensorMap allocates a tensor map with the alignment that the driver and the device require.
func NewTensorMap() *TensorMap {
	b := make([]byte, unsafe.Sizeof(TensorMap{})+tensorMapAlign)
	skip := -uintptr(unsafe.Pointer(&b[0])) & (tensorMapAlign - 1)
	return (*TensorMap)(unsafe.Pointer(&b[skip]))
}

// CString returns s with a terminating NUL, for parameters of type *byte. If s contains a NUL, C sees only the part
// before it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// maxString limits the bytes that GoString searches for the NUL.
const maxString = 1 << 20

// GoString copies the NUL-terminated text at p, which may be memory of the driver or of C. nil yields the empty string.
// Text without a NUL in its first MiB is truncated there.
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
