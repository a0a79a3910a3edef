package cuda

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// release releases the resource of an object, and the object's reference to the context. It outlives the object if that
// became unreachable without Close, or was closed during a capture.
type release struct {
	p     *primary
	kind  string
	bytes int64
	life  *lifetime
	// free releases the resource. It is called again if it fails with errNotReleased.
	free func() error
	// source is the lifetime of the pool that the memory was allocated from. The pool is released later.
	source *lifetime
	// captured is set for resources that are themselves part of a capture. Closing them during the capture is refused.
	captured  bool
	forgotten bool
	begun     bool // a part of the resource may be released
	freed     bool // the resource is released; the reference to the context may remain
	failures  int  // of the release in the background, without failures that a capture causes
}

// run waits for the uses of the object, frees the resource, and releases the reference to the context. It returns
// ErrCapturing if a capture forbids the wait. It returns errNotReleased if something remains, and can be repeated then.
// Another error means that the resource no longer exists, such as after a fault.
func (h *release) run() error {
	if h.freed {
		return h.settle(nil)
	}
	return h.settle(h.waitAndFree())
}

// settle records the result of freeing the resource. It releases the reference to the context if nothing else remains.
func (h *release) settle(err error) error {
	var kept errNotReleased
	switch {
	case errors.Is(err, ErrCapturing):
		return err
	case errors.As(err, &kept):
		h.begun = h.begun || kept.begun
		return err
	}
	if h.begun && gone(err) { // the earlier attempt has released the resource, although it failed
		err = nil
	}
	h.begun, h.freed = true, true
	return joinErrors([]error{err, h.p.put()})
}

func (h *release) waitAndFree() error {
	if err := h.p.enter(); err != nil {
		if gone(err) {
			return err
		}
		return notReleased(err)
	}
	defer leave()
	waited := false
	err := relaxed(func() error {
		if err := h.life.wait(h.p); err != nil {
			return err
		}
		waited = true
		return h.free()
	})
	if err != nil && !waited {
		return notReleased(err)
	}
	return err
}

// kept are the releases of unreachable objects that were exposed. They never run. The list keeps them reachable because parts of them have
// cleanups.
var kept struct {
	mu  sync.Mutex
	all []*release
}

// reap runs the release of an object that became unreachable without Close. If the object was exposed, reap keeps the
// resource until the process ends, because its address may still be in use and must not be reused for other memory.
func (h *release) reap() {
	if h.life.exposed.Load() && !h.begun {
		kept.mu.Lock()
		kept.all = append(kept.all, h)
		kept.mu.Unlock()
		driver.ReportLeak(driver.Leak{Device: h.p.name, Kind: h.kind, Bytes: h.bytes, Kept: true})
		return
	}
	h.forgotten = true
	if !h.try() {
		h.p.postponed.add(h)
	}
}

// try runs the release. It returns false if it must be retried. A capture may
// last as long as its owner wants. Any other failure is retried maxFailures times. try then reports the resource as
// kept, because it remains until the process ends.
func (h *release) try() bool {
	err := h.run()
	if errors.Is(err, ErrCapturing) {
		return false
	}
	if mustRetry(err) {
		if h.failures++; h.failures < maxFailures {
			return false
		}
		slog.Error("a resource of the device cannot be released, and remains until the process ends",
			"what", h.kind, "bytes", h.bytes, "device", h.p.name, "attempts", h.failures, "error", err)
		driver.ReportLeak(driver.Leak{Device: h.p.name, Kind: h.kind, Bytes: h.bytes, Kept: true})
		return true
	}
	if err != nil {
		slog.Warn("releasing a resource of the device failed", "what", h.kind, "device", h.p.name, "error", err)
	}
	if h.forgotten {
		driver.ReportLeak(driver.Leak{Device: h.p.name, Kind: h.kind, Bytes: h.bytes})
	}
	return true
}

// postponed is the list of a device's releases that a capture forbids, and of those that failed for objects that became
// unreachable. A goroutine retries them while the list is not empty.
type postponed struct {
	mu  sync.Mutex
	all []*release
}

const (
	// maxRetryDelay limits the time between two attempts to release a resource.
	maxRetryDelay = 50 * time.Millisecond
	// maxFailures is the number of attempts that may fail for another reason than a capture, within about two seconds.
	maxFailures = 50
)

func (q *postponed) add(h *release) {
	if h.source != nil {
		h.source.pending.Add(1)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = append(q.all, h)
	if len(q.all) == 1 {
		go q.run()
	}
}

// run retries the releases in their order until the list is empty.
func (q *postponed) run() {
	for delay := time.Millisecond; ; delay = min(2*delay, maxRetryDelay) {
		time.Sleep(delay)
		q.mu.Lock()
		all := slices.Clone(q.all)
		q.mu.Unlock()
		for _, h := range all {
			if !h.try() {
				continue
			}
			if h.source != nil {
				h.source.pending.Add(-1)
			}
			if q.remove(h) == 0 {
				return
			}
		}
	}
}

// remove removes h and returns the number of remaining releases.
func (q *postponed) remove(h *release) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = slices.DeleteFunc(q.all, func(other *release) bool { return other == h })
	return len(q.all)
}

// Stats describes the resources of a device that are closed but not yet released.
type Stats struct {
	// Deferred is the number of closed or unreachable objects whose release waits for the end of a stream capture.
	Deferred int
	// DeferredBytes is their size in bytes. It counts against the device's memory until the release.
	DeferredBytes int64
}

// Stats reports the objects made from d whose release is deferred. The release is retried at least every 50 ms until
// the captures have ended. It then waits for the work that uses the objects. A release that fails 50 times for another
// reason than a capture ends: [driver.Leaks] and the log report the leak.
func (d *Device) Stats() Stats {
	q := &d.p.postponed
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Stats{Deferred: len(q.all)}
	for _, h := range q.all {
		s.DeferredBytes += h.bytes
	}
	return s
}
