package dl

import (
	"strings"
	"unsafe"
)

// CString returns s with a terminating NUL. If s contains a NUL, C sees only the part before it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// CStrings returns an array of NUL-terminated copies and its address, which is nil for an empty list. The caller keeps
// the array alive for the call.
func CStrings(list []string) (array []*byte, first **byte) {
	for _, s := range list {
		array = append(array, CString(s))
	}
	if len(array) > 0 {
		first = &array[0]
	}
	return array, first
}

// maxString limits the bytes that GoString searches for the NUL.
const maxString = 1 << 20

// GoString copies the NUL-terminated text at p, which may be memory of the library. nil yields the empty string. Text
// without a NUL in its first MiB is truncated there.
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

// Text returns the text in a buffer up to its first NUL.
func Text(b []byte) string {
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}
