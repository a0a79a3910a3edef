//go:build linux && (amd64 || arm64) && !cudapurego && !nocuda

package ccall

import (
	"unsafe"

	// purego sets up the runtime for calls into C in a program without cgo.
	_ "github.com/ebitengine/purego"
)

// Path names the implementation of calls: trampoline or purego.
const Path = "trampoline"

// cgocall switches to the system stack and calls fn with arg. fn is a function with C's calling convention whose result
// is an int. The runtime permits the linkname for purego, so it keeps name and signature.
//
// arg may point to the goroutine's stack: the stack cannot move before fn runs, and fn does not use arg after its first
// call of a C function.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// Addresses of the assembly functions.
var (
	call6Address, call16Address               uintptr
	callGuarded6Address, callGuarded16Address uintptr
)

// Call calls the function and returns its result.
func (f *Frame6) Call() int32 { return cgocall(call6Address, unsafe.Pointer(f)) }

// Call calls the function and returns its result.
func (f *Frame16) Call() int32 { return cgocall(call16Address, unsafe.Pointer(f)) }

// Call calls Push, the function and Pop on one thread, and returns the function's result.
func (g *Guarded6) Call() int32 { return cgocall(callGuarded6Address, unsafe.Pointer(g)) }

// Call calls Push, the function and Pop on one thread, and returns the function's result.
func (g *Guarded16) Call() int32 { return cgocall(callGuarded16Address, unsafe.Pointer(g)) }
