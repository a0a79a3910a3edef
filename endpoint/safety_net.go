package endpoint

import (
	"runtime"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// safetyNet gives back what a program forgot to close, once the garbage collector finds that nothing of it is used any
// more. A slice or an address of the memory is invisible to the collector. Where one was handed out, nothing is given
// back: the owner would write other bytes under a slice that is in use. That is a leak, which is counted
// ([driver.Leaks]) and logged. A nil net does nothing.
type safetyNet struct {
	left     atomic.Int64 // things that are reachable
	removed  atomic.Bool
	kind     string
	borrowed []borrowedMemory
	gone     func(leak *driver.Leak)
}

// borrowedMemory is what a net knows of a storage without keeping it reachable.
type borrowedMemory struct {
	exposed *atomic.Bool
	device  string
}

// spread returns a net under a thing and the storages that it borrowed. gone is called when none of them is reachable
// any more, unless the net was removed before. leak is nil, or what to report where memory was handed out, so that
// nothing may be given back. gone is called by the collector: it must return at once, and must not itself lead to any
// of them. kind names the thing in a leak.
func spread[T any](thing *T, kind string, storages []*tensor.Storage, gone func(leak *driver.Leak)) *safetyNet {
	n := &safetyNet{kind: kind, gone: gone}
	n.left.Store(1)
	for _, s := range storages {
		if borrower, exposed, ok := s.Borrowed(); ok {
			n.left.Add(1)
			n.borrowed = append(n.borrowed, borrowedMemory{exposed, s.Memory().Device().Info().String()})
			runtime.AddCleanup(borrower, (*safetyNet).lose, n)
		}
	}
	runtime.AddCleanup(thing, (*safetyNet).lose, n)
	return n
}

// lose notes that one of the things is gone.
func (n *safetyNet) lose() {
	if n.left.Add(-1) == 0 && !n.removed.Load() {
		n.gone(n.leak())
	}
}

// leak is what to report where memory was handed out; nil where none was.
func (n *safetyNet) leak() *driver.Leak {
	for _, m := range n.borrowed {
		if m.exposed.Load() {
			return &driver.Leak{Device: m.device, Kind: n.kind, Kept: true}
		}
	}
	return nil
}

// remove takes the net away.
func (n *safetyNet) remove() {
	if n != nil {
		n.removed.Store(true)
	}
}
