package task

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// worker is the owner of a context: a task of any manager, or a [Work]. Its methods are called with the lock of all
// works.
type worker interface {
	// id returns the id of the task, or "" for a work without a waiting task.
	id() string
	// name returns a name for errors, or "".
	name() string
	// waiters returns the workers that wait for this one. The caller does not change them.
	waiters() []worker
	// park begins a wait of one goroutine, which releases the worker.
	park(left *leftover)
	// unpark ends a wait. The caller then calls the returned function without locks; it returns when the task has a
	// worker again.
	unpark(left *leftover) (wait func())
	// arrive is unpark without a preceding wait: it returns a function that waits for a worker in transit.
	arrive() (wait func())
	report(p *Progress, left *leftover)
}

// refuseCycle returns [ErrSelf] if member must not wait for goal: goal is member, or waits for it directly or through others.
// The error names those on the way.
func refuseCycle(member, goal worker) error {
	from := map[worker]worker{member: nil} // the worker that each one waits for
	for next := []worker{member}; len(next) > 0; next = next[1:] {
		at := next[0]
		if at == goal {
			return selfError(from, goal)
		}
		for _, w := range at.waiters() {
			if _, seen := from[w]; !seen {
				from[w] = at
				next = append(next, w)
			}
		}
	}
	return nil
}

// selfError is the error of a cycle of waits that ends at goal.
func selfError(from map[worker]worker, goal worker) error {
	var names []string
	for w := goal; w != nil; w = from[w] {
		if name := w.name(); name != "" && (len(names) == 0 || names[len(names)-1] != name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ErrSelf
	}
	return fmt.Errorf("%w: %s", ErrSelf, strings.Join(append(names, names[0]), " waits for "))
}

// leftover holds the actions that critical sections leave to be done without locks.
type leftover []func()

// do performs the actions.
func (l *leftover) do() {
	for _, f := range *l {
		f()
	}
}

// workerKey is the context key of the worker.
type workerKey struct{}

// workerOf returns the owner of ctx, or nil.
func workerOf(ctx context.Context) worker {
	w, _ := ctx.Value(workerKey{}).(worker)
	return w
}

// ID returns the id of the task that owns ctx, and whether there is one. Work shared by several tasks belongs to one of
// them.
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

// Blocking calls wait and returns its error. If ctx belongs to a task, the task releases its worker meanwhile and
// acquires one again before Blocking returns. A task uses it for waits that depend on other tasks. wait should end when
// ctx does.
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

// resume is a task that has waited and needs a worker again. The goroutines of one task share it, because a task with a
// worker must not have a goroutine that waits for another worker.
type resume[V any] struct {
	t       *Task[V]
	granted chan struct{}
}

// takeSlotLocked assigns a worker to the task, unless another of its goroutines waits and will request one, or the task
// has ended and left goroutines behind.
func (t *Task[V]) takeSlotLocked() {
	if t.parks > 0 || t.status.State.Terminal() {
		return
	}
	t.slot = true
	t.m.busy++
}

// giveSlotLocked releases the task's worker, if it has one.
func (t *Task[V]) giveSlotLocked() {
	if t.slot {
		t.slot = false
		t.m.busy--
	}
}

func (t *Task[V]) id() string        { return t.status.ID }
func (t *Task[V]) name() string      { return strconv.Quote(t.status.Name) }
func (t *Task[V]) waiters() []worker { return t.waiting }

// park begins a wait of one goroutine of the task.
func (t *Task[V]) park(left *leftover) {
	t.m.mu.Lock()
	defer t.m.unlockTo(left)
	t.parks++
	t.giveSlotLocked()
	t.m.dispatchLocked()
}

// unpark ends a wait. The returned function waits until the task has a worker, or until it was cancelled or timed out;
// then the task continues to its end without one.
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

// arrive waits for a worker in transit to the task.
func (t *Task[V]) arrive() (wait func()) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.coming == nil || t.status.State.Terminal() {
		return func() {}
	}
	return t.awaitLocked()
}

// awaitLocked returns a function that waits for the worker in transit.
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
