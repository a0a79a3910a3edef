package driver

import (
	"errors"
	"sync"
	"syscall"
)

// Reclaim holds the registrations of [Device.OnRefused]. The zero value has none.
type Reclaim struct {
	mu   sync.Mutex
	last int
	all  map[int]func(int64) bool
}

// OnRefused implements [Device].
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
