package task

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Work is done once for several tasks that wait for it, such as building a cached value. It runs on the worker of one
// of its waiters; the others release theirs meanwhile. When that waiter leaves, another lends its worker. Reports of
// the work ([Report]) are the progress of all its waiters, and its waits in [Blocking] occupy no worker.
//
// A waiter need not be a task. Without tasks among its waiters, the work has no worker and its reports are dropped. The
// zero value is ready for use. Its methods are safe for concurrent use.
type Work struct {
	// Name describes the work in errors. It is set before the work is used.
	Name string

	// Guarded by works.
	waiting  []worker // the waiting tasks; the first one lends its worker
	queued   []worker // wait for its end without taking part; see Behind
	parks    int      // number of the work's goroutines in Blocking
	progress *Progress
}

// works is the lock of all Work values, because one may wait for another in any order. It is taken before the locks of
// managers.
var works sync.Mutex

// Context returns the context of the work, with the values of ctx. Tasks started with it belong to the work.
func (w *Work) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, workerKey{}, worker(w))
}

// Join records that the task of ctx waits for the work until leave is called, once. leave returns when the task has a
// worker again, as [Blocking] does. A task that would wait for itself, because the work waits for it, gets [ErrSelf].
// Without a task Join does nothing.
func (w *Work) Join(ctx context.Context) (leave func(), err error) {
	member := workerOf(ctx)
	if member == nil {
		return func() {}, nil
	}
	var left leftover
	defer left.do()
	works.Lock()
	defer works.Unlock()
	if err := refuseCycle(member, w); err != nil {
		return nil, fmt.Errorf("wait for a shared piece of work: %w", err)
	}
	w.waiting = append(w.waiting, member)
	if len(w.waiting) > 1 || w.parks > 0 {
		member.park(&left)
	}
	if w.progress != nil {
		member.report(w.progress, &left)
	}
	return func() { w.leave(member) }, nil
}

// leave ends a wait for the work.
func (w *Work) leave(member worker) {
	var left leftover
	works.Lock()
	wait := w.dropLocked(member, &left)
	works.Unlock()
	left.do()
	wait()
}

// dropLocked removes a waiter and returns a function that waits until the waiter has a worker again. If it lent its
// worker, the next waiter lends one, and the work has none until then.
func (w *Work) dropLocked(member worker, left *leftover) (wait func()) {
	// Goroutines of one task are equivalent: the last one lends the worker only if it is the only one.
	i := len(w.waiting) - 1
	for w.waiting[i] != member {
		i--
	}
	w.waiting = slices.Delete(w.waiting, i, i+1)
	switch {
	case i > 0 || w.parks > 0:
		return member.unpark(left)
	case len(w.waiting) > 0:
		w.waiting[0].unpark(left)
	}
	return member.arrive()
}

// id returns the id of the task that lends its worker.
func (w *Work) id() string {
	if len(w.waiting) == 0 {
		return ""
	}
	return w.waiting[0].id()
}

func (w *Work) name() string { return w.Name }

// waiters implements worker.
func (w *Work) waiters() []worker {
	if len(w.queued) == 0 {
		return w.waiting
	}
	return append(slices.Clip(w.waiting), w.queued...)
}

// Behind calls wait, which waits for the end of the work, and returns its error. The task or work of ctx takes no part in the
// work: it lends no worker and gets no reports. It releases its worker meanwhile, as in [Blocking]. One that the work waits
// for gets [ErrSelf].
func (w *Work) Behind(ctx context.Context, wait func() error) error {
	member := workerOf(ctx)
	if member == nil {
		return wait()
	}
	if err := w.queue(member); err != nil {
		return err
	}
	defer func() {
		works.Lock()
		defer works.Unlock()
		i := slices.Index(w.queued, member)
		w.queued = slices.Delete(w.queued, i, i+1)
	}()
	return Blocking(ctx, wait)
}

// queue records a member of Behind.
func (w *Work) queue(member worker) error {
	works.Lock()
	defer works.Unlock()
	if err := refuseCycle(member, w); err != nil {
		return err
	}
	w.queued = append(w.queued, member)
	return nil
}

// park begins a wait of one goroutine of the work.
func (w *Work) park(left *leftover) {
	if w.parks++; w.parks == 1 && len(w.waiting) > 0 {
		w.waiting[0].park(left)
	}
}

// unpark ends a wait.
func (w *Work) unpark(left *leftover) (wait func()) {
	if w.parks--; w.parks == 0 && len(w.waiting) > 0 {
		return w.waiting[0].unpark(left)
	}
	return func() {}
}

// arrive waits for a worker in transit.
func (w *Work) arrive() (wait func()) {
	if w.parks == 0 && len(w.waiting) > 0 {
		return w.waiting[0].arrive()
	}
	return func() {}
}

// report records progress for all waiters, once for each report.
func (w *Work) report(p *Progress, left *leftover) {
	if w.progress == p {
		return
	}
	w.progress = p
	for _, member := range w.waiting {
		member.report(p, left)
	}
}
