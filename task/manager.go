package task

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// Defaults of [Options].
const (
	// DefaultWorkers is the default of Options.Workers.
	DefaultWorkers = 4
	// DefaultCapacity is the default of Options.Capacity.
	DefaultCapacity = 1000
	// DefaultTTL is the default of Options.TTL.
	DefaultTTL = time.Hour
)

// Options limit how many tasks a manager runs and keeps. The zero value uses the defaults.
type Options[V any] struct {
	// Workers limits the number of tasks that run at once, except those that wait in [Blocking] or for a task; 0 means
	// [DefaultWorkers].
	Workers int
	// Capacity limits the number of tasks, including finished ones that are kept; 0 means [DefaultCapacity]. A new task
	// replaces a finished one: first one whose result was discarded, otherwise the one that finished first. If none has
	// finished, the new task is refused.
	Capacity int
	// Retain limits the number of finished tasks that are kept; 0 means no limit besides the capacity. A negative
	// number keeps none, so results cannot be fetched.
	Retain int
	// Bytes limits the sum of the costs of kept results; 0 means no limit. The results of tasks that finished first are
	// dropped first; the tasks stay known. A result over the limit is not kept.
	Bytes int64
	// Cost returns the size of a result in bytes; nil means that results cost nothing. It is called once per result,
	// without locks. A panic in it fails the task.
	Cost func(V) int64
	// TTL limits how long a finished task is kept; 0 means [DefaultTTL], a negative value no limit. A timer drops
	// expired tasks.
	TTL time.Duration
	// Release, if not nil, receives each dropped result exactly once, without locks, on the goroutine that dropped the
	// task: a caller of the manager, the timer's, or that of a task that has just finished.
	Release func(V)
}

// Spec describes a task to submit.
type Spec struct {
	// Name is used for display and filters; it need not be unique.
	Name string
	// Owner is the session that submits the task; 0 means none.
	Owner uint64
	// Label is kept with the task; the manager does not use it.
	Label string
	// Limit, if above 0, is the maximum number of unfinished tasks of the owner, including this one.
	Limit int
	// Ended, if not nil, is called once when the task is in a terminal state, with the error of [Task.Err]. It runs without
	// locks on the goroutine that ended the task. It is not called if Submit fails, and may be called before Submit returns.
	Ended func(err error)
}

// Filter selects tasks. The zero value selects all.
type Filter struct {
	// States, if not empty, selects tasks in one of them.
	States []State
	// Name, if not empty, selects tasks of that name.
	Name string
	// Owner, if not 0, selects tasks of that session.
	Owner uint64
	// ID, if not empty, selects the task with that id.
	ID string
}

// Manager runs tasks whose results are of one type. Its methods are safe for concurrent use.
type Manager[V any] struct {
	opts Options[V]

	mu        sync.Mutex
	closing   bool // accepts no new tasks
	dead      bool // keeps no results
	tasks     map[string]*Task[V]
	submitted uint64         // tasks so far
	owners    map[uint64]int // unfinished tasks by owner
	pending   *list.List     // tasks that wait for a worker, in order of submission
	resuming  []*resume[V]
	finished  *list.List // finished tasks that are kept, in order of their end
	bytes     int64      // cost of the kept results
	busy      int        // number of occupied workers
	active    int        // number of goroutines that run tasks
	quiet     chan struct{}
	timer     *time.Timer
	subs      map[*Subscription[V]]struct{}
	stats     Stats

	// Actions of a critical section that unlock performs.
	garbage []V
	wakes   []func()
}

// New returns a manager without tasks. The caller ends it with [Manager.Shutdown].
func New[V any](opts Options[V]) *Manager[V] {
	if opts.Workers <= 0 {
		opts.Workers = DefaultWorkers
	}
	if opts.Capacity <= 0 {
		opts.Capacity = DefaultCapacity
	}
	if opts.Retain == 0 {
		opts.Retain = opts.Capacity
	}
	if opts.TTL == 0 {
		opts.TTL = DefaultTTL
	}
	return &Manager[V]{
		opts:     opts,
		tasks:    make(map[string]*Task[V]),
		owners:   make(map[uint64]int),
		pending:  list.New(),
		finished: list.New(),
		quiet:    make(chan struct{}),
		subs:     make(map[*Subscription[V]]struct{}),
	}
}

// unlock ends a critical section and performs its actions without the lock: it releases results and wakes watchers.
func (m *Manager[V]) unlock() {
	var left leftover
	m.unlockTo(&left)
	left.do()
}

// unlockTo is unlock for callers that hold another lock: it adds the actions to left.
func (m *Manager[V]) unlockTo(left *leftover) {
	garbage, wakes := m.garbage, m.wakes
	m.garbage, m.wakes = nil, nil
	m.mu.Unlock()
	*left = append(*left, wakes...)
	if m.opts.Release != nil {
		for _, v := range garbage {
			*left = append(*left, func() { m.opts.Release(v) })
		}
	}
}

