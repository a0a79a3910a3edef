package cuda

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// holding is a resource of the driver with a reference to its context. It outlives its owner if that became unreachable
// without Close, or was closed during a capture.
type holding struct {
	p     *primary
	kind  string
	bytes int64
	life  *lifetime
	free  func() error
	// source is the lifetime of the pool that the memory was allocated from. The pool is released later.
	source *lifetime
	// captured is set for resources that are themselves part of a capture. Closing them during the capture is refused.
	captured  bool
	forgotten bool
}

// release waits for the work that uses the resource and frees it, with the context current. It returns ErrCapturing if
// a capture forbids the wait, and errNotReleased if the wait failed for another reason.
func (h *holding) release() error {
	if err := h.p.enter(); err != nil {
		return errNotReleased{err}
	}
	defer leave()
	freed := false
	err := relaxed(func() error {
		if err := h.life.wait(h.p); err != nil {
			return err
		}
		freed = true
		return h.free()
	})
	if err != nil && !freed {
		return notReleased(err)
	}
	return err
}

// notReleased marks the error of a wait, except ErrCapturing.
func notReleased(err error) error {
	if errors.Is(err, ErrCapturing) {
		return ErrCapturing
	}
	return errNotReleased{err}
}

// kept are the exposed holdings of unreachable objects. The list keeps them reachable because parts of them have
// cleanups.
var kept struct {
	mu  sync.Mutex
	all []*holding
}

// reap releases the resource of an object that became unreachable without Close. If the resource was exposed, reap
// keeps it until the process ends, because its address may still be in use and must not be reused for other memory.
func (h *holding) reap() {
	if h.life.exposed.Load() {
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

// try releases the resource and its reference to the context. It returns false if it must be retried.
func (h *holding) try() bool {
	err := h.release()
	if errors.Is(err, ErrCapturing) || errors.As(err, &errNotReleased{}) {
		return false
	}
	if err := joinErrors([]error{err, h.p.put()}); err != nil {
		slog.Warn("releasing a resource of the device failed", "what", h.kind, "device", h.p.name, "error", err)
	}
	if h.forgotten {
		driver.ReportLeak(driver.Leak{Device: h.p.name, Kind: h.kind, Bytes: h.bytes})
	}
	return true
}

// postponed holds the resources of a device whose release a capture forbids. A goroutine retries them while the list is
// not empty.
type postponed struct {
	mu  sync.Mutex
	all []*holding
}

// maxRetryDelay limits the time between two attempts to release a resource.
const maxRetryDelay = 50 * time.Millisecond

func (q *postponed) add(h *holding) {
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

// run retries the resources in the order in which they were closed until the list is empty.
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

// remove removes h and returns the number of remaining resources.
func (q *postponed) remove(h *holding) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = slices.DeleteFunc(q.all, func(other *holding) bool { return other == h })
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
// the captures have ended. It then waits for the work that uses the objects.
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
