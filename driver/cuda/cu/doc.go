// Package cu binds every function of the CUDA driver API, without cgo and without the CUDA toolkit.
//
// It is the raw layer: one Go function for each function of cuda.h, with the vendor's documentation as its manual.
// Package driver/cuda on top of it has types that are hard to misuse. The files that start with z_ are generated from a
// cuda.h by internal/gen; RATIONALE.md says why things are as they are.
//
// # Names
//
// The name is the vendor's without its prefix cu, CU, CU_ or CUDA_, with a capital first letter, and nothing else
// changed: cuMemAlloc is MemAlloc, CUmemLocation is [MemLocation], CU_MEM_ALLOCATION_TYPE_PINNED is
// MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_OUT_OF_MEMORY is ERROR_OUT_OF_MEMORY. [DevicePtr] and [UUID] are the
// exceptions, and a type keeps its prefix where a constant has the name (CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS).
//
// MemAlloc calls what a C program calls that is compiled against the same cuda.h: the symbol cuMemAlloc_v2. Forms that
// a later CUDA version replaced carry their number, as in [CtxCreate_v2]; the first form is _v1
// ([EventElapsedTime_v1]). Each function's comment names its symbol and the CUDA version that brought it.
//
// # Results
//
// Every function returns a [Result], which is no error; [Result.Err] makes one. A call allocates nothing.
//
// Symbols are looked up one by one, at the first call. Where the library is missing, or lacks the function, nothing is
// called and the result is one of this package's own codes, whose Err is an [*UnsupportedError] that names the function
// and the CUDA version it needs; [Available] asks without calling. So a program runs on drivers older than the header,
// and on hosts without one.
//
// # Memory
//
// An address on the device is a [DevicePtr], a number. Host memory goes in as *T or unsafe.Pointer: for the time of the
// call it is kept alive and in place. What the driver uses after the call, as asynchronous copies do, has to be pinned
// ([runtime.Pinner]) or not be Go's: [MemHostAlloc]. Words that hold whatever the caller means, such as userData, are
// uintptr; a Go pointer hidden in one, or stored through the view of a union, is not seen by the garbage collector and
// has to be pinned.
//
// Records have the layout of C. A union is bytes of the right size and alignment; its methods view it as each of its
// members: *location.Id() = 3.
//
// # Threads
//
// The current context belongs to the thread. A goroutine that sets it and depends on it calls [runtime.LockOSThread]
// first. A call that waits, such as [StreamSynchronize], keeps its thread.
//
// Elsewhere than on Linux with amd64 or arm64, and with the build tag nocuda, the package has the same names and every
// call answers with an [*UnsupportedError]; it then links nothing but the standard library.
package cu

//go:generate go run ./internal/gen
