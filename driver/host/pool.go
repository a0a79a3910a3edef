package host

import (
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	// poolIdle is how long a pool keeps what nobody asks for.
	poolIdle = 10 * time.Second
	// poolSlabs is how many pieces of memory a pool keeps.
	poolSlabs = 64
)

// PoolOptions bound what a [Pool] keeps. The zero value is useful.
type PoolOptions struct {
	// Bytes is how much memory it keeps that was closed; 0 stands for a quarter of the host's memory.
	Bytes int64
	// Idle is how long it keeps what is not asked for; 0 stands for ten seconds.
	Idle time.Duration
}

// Pool is a [Device] whose memory comes back: what was closed here, and what nobody else has any more, is used for
// later allocations of the same size, with its pages and its mapping, which is most of what fresh memory costs. It is
// for who publishes again and again, in the process of the owner or as its client:
//
//	pool := host.NewPool(dev, host.PoolOptions{})
//	for step := range steps {
//		sd, err := module.UninitializedLike(pool, weights)
//		... // write all of it, publish, and where a client published, close
//	}
//
// Whether somebody else has memory, open or mapped, in a message that nobody has read, passed on to a third process, or
// in a process that is being killed, is what the kernel says, not what anybody promised. So no reader ever sees bytes
// change, also one that gave its lease back and kept its mapping; such memory is given up after a while and does not
// come back. What a reader has the kernel send without a copy (splice, sendfile) is not waited for: see
// [driver.Reusable].
//
// Alloc zeroes memory that was used before, AllocUninitialized leaves in it what this program wrote there. Memory of a
// pool that was published is frozen, and stays so: it can never again be sealed ([driver.Sealer]) or mapped writable by
// another process. Memory that was exported before it was frozen does not come back. On a system that does not report
// whether other processes have memory, a pool allocates as its device does; [Pool.Reuses] says so.
//
// The methods of a pool are safe for concurrent use.
type Pool struct {
	*Device
	opts   PoolOptions
	remove func()

	mu     sync.Mutex
	closed bool
	kept   []keptSlab // the one closed last at the end
	bytes  int64
	sweep  *time.Timer // while something is kept
}

var (
	_ driver.Device                 = (*Pool)(nil)
	_ driver.UninitializedAllocator = (*Pool)(nil)
)
