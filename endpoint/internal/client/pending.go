package client

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Request is a request that a client sends.
type Request struct {
	Op    message.Op // the operation
	Body  any        // nil for none
	Files []*os.File // borrowed until it has been sent
	// Storages replace Files for an owner in this process. They are borrowed until the request has been sent.
	Storages []*tensor.Storage
	// Event receives the events of the request until Ignore is called. It runs in the goroutine that reads the
	// connection, must return at once, and may run before RoundTrip returns the answer.
	Event func(message.Event)
	// Item receives the frames of events that are not events of the catalog, like Event. It takes ownership of the
	// frame. An error ends the connection.
	Item func(wire.Frame) error
	// Late handles an answer that arrives after the caller has left. It takes ownership of the frame and runs in the
	// goroutine that reads the connection. If it is nil, the frame is closed.
	Late func(wire.Frame)
	// Returns is set if the answer may contain a reference to a managed object. If the answer arrives late, the
	// reference is released.
	Returns bool

	// OfTask is set for a request about a task. The owner of the task also accepts it after its goodbye.
	OfTask bool

	// Metadata is sent with the request. The caller has validated it.
	Metadata message.Metadata

	// Callee is the body if Calls is set; Body is then unused. Plain is the argument unless Callee already contains it
	// in encoded form.
	Calls  bool
	Callee message.Call
	Plain  any
}

var errOwnerLeft = fmt.Errorf("%w: the owner is shutting down", status.ErrUnavailable)

// requests holds the unanswered requests of a connection and the receivers of events.
type requests struct {
	mu      sync.Mutex
	pending map[uint64]*waiter
	spare   []*waiter                         // waiters of answered requests, for reuse
	events  map[uint64]func(wire.Frame) error // by request id
	lastID  uint64
	err     error               // why the connection takes no new requests
	over    chan struct{}       // closed when err is set
	tasks   map[string]struct{} // submitted and not settled: the owner ends the connection when they have ended
}

// overLocked ends a connection if its owner has said goodbye and has answered all requests. It leaves a connection on which
// tasks were submitted to the owner.
func (r *requests) overLocked() error {
	if r.err != nil && len(r.pending) == 0 && len(r.tasks) == 0 {
		return r.err
	}
	return nil
}

// maxOpenTasks is the maximum number of tasks that a connection records. Beyond it the owner ends the connection earlier.
const maxOpenTasks = 4096

// submitted records that a task was submitted.
func (r *requests) submitted(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tasks == nil {
		r.tasks = map[string]struct{}{}
	}
	if len(r.tasks) < maxOpenTasks {
		r.tasks[id] = struct{}{}
	}
}

// settled records that nothing more is expected of a task. It reports whether the connection is over.
func (r *requests) settled(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tasks, id)
	return r.overLocked() != nil
}

// answersTasks reports whether requests about tasks can be sent.
func (r *requests) answersTasks() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusalLocked(&Request{OfTask: true}) == nil
}

// refusalLocked returns why a request cannot be sent, or nil.
func (r *requests) refusalLocked(c *Request) error {
	if r.err == nil || c.OfTask && r.pending != nil && errors.Is(r.err, errOwnerLeft) {
		return nil
	}
	return &notSentError{r.err}
}

// endLocked makes the connection refuse new requests with err. The first error wins.
func (r *requests) endLocked(err error) {
	if r.err == nil {
		r.err = err
		close(r.over)
	}
}

// reason returns why the connection refuses new requests, or nil if it does not.
func (r *requests) reason() error {
	select {
	case <-r.over:
	default:
		return nil // without the lock: each request asks
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// ownerLeft reports whether the owner is shutting down.
func (r *requests) ownerLeft() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Is(r.err, errOwnerLeft)
}

// waiter is an unanswered request.
type waiter struct {
	answer    chan wire.Frame // closed without a frame when the connection ends
	late      func(wire.Frame)
	returns   bool
	abandoned bool                          // the caller has left
	done      func(wire.Frame, error) error // receives the answer or the error that ended the connection, instead of the channel; nil for most
}

// spareWaiters is the maximum number of waiters that a connection keeps for reuse.
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
func (r *requests) expectAsync(c Request, done func(wire.Frame, error) error) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refusalLocked(&c); err != nil {
		return 0, err
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
	if err := r.refusalLocked(c); err != nil {
		return 0, nil, err
	}
	r.lastID++
	w := r.waiterLocked()
	w.late, w.returns, w.abandoned = c.Late, c.Returns, false
	r.pending[r.lastID] = w
	r.listenLocked(r.lastID, c)
	return r.lastID, w, nil
}

// abandon records that the caller has left. It returns false if the answer or the end of the connection has already
// arrived.
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

// ignore removes the receiver of a request's events.
func (r *requests) ignore(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.events, id)
}

// asItem adapts a receiver of events to one of frames.
func asItem(event func(message.Event)) func(wire.Frame) error {
	return func(frame wire.Frame) error {
		defer frame.Files.Close()
		var e message.Event
		if err := message.Unmarshal(frame.Body, &e); err != nil {
			return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
		}
		if len(e.Name) > catalog.MaxNameBytes { // such a name cannot be published
			return fmt.Errorf("%w: event for a name of %d bytes", status.ErrProtocol, len(e.Name))
		}
		event(e)
		return nil
	}
}

// notSentError wraps the error of a connection that ended before the request was sent. The request can be sent on the
// next connection.
type notSentError struct{ error }

func (u *notSentError) Unwrap() error { return u.error }

// notRun replaces the error of a request that the owner refused after its goodbye: the request can be sent on the next
// connection.
func notRun(err error) error {
	if status.Refused(err) {
		return &notSentError{errOwnerLeft}
	}
	return err
}

// NotSent reports whether err is due to a connection that ended before the request was sent, or to an owner that refused it
// after its goodbye. The request did not run and can be repeated.
func NotSent(err error) bool {
	if err == nil {
		return false // fast path: errors.As allocates
	}
	var u *notSentError
	return errors.As(err, &u)
}
