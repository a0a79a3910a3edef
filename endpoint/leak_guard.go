package endpoint

import (
	"runtime"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// leakGuard releases what a program forgot to close, once the garbage collector finds all of it unreachable. A slice or
// an address of the memory is invisible to the collector. Where one was handed out, nothing is released: the owner
// would write other bytes under a slice that is in use. That is a leak, which is counted ([driver.Leaks]) and logged. A
// nil guard does nothing.
type leakGuard struct {
	reachable atomic.Int64 // the guarded value and its storages, as far as they are reachable
	disarmed  atomic.Bool
	kind      string
	borrowed  []borrowedMemory
	collected func(leak *driver.Leak)
}

// borrowedMemory is what a guard knows of a storage without keeping it reachable.
type borrowedMemory struct {
	exposed *atomic.Bool
	device  string
}

// newLeakGuard guards a value and the storages that it borrowed. collected is called when none of them is reachable any
// more, unless the guard was disarmed before. leak is nil, or what to report where memory was handed out, so that
// nothing may be released. collected is called by the collector: it must return at once, and must not itself keep any
// of them reachable. kind names the value in a leak.
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

// unreachable notes that one of them was collected.
func (n *leakGuard) unreachable() {
	if n.reachable.Add(-1) == 0 && !n.disarmed.Load() {
		n.collected(n.leak())
	}
}

// leak is what to report where memory was handed out; nil where none was.
func (n *leakGuard) leak() *driver.Leak {
	for _, m := range n.borrowed {
		if m.exposed.Load() {
			return &driver.Leak{Device: m.device, Kind: n.kind, Kept: true}
		}
	}
	return nil
}

// disarm makes the guard do nothing from now on.
func (n *leakGuard) disarm() {
	if n != nil {
		n.disarmed.Store(true)
	}
}
