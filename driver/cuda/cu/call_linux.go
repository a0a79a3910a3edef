//go:build linux && (amd64 || arm64) && !nocuda

package cu

import "github.com/ebitengine/purego"

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
