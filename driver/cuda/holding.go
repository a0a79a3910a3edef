package cuda

import (
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

// holding is what an object stands for: something of the driver's, and a reference to the context.
type holding struct {
	p     *primary
	kind  string
	bytes int64
	free  func() error
	// exposed: an address or a handle was handed out, and the garbage collector does not see its users.
	exposed *atomic.Bool
}

// release gives it back, with the context current. The error is errNotReleased where it could not begin.
func (h *holding) release() error {
	if err := h.p.enter(); err != nil {
		return errNotReleased{err}
	}
	defer leave()
	return h.free()
}

// kept are the exposed holdings whose objects were forgotten. They stay reachable: what they hold has cleanups of its
// own.
var kept struct {
	mu  sync.Mutex
	all []*holding
}

// reap gives back what a forgotten object stood for. An address that was handed out must never become another memory's,
// and a handle is an address to the driver: those stay until the process ends, and are counted.
func (h *holding) reap() {
	exposed := h.exposed.Load()
	if exposed {
		kept.mu.Lock()
		kept.all = append(kept.all, h)
		kept.mu.Unlock()
	} else {
		_ = h.release() // nobody is left to be told
		_ = h.p.put()
	}
	driver.ReportLeak(driver.Leak{Device: h.p.name, Kind: h.kind, Bytes: h.bytes, Kept: exposed})
}
