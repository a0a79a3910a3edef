// Package host is the host's memory as a [driver.Device]: sealed memfds on Linux. It holds CPU tensors and is the
// device for sharing on machines without a GPU.
//
// An allocation is one memfd with one shared mapping. It is sealed against shrinking and growing before it is shared,
// because a reader of a truncated mapping dies of SIGBUS. An import refuses a descriptor without these seals for the
// same reason. [driver.Memory.Freeze] adds the seal against new writers, [driver.Memory.Seal] the one against all writers.
//
// Alloc allocates the pages at once and returns [driver.ErrOutOfMemory] if the system does not have them. Linux alone
// overcommits shared memory and kills the process that touches the first missing page. The pages are allocated but not
// cleared: the kernel clears a page on first touch, and not at all if a load overwrites it. [Lazy] allocates pages on
// first touch.
//
// Huge pages are requested from 2 MiB. The administrator decides whether the kernel uses them for shared memory, in
// /sys/kernel/mm/transparent_hugepage/shmem_enabled; [Device.Features] reports it.
//
// Surprises: the slice of [driver.Mapped.Data] does not keep the memory reachable. If Data was called, memory that
// becomes unreachable without Close stays mapped until the process ends, because a slice may be in use; [driver.Leaks]
// counts it and it is logged. Otherwise the garbage collector unmaps it. Touching a page of lazily allocated memory, or
// of another process's memory, may fail for lack of memory; the kernel reports that by SIGBUS.
//
// [Pool] reuses memory when the kernel confirms that no other process holds it; see RATIONALE.md.
//
// On other systems Open returns an error that matches [errors.ErrUnsupported].
package host
