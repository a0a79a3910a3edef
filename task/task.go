package task

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"time"
)

// Status is a task at one moment. It is a copy.
type Status struct {
	// ID names the task; it cannot be guessed.
	ID string
	// Name is the name it was submitted with.
	Name string
	// Owner is the session that submitted it; 0 means nobody's.
	Owner uint64
	// State is where it stands.
	State State
	// Cancelling tells that a running task was cancelled and its function has not returned yet.
	Cancelling bool
	// Progress is what the function reported last.
	Progress Progress
	// Seq counts the changes of the task: of its state and of its progress. It starts at 1.
	Seq uint64
	// CreatedAt is when it was submitted.
	CreatedAt time.Time
	// StartedAt is when its function was called; zero if it was not.
	StartedAt time.Time
	// FinishedAt is when it came to a terminal state; zero if it has not.
	FinishedAt time.Time
	// Err is an [*Error] if the task failed or was cancelled.
	Err error
	// Note is what [Task.SetNote] said last.
	Note string
}

// Progress is how far a task is.
type Progress struct {
	// Done is how much is done, in whatever unit the function counts.
	Done int64
	// Total is how much there is to do; 0 if it is not known.
	Total int64
	// Message says in words what goes on.
	Message string
}

// Task is one run of a function. Its methods are safe for concurrent use. A Task stays usable when the manager has
// dropped it, but for its result.
type Task[V any] struct {
	m       *Manager[V]
	number  uint64 // in the order of submission
	timeout time.Duration
	done    chan struct{}

	// Guarded by the manager's lock. ID, Name and Owner in status never change.
	fn       func(context.Context) (V, error) // until it runs
	ctx      context.Context                  // until the end
	cancel   context.CancelCauseFunc          // until the end
	status   Status
	cause    error         // of the cancellation
	at       *list.Element // in Manager.pending or Manager.finished
	dropped  bool
	result   V
	held     bool          // result is there
	cost     int64         // of result, in Manager.bytes until the result is released
	released bool          // nobody can fetch the result any more
	pins     int           // fetches that look at result
	slot     bool          // has a worker
	parks    int           // goroutines of the task in Blocking
	coming   *resume[V]    // in Manager.resuming
	changed  chan struct{} // closed by the next change, if anybody watches

	waiting []worker // that wait for its end; guarded by works
}

// ID returns the task's id.
func (t *Task[V]) ID() string { return t.status.ID }

// Status describes the task.
func (t *Task[V]) Status() Status {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.status
}

// SetNote keeps a word about the task with it, such as where its result has gone. It is no change of the task: watchers
// are not told.
func (t *Task[V]) SetNote(note string) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	t.status.Note = note
}

// Done returns a channel that is closed when the task is in a terminal state.
func (t *Task[V]) Done() <-chan struct{} { return t.done }

// Err is nil if the task succeeded, an [*Error] if it failed or was cancelled, and wraps [ErrNotFinished] before its
// end.
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

// Wait returns when the task is in a terminal state, with what [Task.Err] says then, or with the cause of ctx when that
// ends first. It occupies no worker, also if ctx is that of another task. A task that waits for itself gets [ErrSelf],
// also where it does so through others: whichever closes the circle is refused.
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
			return context.Cause(ctx)
		}
	})
}

// join notes that the task or work of ctx waits for the end of t, until it calls leave. It refuses one that t waits for
// itself.
func (t *Task[V]) join(ctx context.Context) (leave func(), err error) {
	w := workerOf(ctx)
	if w == nil {
		return func() {}, nil
	}
	works.Lock()
	defer works.Unlock()
	if w.has(t) {
		return nil, fmt.Errorf("wait for %q (%s): %w", t.status.Name, t.status.ID, ErrSelf)
	}
	t.waiting = append(t.waiting, w)
	return func() {
		works.Lock()
		defer works.Unlock()
		i := slices.Index(t.waiting, w)
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}, nil
}

// Result returns the result of a task that succeeded: a reference of the caller's own where [Options.Share] makes one,
// as often as it is called. Errors are those of [Task.Err], those of Share, [ErrNotFound] when the task is not kept
// any more, and [ErrDiscarded] when its result is not.
func (t *Task[V]) Result() (V, error) {
	var none V
	m := t.m
	m.mu.Lock()
	err := t.errLocked()
	switch {
	case err != nil:
	case t.dropped:
		err = fmt.Errorf("result of %q (%s): %w: it is no longer kept", t.status.Name, t.status.ID, ErrNotFound)
	case t.released:
		err = fmt.Errorf("result of %q (%s): %w", t.status.Name, t.status.ID, ErrDiscarded)
	}
	if err != nil {
		m.mu.Unlock()
		return none, err
	}
	v := t.result
	t.pins++
	m.mu.Unlock()
	defer t.unpin()
	if m.opts.Share == nil {
		return v, nil
	}
	return m.opts.Share(v)
}

// unpin ends a fetch.
func (t *Task[V]) unpin() {
	t.m.mu.Lock()
	defer t.m.unlock()
	t.pins--
	t.discardLocked()
}

// releaseLocked releases the result, which cannot be fetched any more.
func (t *Task[V]) releaseLocked() {
	if t.held && !t.released {
		t.released = true
		t.m.bytes -= t.cost
		t.discardLocked()
	}
}

// discardLocked releases the result if nobody can or does look at it.
func (t *Task[V]) discardLocked() {
	if !t.held || !t.released || t.pins > 0 {
		return
	}
	t.m.garbage = append(t.m.garbage, t.result)
	var none V
	t.result, t.held = none, false
}

// Cancel ends a task that has not finished, and reports whether it could: a finished task stays as it is. A pending
// task is cancelled at once. The context of a running one ends with the cause; the task is [Cancelled] when its
// function has returned, whatever it returned. A nil cause means [ErrCancelled]; the first cause is kept.
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

// Discard gives the result of a finished task up before its time. What became of the task stays known. One that has not
// finished is [ErrNotFinished]; discarding twice is nil.
func (t *Task[V]) Discard() error {
	t.m.mu.Lock()
	defer t.m.unlock()
	if !t.status.State.Terminal() {
		return t.errLocked()
	}
	t.releaseLocked()
	return nil
}

// Forget drops a finished task before its time. One that has not finished is [ErrNotFinished]; forgetting twice is nil.
func (t *Task[V]) Forget() error {
	t.m.mu.Lock()
	defer t.m.unlock()
	if !t.status.State.Terminal() {
		return t.errLocked()
	}
	t.m.dropLocked(t)
	return nil
}
