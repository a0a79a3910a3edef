package task

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/task/panics"
)

// dispatchLocked assigns free workers: first to tasks that resume after a wait, then to tasks that have not started.
func (m *Manager[V]) dispatchLocked() {
	for m.busy < m.opts.Workers && len(m.resuming) > 0 {
		r := m.resuming[0]
		m.resuming = slices.Delete(m.resuming, 0, 1)
		r.t.coming = nil
		r.t.takeSlotLocked()
		close(r.granted)
	}
	for m.busy < m.opts.Workers && m.pending.Len() > 0 {
		t := m.pending.Remove(m.pending.Front()).(*Task[V])
		t.at = nil
		t.takeSlotLocked()
		m.startLocked(t)
	}
}

// startLocked runs the task's function on a new goroutine, which Shutdown waits for.
func (m *Manager[V]) startLocked(t *Task[V]) {
	t.becomeLocked(Running)
	t.status.StartedAt = time.Now()
	fn, ctx := t.fn, t.ctx
	t.fn = nil // the goroutine owns what fn captured
	m.active++
	m.noteLocked(t)
	go m.run(ctx, t, fn)
}

// run calls fn and settles the task, however fn ends.
func (m *Manager[V]) run(ctx context.Context, t *Task[V], fn func(context.Context) (V, error)) {
	var v V
	err := ErrGoexit // unless fn returns or panics
	defer func() { m.end(t, v, err) }()
	defer func() {
		if p := recover(); p != nil {
			err = panics.New(p)
		}
	}()
	v, err = fn(ctx)
}

// end settles t with the outcome of its function.
func (m *Manager[V]) end(t *Task[V], v V, err error) {
	var cost int64
	made := err == nil
	if made {
		cost, err = m.costOf(v)
	}
	err = shortened(err)
	m.mu.Lock()
	if made && (err != nil || t.cause != nil) { // the task does not keep this result
		m.garbage = append(m.garbage, v)
	}
	switch {
	case t.cause != nil:
		m.settleLocked(t, Cancelled, t.cause)
	case err != nil:
		m.settleLocked(t, Failed, err)
	default:
		t.result, t.held, t.cost = v, true, cost
		m.bytes += cost
		m.settleLocked(t, Succeeded, nil)
	}
	t.giveSlotLocked()
	m.dispatchLocked()
	m.unlock()

	m.mu.Lock()
	defer m.mu.Unlock()
	m.active--
	m.signalIdleLocked()
}

// costOf returns the cost of a result. A panic in Cost is an error of the task.
func (m *Manager[V]) costOf(v V) (cost int64, err error) {
	if m.opts.Cost == nil {
		return 0, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = panics.New(p)
		}
	}()
	return max(0, m.opts.Cost(v)), nil
}

// becomeLocked changes the state.
func (t *Task[V]) becomeLocked(next State) {
	if !t.status.State.CanBecome(next) {
		panic(fmt.Sprintf("task %q (%s): %s cannot become %s", t.status.Name, t.status.ID, t.status.State, next))
	}
	t.status.State = next
}

// settleLocked moves t to a terminal state, notifies watchers and waiters, and keeps the task according to the options.
func (m *Manager[V]) settleLocked(t *Task[V], state State, cause error) {
	t.becomeLocked(state)
	t.status.Cancelling = false
	t.status.FinishedAt = time.Now()
	if m.owners[t.status.Owner]--; m.owners[t.status.Owner] == 0 {
		delete(m.owners, t.status.Owner)
	}
	switch state {
	case Succeeded:
		m.stats.Succeeded++
	case Failed:
		m.stats.Failed++
	case Cancelled:
		m.stats.Cancelled++
	}
	if state != Succeeded {
		t.status.Err = &Error{ID: t.status.ID, Name: t.status.Name, State: state, Err: cause}
	}
	t.cancel(nil)
	t.fn, t.ctx, t.cancel = nil, nil, nil // a finished task retains nothing of its function
	close(t.done)
	if ended, err := t.ended, t.status.Err; ended != nil {
		m.wakes = append(m.wakes, func() { ended(err) })
		t.ended = nil
	}
	m.noteLocked(t)
	m.keepLocked(t)
}