// Submit runs fn as a task when a worker is free. fn gets a context with the values of ctx that ends when the task is
// cancelled; the deadline and cancellation of ctx do not apply. The manager takes ownership of the result
// of fn, unless fn returns an error.
//
// Errors are [ErrCapacity], also for an owner that has reached its limit, [ErrShutdown], and the cause of ctx if it has
// ended. While Shutdown waits for running tasks, it accepts the tasks that those submit: they may not end without them.
func (m *Manager[V]) Submit(ctx context.Context, spec Spec, fn func(context.Context) (V, error)) (*Task[V], error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("submit task %q: %w", spec.Name, ended.Cause(ctx))
	}
	m.mu.Lock()
	defer m.unlock()
	if m.closing && !m.needsLocked(ctx) {
		return nil, fmt.Errorf("submit task %q: %w", spec.Name, ErrShutdown)
	}
	if n := m.owners[spec.Owner]; spec.Limit > 0 && n >= spec.Limit {
		return nil, fmt.Errorf("submit task %q: %w: %d tasks of the same owner have not finished", spec.Name, ErrCapacity, n)
	}
	if len(m.tasks) >= m.opts.Capacity {
		if m.finished.Len() == 0 {
			return nil, fmt.Errorf("submit task %q: %w: %d tasks have not finished", spec.Name, ErrCapacity, len(m.tasks))
		}
		m.dropLocked(m.leastLocked())
	}
	m.owners[spec.Owner]++
	t := &Task[V]{m: m, fn: fn, ended: spec.Ended, number: m.submitted, done: make(chan struct{})}
	t.status = Status{ID: newID(), Name: spec.Name, Owner: spec.Owner, Label: spec.Label, State: Pending, CreatedAt: time.Now()}
	t.ctx, t.cancel = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), workerKey{}, worker(t)))
	m.submitted++
	m.tasks[t.status.ID] = t
	t.at = m.pending.PushBack(t)
	m.noteLocked(t)
	m.dispatchLocked()
	return t, nil
}

// needsLocked reports whether a task submitted with ctx is accepted during Shutdown: a task or a work submits it, and not all
// tasks have ended.
func (m *Manager[V]) needsLocked(ctx context.Context) bool {
	return workerOf(ctx) != nil && !m.dead && (m.active > 0 || m.pending.Len() > 0)
}

// newID returns 128 random bits in hexadecimal digits, so that other clients cannot guess ids.
func newID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Get returns the task with that id, or [ErrNotFound] if it does not exist or is no longer kept.
func (m *Manager[V]) Get(id string) (*Task[V], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[id]
	if t == nil {
		return nil, fmt.Errorf("task %q: %w", id, ErrNotFound)
	}
	return t, nil
}

// List returns the tasks that the filter selects, in order of submission.
func (m *Manager[V]) List(filter Filter) []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return statuses(m.selectLocked(filter))
}

func (m *Manager[V]) cancelAllLocked(cause error) {
	for _, t := range m.selectLocked(Filter{}) {
		t.cancelLocked(cause)
	}
	m.dispatchLocked()
}

// selectLocked returns the tasks that the filter selects.
func (m *Manager[V]) selectLocked(filter Filter) []*Task[V] {
	var selected []*Task[V]
	for _, t := range m.tasks {
		if filter.match(&t.status) && (len(filter.States) == 0 || slices.Contains(filter.States, t.status.State)) {
			selected = append(selected, t)
		}
	}
	return selected
}

// match compares everything except the state.
func (f Filter) match(s *Status) bool {
	return (f.Name == "" || f.Name == s.Name) && (f.Owner == 0 || f.Owner == s.Owner) && (f.ID == "" || f.ID == s.ID)
}

// statuses returns the states of tasks in order of submission.
func statuses[V any](tasks []*Task[V]) []Status {
	slices.SortFunc(tasks, func(a, b *Task[V]) int { return cmp.Compare(a.number, b.number) })
	all := make([]Status, len(tasks))
	for i, t := range tasks {
		all[i] = t.status
	}
	return all
}

// Stats holds counters of tasks.
type Stats struct {
	// Submitted counts accepted tasks.
	Submitted uint64
	// Succeeded counts tasks that succeeded.
	Succeeded uint64
	// Failed counts tasks that failed.
	Failed uint64
	// Cancelled counts tasks that were cancelled.
	Cancelled uint64
	// Expired counts finished tasks dropped by age.
	Expired uint64

	// Pending is the number of tasks that wait for a worker.
	Pending int
	// Running is the number of tasks whose function runs, including those that wait.
	Running int
	// Kept is the number of finished tasks that are kept.
	Kept int
	// Bytes is the sum of the costs of their results.
	Bytes int64
	// Busy is the number of occupied workers.
	Busy int
}

// Stats returns a snapshot.
func (m *Manager[V]) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Submitted = m.submitted
	s.Pending, s.Kept, s.Bytes, s.Busy = m.pending.Len(), m.finished.Len(), m.bytes, m.busy
	s.Running = len(m.tasks) - s.Pending - s.Kept
	return s
}

// EachResult calls visit for every kept result, in no order. The results are borrowed. The manager is locked meanwhile:
// visit must be quick and not call the manager.
func (m *Manager[V]) EachResult(visit func(id string, result V)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, t := range m.tasks {
		if t.held {
			visit(id, t.result)
		}
	}
}
