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

import (
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	// poolIdle is the default of PoolOptions.Idle.
	poolIdle = 10 * time.Second
	// poolSlabs is the maximum number of slabs that a pool keeps.
	poolSlabs = 64
)

// PoolOptions limits what a [Pool] keeps. The zero value is valid.
type PoolOptions struct {
	// Bytes limits the closed memory that is kept; 0 means a quarter of the host's memory.
	Bytes int64
	// Idle limits how long unused memory is kept; 0 means ten seconds.
	Idle time.Duration
}

// Pool is a [Device] that reuses memory. Memory that was closed here and that no other process holds serves later
// allocations of the same size, with its pages and its mapping, which are most of the cost of fresh memory. It is for
// programs that publish repeatedly, in the owner or as its client:
//
//	pool := host.NewPool(dev, host.PoolOptions{})
//	for step := range steps {
//		sd, err := module.EmptyLike(pool, weights)
//		... // write all of it, publish, and close it if a client published it
//	}
//
// The kernel reports whether another process holds memory: open or mapped, in an unread message, passed on to a third
// process, or in a process that is being killed. Readers therefore never see bytes change, even if they released their
// lease and kept their mapping; such memory is freed after a while and not reused. Copy-free transfers by the kernel
// that a reader started (splice, sendfile) are not waited for: see [driver.Description].
//
// Alloc zeroes reused memory; AllocUninitialized leaves what this program wrote there. Published memory of a pool stays
// frozen: it can never be sealed ([driver.Memory.Seal]) or mapped writable by another process. Memory that was exported
// before it was frozen is not reused. On a system that does not report other holders, a pool allocates like its device;
// [Pool.Reuses] reports that.
//
// The methods of a pool are safe for concurrent use.
type Pool struct {
	*Device
	opts   PoolOptions
	remove func()

	mu     sync.Mutex
	closed bool
	kept   []keptSlab // the most recently closed one last
	bytes  int64
	sweep  *time.Timer // nil while nothing is kept
}

var (
	_ driver.Device                 = (*Pool)(nil)
	_ driver.UninitializedAllocator = (*Pool)(nil)
)

// Feature is a property of the system that sharing host memory requires or benefits from.
type Feature struct {
	// Name is its name, such as "memfd" or "huge pages".
	Name string
	// Detail is what was found, in a few words, such as a limit's value; it may be empty.
	Detail string
	// Required reports whether sharing host memory needs it. Without an optional feature sharing works, but slower or
	// with a lower limit.
	Required bool
	// Bytes is the amount in Detail, such as available memory; 0 if it has none.
	Bytes int64
	// Err is nil if the feature is available, otherwise the reason in one sentence.
	Err error
	// Advice is the remedy if Err is not nil, in a few words; it may be empty.
	Advice string
}

// Option configures a device. Options are passed to [Open].
type Option func(*options)

type options struct {
	lazy bool
}

// Lazy allocates pages on first touch. Alloc then costs a few microseconds for any size, but the kernel kills the
// process that touches memory which the system does not have. It is meant for sparse memory. The size is still checked
// against the system's memory.
func Lazy() Option { return func(o *options) { o.lazy = true } }
