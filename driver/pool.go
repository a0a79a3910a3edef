package driver

import "sync/atomic"

// PoolStats describes what the pools of this process keep, and the outcome of their allocations.
type PoolStats struct {
	// Slabs is the number of closed slabs that they keep, Bytes their size.
	Slabs, Bytes int64
	// Reused counts allocations in reused memory, Fresh those in new memory, and Busy those of Fresh although a
	// matching slab existed that another process still held.
	Reused, Fresh, Busy int64
}

var pools struct {
	slabs, bytes, reused, fresh, busy atomic.Int64
}

// Pools returns the totals of this process.
func Pools() PoolStats {
	return PoolStats{
		Slabs: pools.slabs.Load(), Bytes: pools.bytes.Load(),
		Reused: pools.reused.Load(), Fresh: pools.fresh.Load(), Busy: pools.busy.Load(),
	}
}

// CountPool adds to the totals of [Pools]. Pools call it.
func CountPool(change PoolStats) {
	pools.slabs.Add(change.Slabs)
	pools.bytes.Add(change.Bytes)
	pools.reused.Add(change.Reused)
	pools.fresh.Add(change.Fresh)
	pools.busy.Add(change.Busy)
}
