//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// want collects the expected bytes of the arguments of a call, in order.
type want struct {
	bytes []byte
	next  int
}

// targets is the memory to which pointer arguments point. It is outside of stack and heap, so its address does not
// change, and large enough for the target type of any pointer.
var targets [64]uint64

// pointerTo returns a pointer argument that is unique within a call.
func pointerTo[T any](w *want) *T {
	w.next++
	p := unsafe.Pointer(&targets[w.next])
	address := uintptr(p)
	w.bytes = append(w.bytes, unsafe.Slice((*byte)(unsafe.Pointer(&address)), 8)...)
	return (*T)(p)
}

// value returns an argument that is not a pointer. All its bytes differ, and its highest bit is set.
func value[T any](w *want) T {
	w.next++
	var v T
	b := unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v))
	for i := range b {
		b[i] = byte(0x80 + 13*w.next + 7*i)
	}
	b[len(b)-1] |= 0x80
	// A 0 in the exponent avoids values that are not a number.
	b[len(b)-1] &^= 0x20
	w.bytes = append(w.bytes, b...)
	return v
}

// memoryOfC converts an address of the dynamic linker to a pointer. The memory is outside of Go's heap, so its address
// is constant, but vet cannot verify that.
func memoryOfC(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// Each argument of every function arrives unchanged and at the right place: in registers, on the stack, by value or by
// pointer. The C functions of the test library, compiled by the architecture's C compiler, record the bytes they
// receive.
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

// Each argument of every method of Context arrives unchanged, between the calls that set and restore the context. Their
// order is visible in C: the push clears the record, and the pop must not.
func TestCallingConventionInContext(t *testing.T) {
	use(t, "recorder")
	at := func(name string) unsafe.Pointer { return memoryOfC(symbol(t, name)) }
	recorded, length := (*byte)(at("recorded")), (*uint64)(at("recorded_bytes"))
	pushed, pushResult, pops := (*Context)(at("pushed")), (*Result)(at("push_result")), (*int32)(at("pops"))
	addresses[fnCtxPushCurrent].Store(symbol(t, "quiet_push"))
	addresses[fnCtxPopCurrent].Store(symbol(t, "quiet_pop"))
	require.Greater(t, len(recordedMethods), 300)
	line := map[string]Result{}
	for f := range functionCount {
		name := table[f].symbol
		if line[name] == 0 {
			line[name] = Result(f) + 1
		}
		call := recordedMethods[f]
		if call == nil {
			continue
		}
		var w want
		*pops = 0
		c := Context(1000 + f)
		require.Equal(t, line[name], call(c, &w), name)
		require.Equal(t, string(w.bytes), string(unsafe.Slice(recorded, *length)), name)
		require.Equal(t, c, *pushed, name)
		require.EqualValues(t, 1, *pops, name)

		*pushResult, *pops = ERROR_INVALID_CONTEXT, 0
		require.Equal(t, ERROR_INVALID_CONTEXT, call(c, &w), name)
		*pushResult = SUCCESS
		require.Zero(t, *length, "%s was called without its context", name)
		require.Zero(t, *pops, name)
	}
	t.Logf("%d methods called", len(recordedMethods))
}
