// Package ccall calls C functions without cgo. It has two implementations with the same rules:
//
//   - The trampoline, which is assembly of this package. It calls C at the cost of cgo, and can set a context and restore
//     the previous one around the call, on the same thread.
//   - purego, with the build tag cudapurego. It has no assembly of this package, and is slower.
//
// Parameters are machine words: integers and pointers. The result is an int, which is the result type of the CUDA
// libraries. RATIONALE.md describes the calling conventions and why the trampoline is safe.
//
// # Pointers
//
// A frame holds words, so the garbage collector does not see pointers in it. A pointer must become a word in the
// argument list of a function that is marked go:uintptrescapes, which then fills the frame and calls C:
//
//	//go:uintptrescapes
//	//go:noinline
//	func call2(fn, a0, a1 uintptr) int32 {
//		f := ccall.Frame6{Fn: fn, A: [6]uintptr{a0, a1}}
//		return f.Call()
//	}
//
//	call2(fn, uintptr(unsafe.Pointer(out)), n)
//
// The compiler then moves the pointer's target to the heap and keeps it alive for the call. If the caller stored a
// pointer to a stack variable in a frame itself, the pointer would become stale when the stack grows.
package ccall

// Frame6 is a call with at most 6 words.
type Frame6 struct {
	// Fn is the address of the C function. It must not be 0.
	Fn uintptr
	// A holds the words of the arguments. C ignores the words behind the last parameter.
	A [6]uintptr
}

// Frame16 is a call with at most 16 words.
type Frame16 struct {
	// Fn is the address of the C function. It must not be 0.
	Fn uintptr
	// A holds the words of the arguments: first the words for registers, then the words for the stack. The number of registers
	// depends on the architecture: 6 on amd64, 8 on arm64.
	A [16]uintptr
}

// Guard names the calls before and after another call, on the same thread. Push is called with Arg. If it returns 0, the
// call follows, and then Pop with the argument 0, whose result is ignored. If Push fails, its result is the result of
// the whole call.
type Guard struct {
	// Push and Pop are addresses of C functions. They must not be 0.
	Push, Pop uintptr
	// Arg is the argument of Push.
	Arg uintptr
}

// Guarded6 is a call with at most 6 words between two others.
type Guarded6 struct {
	Frame6
	Guard
}

// Guarded16 is a call with at most 16 words between two others.
type Guarded16 struct {
	Frame16
	Guard
}
