package engine

import (
	"context"
	"strconv"
	"sync"

	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/task"
)

// turns runs the calls of a key one after the other, in the order in which they arrive. Unused keys take no memory.
type turns struct {
	mu   sync.Mutex
	last map[string]*turn // the latest call of each key
}

// turn is the place of one call in the queue of its key. The call may run when no other is before it.
//
// Each turn is a work that waits behind the work of the turn before it, and the function runs with the turn's context. A call
// that waits for itself, directly or through other functions, tasks and shared runs, is therefore a cycle of works, which
// package task detects.
type turn struct {
	of    *turns
	key   string
	work  task.Work
	leave func()        // ends the wait of the caller's task for the work
	ended chan struct{} // closed when the call has left the queue

	before, after *turn // guarded by of.mu
}

// wait joins the queue of a key and returns when it is the call's turn, or with an error when ctx ends or the wait would never
// end. A task releases its worker meanwhile. name is the endpoint. The caller ends the turn.
func (t *turns) wait(ctx context.Context, name, key string) (*turn, error) {
	own := &turn{of: t, key: name + "\x00" + key, work: task.Work{Name: strconv.Quote(name)}, ended: make(chan struct{})}
	var err error
	if own.leave, err = own.work.Join(ctx); err != nil {
		return nil, err
	}
	t.join(own)
	for before := own.preceding(); before != nil; before = own.preceding() {
		err := before.work.Behind(own.work.Context(ctx), func() error {
			select {
			case <-before.ended:
				return nil
			case <-ctx.Done():
				return ended.Cause(ctx)
			}
		})
		if err != nil {
			own.end()
			return nil, err
		}
	}
	return own, nil
}

// join adds a turn to the queue of its key.
func (t *turns) join(own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.before = t.last[own.key]; own.before != nil {
		own.before.after = own
	}
	if t.last == nil {
		t.last = map[string]*turn{}
	}
	t.last[own.key] = own
}

// preceding returns the turn before this one, or nil.
func (own *turn) preceding() *turn {
	own.of.mu.Lock()
	defer own.of.mu.Unlock()
	return own.before
}

// end leaves the queue. It is called once.
func (own *turn) end() {
	own.of.mu.Lock()
	if own.before != nil {
		own.before.after = own.after
	}
	switch {
	case own.after != nil:
		own.after.before = own.before
	case own.before != nil:
		own.of.last[own.key] = own.before
	default:
		delete(own.of.last, own.key)
	}
	own.of.mu.Unlock()
	close(own.ended)
	own.leave()
}

// context returns the context for the function of the call.
func (own *turn) context(ctx context.Context) context.Context { return own.work.Context(ctx) }
