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
