package endpoint

import (
	"io"
	"sync/atomic"
)

// followed is a version that a [Follower] has attached. It stays mapped while it has pins: one of the follower while it
// is in use, and one for each request that uses it.
type followed[T any] struct {
	follower *Follower[T]
	handle   *Handle
	value    T
	pins     atomic.Int64
}

// pin adds a pin. It returns false if the last pin was already removed.
func (v *followed[T]) pin() bool {
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
func (v *followed[T]) unpin() {
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
		v.release()
		return
	}
	go func() {
		defer f.unmaps.Done()
		v.release()
		f.log.Info("a version was unmapped", "version", v.handle.Version(), "server", v.handle.ServerID())
	}()
}

// release closes the value, if it has a Close method, and unmaps the version.
func (v *followed[T]) release() {
	if c, ok := any(v.value).(io.Closer); ok {
		if err := c.Close(); err != nil {
			v.follower.log.Warn("the prepared value of a version could not be closed", "version", v.handle.Version(), "error", err)
		}
	}
	v.handle.Close()
}

// Pinned is a version that [Follower.Current] returned, usually for one request. It stays mapped until Close. Its
// methods are safe for concurrent use.
type Pinned[T any] struct {
	version *followed[T]
	closed  atomic.Bool
}

// Value returns what was prepared from the version, or the zero value after Close even if the version is still mapped,
// so that a use after Close fails at once. It is borrowed and valid until Close. The memory is mapped read-only.
func (p *Pinned[T]) Value() T {
	if p.closed.Load() {
		var zero T
		return zero
	}
	return p.version.value
}

// Version returns the number of the version.
func (p *Pinned[T]) Version() uint64 { return p.version.handle.Version() }

// ServerID returns the id of the owner that the version came from.
func (p *Pinned[T]) ServerID() string { return p.version.handle.ServerID() }

// Close releases the version. It is unmapped when it is superseded and all requests have released it. A second Close
// returns nil.
func (p *Pinned[T]) Close() error {
	if p.closed.CompareAndSwap(false, true) {
		p.version.unpin()
	}
	return nil
}
