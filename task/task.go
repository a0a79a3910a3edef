// Package task runs functions in the background and keeps their results until they are fetched or expire.
//
// A [Manager] runs a limited number of tasks at once; the others wait in order of submission. A [Task] can be waited
// for, watched, cancelled, and its result fetched any number of times. A function reports its progress with [Report] on
// its context.
//
// Waiting occupies no worker. A caller waits on its own goroutine. A task that waits for another task releases its
// worker meanwhile, so tasks that wait for tasks cannot deadlock for lack of workers. Other waits of a task belong in
// [Blocking]. Work that several tasks wait for is a [Work]: it runs on the worker of one of them and reports progress
// for all.
//
// A result is held until its task is dropped: by age, by number or by the end of the manager. The limit on bytes and
// [Task.Discard] drop a result earlier. [Options.Release] then receives the result, exactly once.
//
// Surprises: a task does not end with the context of its submission, only with [Task.Cancel] or the manager. A task for which Cancel returned true ends as [Cancelled] even if its function succeeds afterwards; its
// result is then released.
package task

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// Status is a snapshot of a task.
type Status struct {
	// ID identifies the task; it cannot be guessed.
	ID string
	// Name is the name of its Spec.
	Name string
	// Owner is the session that submitted it; 0 means none.
	Owner uint64
	// Label is the label of its Spec.
	Label string
	// State is its state.
	State State
	// Cancelling reports whether a running task was cancelled and its function has not returned yet.
	Cancelling bool
	// Progress is the last report of the function.
	Progress Progress
	// Seq counts the changes of state and progress. It starts at 1.
	Seq uint64
	// CreatedAt is the time of submission.
	CreatedAt time.Time
	// StartedAt is the time when its function was called; zero before.
	StartedAt time.Time
	// FinishedAt is the time when it reached a terminal state; zero before.
	FinishedAt time.Time
	// Err is an [*Error] if the task failed or was cancelled.
	Err error
	// Note is the last argument of [Task.SetNote].
	Note string
}

// Progress is the progress of a task.
type Progress struct {
	// Done is the completed amount, in a unit that the function chooses.
	Done int64
	// Total is the total amount; 0 if unknown.
	Total int64
	// Message describes the current step.
	Message string
}

// Task is one run of a function. Its methods are safe for concurrent use. A Task that the manager has dropped stays
// usable, except for its result.
type Task[V any] struct {
	m      *Manager[V]
	number uint64 // order of submission
	done   chan struct{}

	// Guarded by the manager's lock. ID, Name, Owner and Label in status never change.
	fn       func(context.Context) (V, error) // nil once it runs
	ctx      context.Context                  // nil after the end
	cancel   context.CancelCauseFunc          // nil after the end
	ended    func(error)                      // nil after the end, or if nothing is called
	status   Status
	cause    error         // of the cancellation
	at       *list.Element // in Manager.pending or Manager.finished
	dropped  bool
	result   V
	held     bool          // result is set
	cost     int64         // of result, included in Manager.bytes until the result is released
	released bool          // the result can no longer be fetched
	slot     bool          // has a worker
	parks    int           // number of its goroutines in Blocking
	coming   *resume[V]    // in Manager.resuming
	changed  chan struct{} // closed by the next change; nil without watchers

	waiting []worker // workers that wait for its end; guarded by works
}

// ID returns the task's id.
func (t *Task[V]) ID() string { return t.status.ID }

// Status returns a snapshot.
func (t *Task[V]) Status() Status {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.status
}

// SetNote sets a note about the task, such as the place of its result. It does not notify watchers.
func (t *Task[V]) SetNote(note string) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	t.status.Note = note
}

// Done returns a channel that is closed when the task is in a terminal state.
func (t *Task[V]) Done() <-chan struct{} { return t.done }

// Err returns nil if the task succeeded, an [*Error] if it failed or was cancelled, and an error that wraps
// [ErrNotFinished] before its end.
func (t *Task[V]) Err() error {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.errLocked()
}

