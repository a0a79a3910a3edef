package session

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
)

// InFlight is the long requests of a client that are not answered yet. Its methods are safe for concurrent use.
type InFlight struct {
	bytes atomic.Int64 // of the requests, and of the arguments of tasks

	mu      sync.Mutex
	by      map[uint64]*callContext // by frame id
	leaving bool                    // goodbye was said: no new requests
}

// Count is how many there are.
func (f *InFlight) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.by)
}

// Bytes is how many bytes they have, and the arguments of tasks that have not ended.
func (f *InFlight) Bytes() int64 { return f.bytes.Load() }

// Leaving reports whether goodbye was said.
func (f *InFlight) Leaving() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaving
}

// begin notes a request so that it can be cancelled, and takes over the charge of its frame, unless it fails.
func (f *InFlight) begin(w *work, frame wire.Frame) (err error) {
	most := &w.session.of.Limits
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.leaving:
		return fmt.Errorf("%w: the owner is shutting down", status.ErrUnavailable)
	case !w.session.Own && len(f.by) >= most.Requests:
		return limits.Exceeded(limits.Requests, "%d requests of this client are in flight", len(f.by))
	}
	if w.r.Reservation, err = f.admit(frame, most.RequestBytes, w.session.Own); err != nil {
		return err
	}
	if f.by == nil {
		f.by = map[uint64]*callContext{}
	}
	f.by[w.r.ID] = &w.callContext
	return nil
}

// fileCost is what a descriptor counts as: the memory that the kernel and this process need for it and its mapping, and
// there are only so many.
const fileCost = 16 << 10

// admit takes over the charge of a request, unless it fails, and adds the request's bytes to those of the session. It
// refuses a request above the limit instead of waiting: a reader that waits would not see the frame that cancels what
// it waits for.
func (f *InFlight) admit(frame wire.Frame, limit int64, unbound bool) (engine.Reservation, error) {
	n := int64(len(frame.Body)) + int64(frame.Files.Len())*fileCost
	if sum := f.bytes.Add(n); sum > limit && sum > n && !unbound {
		f.bytes.Add(-n)
		return engine.Reservation{}, limits.Exceeded(limits.RequestBytes, "the requests of this client in flight have %d bytes, descriptors included, and may have %d", sum-n, limit)
	}
	return engine.Reservation{Total: &f.bytes, Bytes: n, Files: frame.Files.Hold(), Body: frame.Charge}, nil
}

// get is the context of a request; nil for one that is not there.
func (f *InFlight) get(id uint64) *callContext {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[id]
}

// over forgets a request that is answered, and reports whether the session was only waiting for it.
func (f *InFlight) over(id uint64) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.by, id)
	return f.leaving && len(f.by) == 0
}

// leave refuses all requests from now on, and reports whether there are none.
func (f *InFlight) leave() (idle bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaving = true
	return len(f.by) == 0
}
