package link

import (
	"errors"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
)

// requests holds the unanswered requests of a link and the receivers of events.
type requests struct {
	mu      sync.Mutex
	pending map[uint64]*waiter
	spare   []*waiter                         // waiters of answered requests, for reuse
	events  map[uint64]func(wire.Frame) error // by request id
	lastID  uint64
	err     error         // why the link takes no new requests
	Over    chan struct{} // closed when err is set
}

// overLocked ends a link if its owner has said goodbye and has answered all requests.
func (r *requests) overLocked() error {
	if r.err != nil && len(r.pending) == 0 {
		return r.err
	}
	return nil
}

// endLocked makes the link refuse new requests with err. The first error wins.
func (r *requests) endLocked(err error) {
	if r.err == nil {
		r.err = err
		close(r.Over)
	}
}

// Reason returns why the link refuses new requests, or nil if it does not.
func (r *requests) Reason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// OwnerLeft reports whether the owner is shutting down.
func (r *requests) OwnerLeft() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Is(r.err, errOwnerLeft)
}

// waiter is an unanswered request.
type waiter struct {
	answer    chan wire.Frame // closed without a frame when the link ends
	late      func(wire.Frame)
	returns   bool
	abandoned bool                    // the caller has left
	done      func(wire.Frame, error) // receives the answer or the error that ended the link, instead of the channel; nil for most
}

// spareWaiters is the maximum number of waiters that a link keeps for reuse.
const spareWaiters = 64

// free recycles a waiter whose answer was received or will not arrive.
func (r *requests) free(w *waiter) {
	w.late, w.returns = nil, false
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.spare) < spareWaiters {
		r.spare = append(r.spare, w)
	}
}

// waiterLocked returns a waiter for a new request.
func (r *requests) waiterLocked() *waiter {
	if n := len(r.spare); n > 0 {
		w := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return w
	}
	return &waiter{answer: make(chan wire.Frame, 1)}
}

// expectAsync registers a request whose answer is passed to done.
func (r *requests) expectAsync(c Request, done func(wire.Frame, error)) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, &notSentError{r.err}
	}
	r.lastID++
	r.pending[r.lastID] = &waiter{abandoned: true, done: done}
	r.listenLocked(r.lastID, &c)
	return r.lastID, nil
}

// withdraw removes a request that was not sent. It returns false if the request has already ended.
func (r *requests) withdraw(id uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, waiting := r.pending[id]
	delete(r.pending, id)
	delete(r.events, id)
	return waiting
}

// listenLocked registers the receiver of the request's events.
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
		return 0, nil, &notSentError{r.err}
	}
	r.lastID++
	w := r.waiterLocked()
	w.late, w.returns, w.abandoned = c.Late, c.Returns, false
	r.pending[r.lastID] = w
	r.listenLocked(r.lastID, c)
	return r.lastID, w, nil
}

// abandon records that the caller has left. It returns false if the answer or the end of the link has already arrived.
func (r *requests) abandon(id uint64, w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[id] != w { // the request has succeeded and keeps its events
		return false
	}
	delete(r.events, id)
	w.abandoned = true
	return true
}

// Ignore removes the receiver of a request's events.
func (r *requests) Ignore(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.events, id)
}
