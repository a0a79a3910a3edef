//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// want collects what the arguments of a call look like in memory, one after the other.
type want struct {
	bytes []byte
	next  int
}

// targets is what pointer arguments point into: memory that is neither on the stack nor on the heap, so that an address
// stays what it is. It is large enough for any type behind any of the pointers.
var targets [64]uint64

// pointerTo is an argument that is a pointer, different for each argument of a call.
func pointerTo[T any](w *want) *T {
	w.next++
	p := unsafe.Pointer(&targets[w.next])
	address := uintptr(p)
	w.bytes = append(w.bytes, unsafe.Slice((*byte)(unsafe.Pointer(&address)), 8)...)
	return (*T)(p)
}

// value is an argument that is no pointer: every byte of it is different from the others, and its highest bit is set.
func value[T any](w *want) T {
	w.next++
	var v T
	b := unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v))
	for i := range b {
		b[i] = byte(0x80 + 13*w.next + 7*i)
	}
	b[len(b)-1] |= 0x80
	// No floating-point number that is not one: the exponent has a 0.
	b[len(b)-1] &^= 0x20
	w.bytes = append(w.bytes, b...)
	return v
}

// memoryOfC makes a pointer of an address that the dynamic linker gave. It is no address of Go's, so it stays what it
// is; vet cannot know that.
func memoryOfC(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// TestCallingConvention calls every function of the package in a library whose functions record the bytes that arrive,
// compiled by the C compiler of the architecture: each argument has to arrive whole and in its place, in registers, on
// the stack, by value or by pointer.
func TestCallingConvention(t *testing.T) {
	use(t, "recorder")
	recorded := (*byte)(memoryOfC(symbol(t, "recorded")))
	length := (*uint64)(memoryOfC(symbol(t, "recorded_bytes")))
	line := map[string]Result{}
	for f := range functionCount {
		name := table[f].symbol
		if line[name] == 0 {
			line[name] = Result(f) + 1
		}
		var w want
		r := recordedCalls[f](&w)
		require.Equal(t, line[name], r, name)
		require.Equal(t, string(w.bytes), string(unsafe.Slice(recorded, *length)), name)
	}
	t.Logf("%d functions called", functionCount)
}
