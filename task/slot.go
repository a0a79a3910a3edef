package task

import (
	"context"
	"slices"
)

// worker is what a context belongs to: a task of any manager, or a [Work]. Its methods are called with the lock of all
// works.
type worker interface {
	// id is that of the task; empty for a work that no task waits for.
	id() string
	// has reports whether the other is the worker, or waits for it.
	has(other worker) bool
	// park begins a wait of one goroutine: the worker goes to others.
	park(left *leftover)
	// unpark ends one. The caller calls wait without locks, which returns when there is a worker again.
	unpark(left *leftover) (wait func())
	// arrive is unpark where nothing has waited: it returns how to wait for a worker that is on its way.
	arrive() (wait func())
	report(p Progress, left *leftover)
}

// leftover is what critical sections leave to do without locks.
type leftover []func()

// do does it.
func (l *leftover) do() {
	for _, f := range *l {
		f()
	}
}

// workerKey finds the worker in a context.
type workerKey struct{}

// workerOf returns what ctx belongs to, or nil.
func workerOf(ctx context.Context) worker {
	w, _ := ctx.Value(workerKey{}).(worker)
	return w
}

// ID returns the id of the task that ctx belongs to, and whether it belongs to one. What several tasks wait for
// together belongs to one of them.
func ID(ctx context.Context) (string, bool) {
	w := workerOf(ctx)
	if w == nil {
		return "", false
	}
	works.Lock()
	defer works.Unlock()
	id := w.id()
	return id, id != ""
}

// Blocking calls wait and returns what it returns. If ctx belongs to a task, the task gives its worker to others
// meanwhile, and takes one again, when one is free, before Blocking returns. A task uses it for whatever other tasks
// may have to do before it can go on. wait should end when ctx does.
func Blocking(ctx context.Context, wait func() error) error {
	if w := workerOf(ctx); w != nil {
		park(w)
		defer unpark(w)
	}
	return wait()
}

func park(w worker) {
	var left leftover
	works.Lock()
	w.park(&left)
	works.Unlock()
	left.do()
}

func unpark(w worker) {
	var left leftover
	works.Lock()
	wait := w.unpark(&left)
	works.Unlock()
	left.do()
	wait()
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

func (t *Task[V]) id() string { return t.status.ID }

func (t *Task[V]) has(other worker) bool {
	return worker(t) == other || slices.ContainsFunc(t.waiting, func(w worker) bool { return w.has(other) })
}

// park begins a wait of one goroutine of the task.
func (t *Task[V]) park(left *leftover) {
	t.m.mu.Lock()
	defer t.m.unlockTo(left)
	t.parks++
	t.giveSlotLocked()
	t.m.dispatchLocked()
}

// unpark ends a wait. What it returns waits until the task has a worker, or until the task has been cancelled or has
// timed out: then it goes on without one, to come to its end.
func (t *Task[V]) unpark(left *leftover) (wait func()) {
	m := t.m
	m.mu.Lock()
	defer m.unlockTo(left)
	t.parks--
	if t.parks > 0 || t.slot || t.status.State.Terminal() {
		return func() {}
	}
	if t.coming == nil {
		t.coming = &resume[V]{t: t, granted: make(chan struct{})}
		m.resuming = append(m.resuming, t.coming)
	}
	wait = t.awaitLocked()
	m.dispatchLocked()
	return wait
}

// arrive waits for a worker that is on its way to the task.
func (t *Task[V]) arrive() (wait func()) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.coming == nil || t.status.State.Terminal() {
		return func() {}
	}
	return t.awaitLocked()
}

// awaitLocked returns what waits for the worker that is coming.
func (t *Task[V]) awaitLocked() func() {
	r, ended := t.coming, t.ctx.Done()
	return func() {
		select {
		case <-r.granted:
		case <-ended:
			t.m.mu.Lock()
			defer t.m.mu.Unlock()
			if t.coming == r {
				t.coming = nil
				i := slices.Index(t.m.resuming, r)
				t.m.resuming = slices.Delete(t.m.resuming, i, i+1)
			}
		}
	}
}
