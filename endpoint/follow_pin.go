package endpoint

import (
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/module"
)

// followed is a version that a [Follower] has attached. It stays mapped while it has pins: one of the follower while it
// is in use, and one for each request that uses it.
type followed struct {
	follower *Follower
	handle   *Handle
	pins     atomic.Int64
}

// pin adds a pin. It returns false if the last pin was already removed.
func (v *followed) pin() bool {
	for {
		n := v.pins.Load()
		if n == 0 {
			return false
		}
		if v.pins.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unpin removes a pin. The last one unmaps the memory on a separate goroutine, so that requests do not wait for it.
func (v *followed) unpin() {
	if v.pins.Add(-1) > 0 {
		return
	}
	f := v.follower
	f.mu.Lock()
	apart := !f.over
	if apart {
		f.unmaps.Add(1)
	}
	f.mu.Unlock()
	if !apart {
		v.handle.Close()
		return
	}
	go func() {
		defer f.unmaps.Done()
		v.handle.Close()
		f.log.Info("a version was unmapped", "version", v.handle.Version(), "server", v.handle.ServerID())
	}()
}

// Pinned is a version that [Follower.Current] returned, usually for one request. It stays mapped until Close. Its
// methods are safe for concurrent use.
type Pinned struct {
	version *followed
	closed  atomic.Bool
}

// StateDict returns the tensors, or nil after Close even if the version is still mapped, so that a use after Close
// fails at once. They are borrowed and valid until Close; the caller must not close them. The memory is mapped
// read-only.
func (p *Pinned) StateDict() *module.StateDict {
	if p.closed.Load() {
		return nil
	}
	return p.version.handle.StateDict()
}

// Version returns the number of the version.
func (p *Pinned) Version() uint64 { return p.version.handle.Version() }

// ServerID returns the id of the owner that the version came from.
func (p *Pinned) ServerID() string { return p.version.handle.ServerID() }

// Close releases the version. It is unmapped when it is superseded and all requests have released it. A second Close
// returns nil.
func (p *Pinned) Close() error {
	if p.closed.CompareAndSwap(false, true) {
		p.version.unpin()
	}
	return nil
}
