package endpoint

import (
	"runtime"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// leakGuard releases a value that the program did not close, once the garbage collector finds all of its parts
// unreachable. The collector cannot track slices and addresses of the memory. If any were returned, nothing is
// released, because the owner would overwrite memory that may be in use. The value then counts as a leak
// ([driver.Leaks]), which is logged. A nil guard does nothing.
type leakGuard struct {
	reachable atomic.Int64 // number of reachable parts: the guarded value and its storages
	disarmed  atomic.Bool
	kind      string
	borrowed  []borrowedMemory
	collected func(leak *driver.Leak)
}

// borrowedMemory describes a storage without keeping it reachable.
type borrowedMemory struct {
	exposed *atomic.Bool
	device  string
}

// newLeakGuard guards thing and the storages that it borrowed. It calls collected when all of them are unreachable,
// unless the guard was disarmed. leak is nil, or describes the leak if memory was exposed, in which case nothing may be
// released. collected runs on the collector's goroutine: it must return at once and must not keep any of the parts
// reachable. kind names the value in a leak.
func newLeakGuard[T any](thing *T, kind string, storages []*tensor.Storage, collected func(leak *driver.Leak)) *leakGuard {
	n := &leakGuard{kind: kind, collected: collected}
	n.reachable.Store(1)
	for _, s := range storages {
		if borrower, exposed, ok := s.Borrowed(); ok {
			n.reachable.Add(1)
			n.borrowed = append(n.borrowed, borrowedMemory{exposed, s.Memory().Device().Info().String()})
			runtime.AddCleanup(borrower, (*leakGuard).unreachable, n)
		}
	}
	runtime.AddCleanup(thing, (*leakGuard).unreachable, n)
	return n
}

// unreachable records that one part was collected.
func (n *leakGuard) unreachable() {
	if n.reachable.Add(-1) == 0 && !n.disarmed.Load() {
		n.collected(n.leak())
	}
}

// leak returns a description if memory was exposed, and nil otherwise.
func (n *leakGuard) leak() *driver.Leak {
	for _, m := range n.borrowed {
		if m.exposed.Load() {
			return &driver.Leak{Device: m.device, Kind: n.kind, Kept: true}
		}
	}
	return nil
}

// disarm disables the guard.
func (n *leakGuard) disarm() {
	if n != nil {
		n.disarmed.Store(true)
	}
}
