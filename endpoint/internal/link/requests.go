package link

import (
	"errors"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
)

// requests are the requests of a link whose answers have not come, and the receivers of events.
type requests struct {
	mu      sync.Mutex
	pending map[uint64]*waiter
	spare   []*waiter                         // of requests that were answered
	events  map[uint64]func(wire.Frame) error // by the request that they belong to
	lastID  uint64
	err     error         // why the link is of no use for new requests
	Over    chan struct{} // closed when err is set
}

// overLocked ends a link whose owner has said goodbye and owes no answer any more.
func (r *requests) overLocked() error {
	if r.err != nil && len(r.pending) == 0 {
		return r.err
	}
	return nil
}

// endLocked notes why the link is of no use for new requests. The first reason stays.
func (r *requests) endLocked(err error) {
	if r.err == nil {
		r.err = err
		close(r.Over)
	}
}

// Reason is why the link is of no use for new requests; nil while it is.
func (r *requests) Reason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Left reports whether the owner has said that it is shutting down.
func (r *requests) Left() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Is(r.err, errOwnerLeft)
}

// waiter is a request whose answer has not come.
type waiter struct {
	answer  chan wire.Frame // closed without a frame when the link ends
	late    func(wire.Frame)
	returns bool
	gone    bool                    // nobody waits any more
	done    func(wire.Frame, error) // gets the answer, or the end of the link, instead of the channel; nil for most
}

// spareWaiters is how many waiters a link keeps for its next requests.
const spareWaiters = 64

// free keeps a waiter, whose answer has been taken or will not come, for another request.
func (r *requests) free(w *waiter) {
	w.late, w.returns = nil, false
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.spare) < spareWaiters {
		r.spare = append(r.spare, w)
	}
}

// waiterLocked is a waiter for a new request.
func (r *requests) waiterLocked() *waiter {
	if n := len(r.spare); n > 0 {
		w := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return w
	}
	return &waiter{answer: make(chan wire.Frame, 1)}
}

// expectAsync registers a request whose answer goes to done.
func (r *requests) expectAsync(c Request, done func(wire.Frame, error)) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, &unasked{r.err}
	}
	r.lastID++
	r.pending[r.lastID] = &waiter{gone: true, done: done}
	r.listenLocked(r.lastID, &c)
	return r.lastID, nil
}

// withdraw forgets a request that was not sent. It is false when somebody has dealt with it already.
func (r *requests) withdraw(id uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, waiting := r.pending[id]
	delete(r.pending, id)
	delete(r.events, id)
	return waiting
}

// listenLocked notes what receives the events of a request.
func (r *requests) listenLocked(id uint64, c *Request) {
	switch {
	case c.Item != nil:
		r.events[id] = c.Item
	case c.Event != nil:
		r.events[id] = asItem(c.Event)
	}
}

// expect registers a waiter under a new request id.
func (r *requests) expect(c *Request) (uint64, *waiter, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, nil, &unasked{r.err}
	}
	r.lastID++
	w := r.waiterLocked()
	w.late, w.returns, w.gone = c.Late, c.Returns, false
	r.pending[r.lastID] = w
	r.listenLocked(r.lastID, c)
	return r.lastID, w, nil
}

// abandon notes that nobody waits for the answer any more. It is false when the answer, or the end, is there already.
func (r *requests) abandon(id uint64, w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[id] != w { // the request succeeds, and its events with it
		return false
	}
	delete(r.events, id)
	w.gone = true
	return true
}

// Ignore ends the events of a request.
func (r *requests) Ignore(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.events, id)
}
