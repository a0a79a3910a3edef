package driver

import (
	"errors"
	"sync"
	"syscall"
)

// Bounded is a device that reports how much of its memory this process may have.
type Bounded interface {
	Device
	// MemoryLimit returns the maximum memory in bytes that this process can have of the device, and the origin of the
	// limit for display; 0 if unknown.
	MemoryLimit() (bytes int64, why string)
}

// Reclaimer is a device that asks holders of unneeded memory to release some before it refuses an allocation.
type Reclaimer interface {
	Device
	// OnRefused registers reclaim, which is called after the system refused the given bytes. It frees memory if it can
	// and reports whether it did; the allocation is then retried until no reclaim function frees anything. It may be
	// called concurrently, and while the caller of Alloc holds locks. remove ends the registration.
	OnRefused(reclaim func(bytes int64) bool) (remove func())
}

// Reclaim holds the registrations of a [Reclaimer]. The zero value has none.
type Reclaim struct {
	mu   sync.Mutex
	last int
	all  map[int]func(int64) bool
}

// OnRefused implements [Reclaimer].
func (r *Reclaim) OnRefused(reclaim func(bytes int64) bool) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[int]func(int64) bool{}
	}
	r.last++
	id := r.last
	r.all[id] = reclaim
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, id)
	}
}

// RetryAfterReclaim reports whether an allocation of the given bytes that failed with err should be retried: memory was refused,
// and some was freed.
func (r *Reclaim) RetryAfterReclaim(bytes int64, err error) bool {
	if !errors.Is(err, ErrOutOfMemory) && !outOfDescriptors(err) {
		return false
	}
	r.mu.Lock()
	all := make([]func(int64) bool, 0, len(r.all))
	for _, f := range r.all {
		all = append(all, f)
	}
	r.mu.Unlock()
	given := false
	for _, f := range all {
		if f(bytes) {
			given = true
		}
	}
	return given
}

// outOfDescriptors reports whether the process, or the host, has no free descriptor: shareable memory needs one.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
