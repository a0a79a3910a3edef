package endpoint

import (
	"runtime"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// safetyNet catches what was forgotten: Close is what is agreed upon, the garbage collector is the net. A nil net catches nothing.
type safetyNet struct {
	left    atomic.Int64 // things that are reachable
	removed atomic.Bool
	gone    func()
}

// spread returns a net under a thing and the storages that it lends out: gone is called when none of them is reachable any more, unless the net
// was removed before. It is called by the collector, so it must return at once, and must not itself lead to any of them.
//
// Only memory of another process is waited for: it may end when that does not keep it any more. Memory of this one is kept by the server in it for as
// long as the thing counts, and by whoever else uses it.
func spread[T any](thing *T, storages []*tensor.Storage, gone func()) *safetyNet {
	n := &safetyNet{gone: gone}
	n.left.Store(1)
	for _, s := range storages {
		if _, lent := s.Lent(); lent {
			n.left.Add(1)
			runtime.AddCleanup(s.Origin(), (*safetyNet).lose, n)
		}
	}
	runtime.AddCleanup(thing, (*safetyNet).lose, n)
	return n
}

// lose notes that one of the things is gone.
func (n *safetyNet) lose() {
	if n.left.Add(-1) == 0 && !n.removed.Load() {
		n.gone()
	}
}

// remove takes the net away.
func (n *safetyNet) remove() {
	if n != nil {
		n.removed.Store(true)
	}
}
