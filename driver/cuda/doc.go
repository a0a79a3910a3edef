// Package cuda is the CUDA driver API with types that are hard to misuse, and implements [driver.Device]. It loads the
// driver's library (libcuda.so.1, part of the NVIDIA driver) at run time. It builds without cgo and without the CUDA
// toolkit.
//
// [Open] retains the primary context of a device. All other objects are made from the [Device]: [Memory] and [Buffer],
// [HostMemory], [Managed], [Stream], [Event], [Module] and [Library] with their [Function] and [Kernel] values, [Graph],
// [Pool], [Multicast]. [WrapContext], [Device.WrapStream], [Device.WrapEvent] and [Device.WrapMemory] take those of other
// libraries. Package cuda/cu has every function of the driver under its C name. [Device.Call] makes such calls in the
// device's context.
//
// The comment of a function names the CUDA version that it needs if that is newer than 11.0. With an older driver it
// returns a [*driver.UnsupportedError]. Sizes and offsets are in bytes, and in values for [Buffer].
//
// # Lifetimes
//
// LIFETIMES.md lists for every object what uses it and how it is released. In short:
//
// Close releases an object. If it is not called, the garbage collector releases the object later. If Close fails, it can
// be repeated; after a success it returns nil. Use after Close has begun fails with [os.ErrClosed]. Close waits for calls in flight on the same object.
// No call waits for a Close.
//
// Close then waits for queued work that uses the object, in streams of all devices, by one event for each stream. While
// a stream is captured the driver may refuse that wait. Close then returns nil, and the object is released after the
// capture. [Device.Stats] counts such releases.
//
// Each object keeps the context alive, so objects can be closed in any order. Memory counts against the device until it
// is released.
//
// # Threads
//
// CUDA's current context is a property of an operating system thread, and goroutines move between threads. Each method
// makes the context current, calls the driver and restores the previous context, in one call into C. It does not lock the
// thread. The exceptions lock it, because they make several calls: captures, blocking writes and fills of memory
// ([Memory.WriteAt], [Memory.Fill]), and releases.
//
// # Sharing memory
//
// [Device.Alloc] makes virtual memory (cuMemCreate) and exports it as a descriptor, kind cuda-fd. A descriptor does not
// depend on process numbers, can be passed between containers, and an importer keeps the memory if the owner exits.
// Note:
//
//   - The importer chooses whether its mapping is read-only; the owner cannot enforce it. So memory
//     cannot be frozen. A write through a read-only mapping destroys the writer's context.
//   - The kinds of handle that an allocation supports are fixed when it is made ([WithHandleKind]). Memory of cuMemAlloc
//     supports only cuda-ipc, memory of a pool none.
//   - A cuda-ipc handle cannot be opened in the process that made it, nor twice in one process: this package counts the
//     users of each open handle. What an opener sees after the owner frees the memory is undefined.
//   - A device is identified to other processes by its UUID. Ordinals depend on CUDA_VISIBLE_DEVICES of each process.
//   - Most work is asynchronous. Wait for it ([Device.Synchronize], [Stream.Synchronize]) before you announce that memory is ready.
package cuda
