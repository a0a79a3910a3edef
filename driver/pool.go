package driver

import "sync/atomic"

// Reusable is memory that may be used again.
type Reusable interface {
	Memory
	// Reusable reports whether the owner of the memory may write other bytes to it once nobody has it open or mapped any
	// more. What the kernel was given of it to send without a copy (splice, sendfile) is not waited for: of such memory
	// bytes are sent by a copy.
	Reusable() bool
}

// PoolStats is what the pools of memory of this process keep, and what became of allocations from them.
type PoolStats struct {
	// Slabs is how many pieces of memory they keep that were closed here, Bytes the size of all of them.
	Slabs, Bytes int64
	// Reused counts allocations in memory that was used before, Fresh those in new memory, and Busy those of the fresh
	// for which there was memory that others still had.
	Reused, Fresh, Busy int64
}

var pools struct {
	slabs, bytes, reused, fresh, busy atomic.Int64
}

// Pools sums up the pools of this process.
func Pools() PoolStats {
	return PoolStats{
		Slabs: pools.slabs.Load(), Bytes: pools.bytes.Load(),
		Reused: pools.reused.Load(), Fresh: pools.fresh.Load(), Busy: pools.busy.Load(),
	}
}

// CountPool adds to what [Pools] returns. Pools call it.
func CountPool(change PoolStats) {
	pools.slabs.Add(change.Slabs)
	pools.bytes.Add(change.Bytes)
	pools.reused.Add(change.Reused)
	pools.fresh.Add(change.Fresh)
	pools.busy.Add(change.Busy)
}
