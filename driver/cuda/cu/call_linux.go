//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"sync"

	"github.com/ebitengine/purego"
)

// frame holds the words of one call. SyscallN with a slice of it does not allocate; with a list of arguments it does.
//
// A pointer becomes a word only inside the argument list of callN, which is marked uintptrescapes: that moves what it
// points to to the heap and keeps it alive for the call. Stored into a frame by the wrapper itself, a pointer to a
// variable on the stack would go stale when SyscallN grows the stack, and neither vet nor checkptr would notice;
// TestStackGrowth is there for that.
type frame [32]uintptr

var frames = sync.Pool{New: func() any { return new(frame) }}

// callFloat calls a function that takes floating-point numbers. Integer and floating-point arguments count their
// registers apart, and what a function does not take it does not read, so one signature does for all such functions of
// cuda.h. It costs about a microsecond; they are deprecated.
func callFloat(f function, a0, a1 uintptr, x0, x1 float32) Result {
	fn, missing := address(f)
	if fn == 0 {
		return missing
	}
	var call func(a0, a1 uintptr, x0, x1 float32) int32
	purego.RegisterFunc(&call, fn)
	return Result(call(a0, a1, x0, x1))
}
