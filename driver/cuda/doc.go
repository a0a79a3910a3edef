// Package cuda is the CUDA driver API with types that are hard to misuse, and a [driver.Device] over it. It needs the
// driver's library (libcuda.so.1, which comes with the NVIDIA driver) when it runs, and nothing when it is built: no
// cgo, no CUDA toolkit.
//
// [Open] retains the primary context of a device. Everything else is made from the [Device]: [Memory], [HostMemory],
// [Stream], [Event], [Module] with its [Function] values, [Graph], [Pool]. The package cuda/cu has every function of
// the driver under its own name; [Device.Do] runs such calls in the device's context.
//
// # Lifetimes
//
// Close is the contract. What a program forgets is given back when the garbage collector finds it, but nobody knows
// when. A second Close is nil. What is used after Close fails with [os.ErrClosed]. Close waits for calls on the same
// object that are under way. Each object keeps the context alive, so the order of closing does not matter for safety;
// memory counts against the device until it is closed.
//
// # Threads
//
// CUDA's current context belongs to a thread of the operating system, and goroutines wander between threads. Every
// method here locks its thread, makes the context current, calls and unlocks, so nobody has to think of it.
//
// # Sharing memory
//
// [Device.Alloc] makes virtual memory (cuMemCreate) and exports it as a descriptor, kind cuda-fd: no rules about
// process numbers, it crosses containers, and whoever imported it keeps it when the owner dies. What surprises:
//
//   - The importer chooses whether its mapping is read-only; the owner cannot enforce it. So Memory is no [driver.Freezer].
//     A write through a read-only mapping kills the writer's context.
//   - Which kinds of handle an allocation can have is fixed when it is made ([WithHandleKind]). Memory of cuMemAlloc has only
//     cuda-ipc, memory of a pool none.
//   - cuda-ipc handles cannot be opened in the process that made them, nor twice in one process: a table of this package
//     counts their users. What happens to an opener when the owner frees the memory is undefined.
//   - A device is known to others by its UUID. Ordinals depend on CUDA_VISIBLE_DEVICES of each process.
//   - Most work is asynchronous. Finish it ([Device.Synchronize], [Stream.Synchronize]) before telling anyone that memory is ready.
package cuda
