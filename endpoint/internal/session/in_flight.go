package session

import (
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
)

// InFlight holds the long requests of a client that are not answered yet. Its methods are safe for concurrent use.
type InFlight struct {
	bytes atomic.Int64 // of the requests and of task arguments

	mu      sync.Mutex
	by      map[uint64]*Context // by frame id
	leaving bool                // goodbye was sent: new requests are refused
	kept    int                 // reasons to keep the session after its last request
}

// Count returns the number of requests in flight.
func (f *InFlight) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.by)
}

// Bytes returns the size of the requests in flight and of the arguments of running tasks.
func (f *InFlight) Bytes() int64 { return f.bytes.Load() }

// Leaving reports whether goodbye was sent.
func (f *InFlight) Leaving() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaving
}

// begin registers a request so that it can be cancelled. On success it takes ownership of the frame's charge.
func (f *InFlight) begin(w *work, frame wire.Frame) (err error) {
	most := &w.Session.of.Limits
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.leaving && !w.late:
		return status.ErrLeaving
	case !w.Session.Own && len(f.by) >= most.Requests:
		return status.Exceeded(status.LimitRequests, "%d requests of this client are in flight", len(f.by))
	}
	if w.Context.reservation, err = f.admit(frame, most.RequestBytes, w.Session.Own); err != nil {
		return err
	}
	if f.by == nil {
		f.by = map[uint64]*Context{}
	}
	f.by[w.ID] = w.Context
	return nil
}

// fileCost is the number of bytes charged for a descriptor. It covers the memory of the kernel and of this process for
// the descriptor and its mapping.
const fileCost = 16 << 10

// admit adds the request's bytes to the session's and takes ownership of the frame's charge. It fails if the
// request is over the limit. It does not wait, because a waiting reader could not receive the frame that cancels the
// request.
func (f *InFlight) admit(frame wire.Frame, limit int64, unbound bool) (Reservation, error) {
	n := int64(len(frame.Body)) + int64(frame.Files.Len())*fileCost
	if sum := f.bytes.Add(n); sum > limit && sum > n && !unbound {
		f.bytes.Add(-n)
		return Reservation{}, status.Exceeded(status.LimitRequestBytes, "requests of this client in flight have %d bytes including descriptors, the limit is %d", sum-n, limit)
	}
	return Reservation{total: &f.bytes, bytes: n, frame: frame.Release}, nil
}

// get returns the context of a request, or nil if the request is not in flight.
func (f *InFlight) get(id uint64) *Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[id]
}

// over removes an answered request. It reports whether the session may end now: goodbye was sent and this was the last
// request.
func (f *InFlight) over(id uint64) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.by, id)
	return f.overLocked()
}

// overLocked reports whether goodbye was sent and nothing keeps the session.
func (f *InFlight) overLocked() bool { return f.leaving && len(f.by) == 0 && f.kept == 0 }

// isOver is overLocked for callers without the lock.
func (f *InFlight) isOver() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.overLocked()
}

// keep adds delta to the reasons to keep the session. It reports whether the session may end now.
func (f *InFlight) keep(delta int) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept += delta
	return f.overLocked()
}

// leave makes begin refuse all further requests. It reports whether none are in flight.
func (f *InFlight) leave() (idle bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaving = true
	return f.overLocked()
}
