// Package host is the host's own memory as a [driver.Device]: sealed memfds on Linux. It holds CPU tensors, and is the
// device to share by where there is no GPU.
//
// An allocation is one memfd, mapped once, shared. It is sealed against shrinking and growing before anyone else can
// have it, because a reader of a mapping that is cut short dies of SIGBUS; an import refuses a descriptor without these
// seals for the same reason. [driver.Freezer] adds the seal against new writers, [driver.Sealer] the one against all.
//
// Alloc takes the pages at once and answers [driver.ErrOutOfMemory] where the system does not have them. Linux by
// itself promises shared memory without having it and kills the process that touches the page too many; what Alloc
// returned can be touched. The pages are taken, not cleared: the kernel clears one when it is first touched, and not at
// all where a load overwrites it. [Lazy] leaves the pages to the first touch.
//
// Huge pages are asked for from 2 MiB. Whether the kernel gives them to shared memory is the administrator's decision,
// in /sys/kernel/mm/transparent_hugepage/shmem_enabled; [Device.Features] tells what it is.
//
// What surprises: the slice of [driver.Mapped.Data] does not keep the memory alive. A memory that is unreachable and
// was never closed stays mapped for as long as the process runs if its Data was handed out, because nobody can tell
// whether a slice is still in use; it is counted by [driver.Leaks] and logged. Without that the garbage collector has
// it unmapped. Close it when done, as with a file. In the pages of a lazily made memory, and of memory that another
// process made, the last page may be missing when it is touched; only the kernel can tell, and it does so by SIGBUS.
//
// [Pool] is memory that is used again once nobody has it any more, which the kernel says; RATIONALE.md has why that may
// be believed.
//
// On other systems Open fails with an error that answers for [errors.ErrUnsupported].
package host
