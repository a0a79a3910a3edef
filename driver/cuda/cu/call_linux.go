//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"sync"

	"github.com/ebitengine/purego"
)

// frame holds the words of one call. SyscallN with a slice of it does not allocate, while a list of arguments does.
//
// A pointer becomes a word only inside the argument list of callN, which is marked uintptrescapes. The compiler
// therefore moves the pointer's target to the heap and keeps it alive for the call. If the wrapper itself stored a
// pointer to a stack variable in a frame, it would become stale when SyscallN grows the stack. Neither vet nor checkptr
// detects that; TestStackGrowth does.
type frame [32]uintptr

var frames = sync.Pool{New: func() any { return new(frame) }}

// callFloat calls a function with floating-point parameters. Integer and floating-point arguments use separate
// registers, and a function ignores the registers it does not use, so one signature fits all such functions of cuda.h.
// A call takes about a microsecond. These functions are deprecated.
func callFloat(f function, a0, a1 uintptr, x0, x1 float32) Result {
	fn, missing := address(f)
	if fn == 0 {
		return missing
	}
	var call func(a0, a1 uintptr, x0, x1 float32) int32
	purego.RegisterFunc(&call, fn)
	return Result(call(a0, a1, x0, x1))
}
