package driver

import (
	"errors"
	"sync"
	"syscall"
)

// Bounded is a device that knows how much of its memory this process may have.
type Bounded interface {
	Device
	// MemoryLimit is the most memory that this process can have of the device, in bytes, and what sets that bound, for
	// people; 0 where that is not known.
	MemoryLimit() (bytes int64, why string)
}

// Reclaimer is a device that asks holders of memory that they do not need to release some before it refuses an
// allocation.
type Reclaimer interface {
	Device
	// OnRefused registers reclaim, which is called when the system has refused so many bytes. It gives memory back if
	// it can, and reports whether it did: then the allocation is tried again, until nobody gives anything back any
	// more. It may be called by several goroutines at once, and while the caller of Alloc holds locks of its own.
	// remove ends the registration.
	OnRefused(reclaim func(bytes int64) bool) (remove func())
}

// Reclaim keeps the registrations of a [Reclaimer]. The zero value has none.
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

// Again reports whether an allocation of so many bytes that failed with err is worth another try: memory was refused,
// and some was given back.
func (r *Reclaim) Again(bytes int64, err error) bool {
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

// outOfDescriptors reports whether the process, or the host, has no descriptor left: memory that can be shared needs
// one.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
