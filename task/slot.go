package task

import (
	"context"
	"slices"
)

// worker is a task of any manager, as its function's context knows it.
type worker interface {
	ID() string
	park()
	unpark()
	report(Progress)
}

// workerKey finds the worker in a context.
type workerKey struct{}

// workerOf returns the task that ctx belongs to, or nil.
func workerOf(ctx context.Context) worker {
	w, _ := ctx.Value(workerKey{}).(worker)
	return w
}

// ID returns the id of the task that ctx belongs to, and whether it belongs to one.
func ID(ctx context.Context) (string, bool) {
	w := workerOf(ctx)
	if w == nil {
		return "", false
	}
	return w.ID(), true
}

// Blocking calls wait and returns what it returns. If ctx belongs to a task, the task gives its worker to others
// meanwhile, and takes one again, when one is free, before Blocking returns. A task uses it for whatever other tasks may
// have to do before it can go on. wait should end when ctx does.
func Blocking(ctx context.Context, wait func() error) error {
	if w := workerOf(ctx); w != nil {
		w.park()
		defer w.unpark()
	}
	return wait()
}

// resume is a task that has waited and wants a worker again. Goroutines of one task share it: a task with a worker must
// not have one of its goroutines wait for another worker.
type resume[V any] struct {
	t       *Task[V]
	granted chan struct{}
}

// takeSlotLocked gives the task a worker, unless another of its goroutines waits, which will ask when it comes back, or
// the task has ended and left goroutines behind.
func (t *Task[V]) takeSlotLocked() {
	if t.parks > 0 || t.status.State.Terminal() {
		return
	}
	t.slot = true
	t.m.busy++
}

// giveSlotLocked takes the worker back, if the task has one.
func (t *Task[V]) giveSlotLocked() {
	if t.slot {
		t.slot = false
		t.m.busy--
	}
}

// park begins a wait of one goroutine of the task.
func (t *Task[V]) park() {
	t.m.mu.Lock()
	defer t.m.unlock()
	t.parks++
	t.giveSlotLocked()
	t.m.dispatchLocked()
}

// unpark ends a wait. It returns when the task has a worker, or when the task has been cancelled or has timed out: then
// it goes on without one, to come to its end.
func (t *Task[V]) unpark() {
	m := t.m
	m.mu.Lock()
	t.parks--
	if t.parks > 0 || t.slot || t.status.State.Terminal() {
		m.mu.Unlock()
		return
	}
	ended := t.ctx.Done()
	if t.coming == nil {
		t.coming = &resume[V]{t: t, granted: make(chan struct{})}
		m.resuming = append(m.resuming, t.coming)
	}
	r := t.coming
	m.dispatchLocked()
	m.unlock()
	select {
	case <-r.granted:
	case <-ended:
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.coming == r {
			t.coming = nil
			i := slices.Index(m.resuming, r)
			m.resuming = slices.Delete(m.resuming, i, i+1)
		}
	}
}
