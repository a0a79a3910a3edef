package endpoint

import (
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/module"
)

// followed is a version that a [Follower] has taken. It stays mapped as long as it has pins: the follower's while it
// is in use, and one for each request that got it.
type followed struct {
	follower *Follower
	handle   *Handle
	pins     atomic.Int64
}

// pin adds a pin. It is false for a version of which the last pin has gone.
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

// unpin takes a pin back. The last one unmaps the memory, which takes a while: on a goroutine, for a request need not
// wait for it.
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

// Pinned is the version that a [Follower] had in use when [Follower.Current] was called, for one request. It stays
// mapped until Close. Its methods are safe for concurrent use.
type Pinned struct {
	version *followed
	closed  atomic.Bool
}

// StateDict holds the tensors. It is borrowed: valid until Close, and not to be closed by the caller. The memory is
// mapped read-only.
func (p *Pinned) StateDict() *module.StateDict { return p.version.handle.StateDict() }

// Version is the number of the version.
func (p *Pinned) Version() uint64 { return p.version.handle.Version() }

// ServerID names the owner that the version came from.
func (p *Pinned) ServerID() string { return p.version.handle.ServerID() }

// Close gives the version back. It is unmapped when the follower has a newer one and the last request has closed it.
// A second Close is nil.
func (p *Pinned) Close() error {
	if p.closed.CompareAndSwap(false, true) {
		p.version.unpin()
	}
	return nil
}