func (t *Task[V]) errLocked() error {
	if !t.status.State.Terminal() {
		return fmt.Errorf("%w: the status of %q (%s) is %s", ErrNotFinished, t.status.Name, t.status.ID, t.status.State)
	}
	return t.status.Err
}

// Wait returns the result of [Task.Err] when the task is in a terminal state, or the cause of ctx if that ends first.
// It occupies no worker, even if ctx belongs to another task. A task that would wait for itself, directly or through
// others, gets [ErrSelf]; the wait that closes the cycle is refused.
func (t *Task[V]) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.Err()
	default:
	}
	leave, err := t.join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return Blocking(ctx, func() error {
		select {
		case <-t.done:
			return t.Err()
		case <-ctx.Done():
			return ended.Cause(ctx)
		}
	})
}

// join records that the task or work of ctx waits for the end of t until leave is called. It refuses one that t waits
// for.
func (t *Task[V]) join(ctx context.Context) (leave func(), err error) {
	w := workerOf(ctx)
	if w == nil {
		return func() {}, nil
	}
	works.Lock()
	defer works.Unlock()
	if err := refuseCycle(w, t); err != nil {
		return nil, fmt.Errorf("wait for %q (%s): %w", t.status.Name, t.status.ID, err)
	}
	t.waiting = append(t.waiting, w)
	return func() {
		works.Lock()
		defer works.Unlock()
		i := slices.Index(t.waiting, w)
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}, nil
}

// Result returns the result of a task that succeeded. The manager still owns it: it may be released at any time unless
// the result itself counts references. Result returns the errors of [Task.Err], [ErrNotFound] if the task is no longer
// kept, and [ErrDiscarded] if its result is not.
func (t *Task[V]) Result() (V, error) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	err := t.errLocked()
	switch {
	case err != nil:
	case t.dropped:
		err = fmt.Errorf("result of %q (%s): %w: it is no longer kept", t.status.Name, t.status.ID, ErrNotFound)
	case t.released:
		err = fmt.Errorf("result of %q (%s): %w", t.status.Name, t.status.ID, ErrDiscarded)
	}
	if err != nil {
		var none V
		return none, err
	}
	return t.result, nil
}

// releaseLocked releases the result, which can no longer be fetched.
func (t *Task[V]) releaseLocked() {
	if !t.held || t.released {
		return
	}
	t.m.bytes -= t.cost
	t.m.garbage = append(t.m.garbage, t.result)
	var none V
	t.result, t.held, t.released = none, false, true
}

// Cancel ends an unfinished task and reports whether it was unfinished. A pending task is cancelled at once. The
// context of a running one ends with the cause; the task is [Cancelled] when its function has returned, whatever it
// returned. A nil cause means [ErrCancelled]; the first cause is kept.
func (t *Task[V]) Cancel(cause error) bool {
	t.m.mu.Lock()
	defer t.m.unlock()
	could := t.cancelLocked(cause)
	t.m.dispatchLocked()
	return could
}

func (t *Task[V]) cancelLocked(cause error) bool {
	if t.status.State.Terminal() {
		return false
	}
	if t.cause != nil {
		return true
	}
	if cause == nil {
		cause = ErrCancelled
	}
	t.cause = cause
	if t.status.State == Pending {
		t.m.pending.Remove(t.at)
		t.m.settleLocked(t, Cancelled, cause)
		return true
	}
	t.status.Cancelling = true
	t.cancel(cause)
	t.m.noteLocked(t)
	return true
}

// Discard drops the result of a finished task early. The task's outcome stays known. An unfinished task is
// [ErrNotFinished]; a second Discard returns nil.
func (t *Task[V]) Discard() error {
	t.m.mu.Lock()
	defer t.m.unlock()
	if !t.status.State.Terminal() {
		return t.errLocked()
	}
	t.releaseLocked()
	return nil
}
