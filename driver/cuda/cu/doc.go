// Package cu binds every function of the CUDA driver API, without cgo and without the CUDA toolkit.
//
// It is the low-level layer: one Go function for each function of cuda.h. See the vendor's manual for details. Package
// driver/cuda builds on it, with types that are hard to misuse. Files that start with z_ are generated from a cuda.h by
// internal/gen. RATIONALE.md explains the design.
//
// # Names
//
// A Go name is the vendor's name without its prefix cu, CU, CU_ or CUDA_, with a capital first letter: cuMemAlloc is
// MemAlloc, CUmemLocation is [MemLocation], CU_MEM_ALLOCATION_TYPE_PINNED is MEM_ALLOCATION_TYPE_PINNED,
// CUDA_ERROR_OUT_OF_MEMORY is ERROR_OUT_OF_MEMORY. Exceptions are [DevicePtr] and [UUID], and a type keeps its prefix
// if a constant has the name (CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS).
//
// MemAlloc calls the same symbol as a C program compiled against the same cuda.h: cuMemAlloc_v2. Forms that a later
// CUDA version replaced carry their number, as in [CtxCreate_v2]. The first form is _v1 ([EventElapsedTime_v1]). Each
// function's comment names its symbol and the CUDA version that introduced it.
//
// # Results
//
// Every function returns a [Result], which does not implement error; [Result.Err] converts it. A call does not
// allocate.
//
// A symbol is looked up at the first call of its function. If the library is missing, or lacks the function, the result
// is a code of this package whose Err is an [*UnsupportedError]. The error names the function and the CUDA version it
// requires. [Available] checks for a function without calling it. A program thus runs on drivers older than the header,
// and on hosts without a driver.
//
// # Memory
//
// A device address is a [DevicePtr], which is a number. Host memory is passed as *T or unsafe.Pointer, and is kept
// alive and in place during the call. Memory that the driver uses after the call, such as that of asynchronous copies,
// must be pinned ([runtime.Pinner]) or allocated outside of Go ([MemHostAlloc]). Words with a meaning that the caller
// chooses, such as userData, are uintptr. The garbage collector does not see a Go pointer that is stored in such a word
// or in a union, so its target must be pinned.
//
// Records have the layout of C. A union is an array of bytes with the right size and alignment. Its methods return a
// pointer to each of its members: *location.Id() = 3.
//
// # Threads
//
// The current context is a property of the thread. The methods of [Context] call functions in a context:
//
//	ctx.MemAlloc(&p, n)
//
// makes ctx current, calls cuMemAlloc and restores the previous context, on one thread and at the cost of one call into
// C. If the context cannot be made current, its code is the result, and the function is not called. A goroutine that
// instead sets the context and calls functions that depend on it must call [runtime.LockOSThread] first. A call that
// waits, such as [StreamSynchronize], occupies its thread.
//
// # Builds
//
// On Linux with amd64 and arm64, calls use a trampoline, which costs as much as cgo. With the build tag cudapurego, they
// use purego, which is slower. Both have the same results.
//
// On systems other than Linux with amd64 or arm64, and with the build tag nocuda, the package has the same names, and
// every call returns a code whose Err is an [*UnsupportedError]. It then links only the standard library.
package cu

//go:generate go run -C internal/gen .
