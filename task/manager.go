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
)

// Defaults of [Options].
const (
	// DefaultWorkers is how many tasks run at once.
	DefaultWorkers = 4
	// DefaultCapacity is how many tasks a manager knows.
	DefaultCapacity = 1000
	// DefaultTTL is how long a finished task is kept.
	DefaultTTL = time.Hour
)

// Options say how many tasks a manager runs and what it keeps of them. The zero value takes the defaults.
type Options[V any] struct {
	// Workers bounds the number of tasks that run at once, not counting those that wait in [Blocking] or for a task;
	// 0 means [DefaultWorkers].
	Workers int
	// Capacity bounds the number of tasks, those that are finished and kept included; 0 means [DefaultCapacity]. A new
	// task takes the place of one whose result was given up, else of the one that finished first; if none has finished
	// it is refused.
	Capacity int
	// Retain bounds the number of finished tasks that are kept; 0 means as many as the capacity allows, and a negative
	// number none: nobody can fetch a result then.
	Retain int
	// Bytes bounds the sum of the costs of the results that are kept; 0 means no bound. The results of the tasks that
	// finished first go first; the tasks stay known. A result that costs more than this is not kept.
	Bytes int64
	// Cost is the size of a result in bytes; nil means that results cost nothing. It is called once a result, without
	// locks. A panic in it fails the task.
	Cost func(V) int64
	// TTL is how long a finished task is kept; 0 means [DefaultTTL] and a negative one for ever. A timer drops it.
	TTL time.Duration
	// Share makes a reference to a result for each that fetches it; it borrows the result. nil hands out the result
	// itself. It is called without locks, and the result is not released meanwhile.
	Share func(V) (V, error)
	// Release, if not nil, takes each result that is not kept any more, exactly once, without locks, on the goroutine
	// that dropped the task: one that called the manager, the timer's, or that of a task that has just finished.
	Release func(V)
}

// Spec says what a task is.
type Spec struct {
	// Name is for people and for filters; it need not be unique.
	Name string
	// Owner is the session that submitted the task; 0 means nobody's.
	Owner uint64
	// Limit, if above 0, is how many tasks of the owner may be unfinished, this one included.
	Limit int
	// Timeout ends the context of the function so long after it started; 0 means never.
	Timeout time.Duration
}

// Filter selects tasks. The zero value selects all.
type Filter struct {
	// States, if there are any, selects tasks in one of them.
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
	pending   *list.List     // tasks that wait for a worker, the first that came in front
	resuming  []*resume[V]
	finished  *list.List // tasks that are kept, the first that finished in front
	bytes     int64      // costs of the results that are kept
	busy      int        // workers that are taken
	active    int        // goroutines that run tasks
	quiet     chan struct{}
	timer     *time.Timer
	subs      map[*Subscription[V]]struct{}
	stats     Stats

	// What the critical section leaves to do for unlock.
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

// unlock ends a critical section and does what it left to do: results are released and watchers woken without the lock.
func (m *Manager[V]) unlock() {
	var left leftover
	m.unlockTo(&left)
	left.do()
}

// unlockTo is unlock where another lock is still held: it adds to left what is to be done when that is not.
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

// Submit starts fn as a task as soon as a worker is free. fn gets a context with the values of ctx that ends when the
// task is cancelled or its timeout is over; the deadline and the cancellation of ctx mean nothing to it. The manager
// takes the result of fn; of an fn that returns an error it takes nothing.
//
// Errors are [ErrCapacity], also where the owner has as many tasks as it may have, [ErrShutdown], and the cause of ctx
// if that has ended already.
func (m *Manager[V]) Submit(ctx context.Context, spec Spec, fn func(context.Context) (V, error)) (*Task[V], error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("submit task %q: %w", spec.Name, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.unlock()
	if m.closing {
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
	t := &Task[V]{m: m, fn: fn, number: m.submitted, done: make(chan struct{})}
	t.status = Status{ID: newID(), Name: spec.Name, Owner: spec.Owner, State: Pending, CreatedAt: time.Now()}
	t.timeout = spec.Timeout
	t.ctx, t.cancel = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), workerKey{}, worker(t)))
	m.submitted++
	m.tasks[t.status.ID] = t
	t.at = m.pending.PushBack(t)
	m.noteLocked(t)
	m.dispatchLocked()
	return t, nil
}

// newID returns 128 random bits in hexadecimal digits: ids are not to be guessed by other clients.
func newID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Get returns the task with that id. One that does not exist or is not kept any more is [ErrNotFound].
func (m *Manager[V]) Get(id string) (*Task[V], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[id]
	if t == nil {
		return nil, fmt.Errorf("task %q: %w", id, ErrNotFound)
	}
	return t, nil
}

// List describes the tasks that the filter selects, in the order in which they were submitted.
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

// match looks at everything but the state.
func (f Filter) match(s *Status) bool {
	return (f.Name == "" || f.Name == s.Name) && (f.Owner == 0 || f.Owner == s.Owner) && (f.ID == "" || f.ID == s.ID)
}

// statuses describes tasks in the order in which they were submitted.
func statuses[V any](tasks []*Task[V]) []Status {
	slices.SortFunc(tasks, func(a, b *Task[V]) int { return cmp.Compare(a.number, b.number) })
	all := make([]Status, len(tasks))
	for i, t := range tasks {
		all[i] = t.status
	}
	return all
}

// Stats count tasks.
type Stats struct {
	// Submitted is the number of tasks that were accepted so far.
	Submitted uint64
	// Succeeded is the number of tasks that succeeded so far.
	Succeeded uint64
	// Failed is the number of tasks that failed so far.
	Failed uint64
	// Cancelled is the number of tasks that were cancelled so far.
	Cancelled uint64
	// Expired is the number of finished tasks that their age dropped so far.
	Expired uint64

	// Pending is the number of tasks that wait for a worker.
	Pending int
	// Running is the number of tasks whose function runs, those that wait for something included.
	Running int
	// Kept is the number of finished tasks that are kept.
	Kept int
	// Bytes is the sum of the costs of their results.
	Bytes int64
	// Busy is the number of workers that are taken.
	Busy int
}

// Stats counts the tasks at one moment.
func (m *Manager[V]) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Submitted = m.submitted
	s.Pending, s.Kept, s.Bytes, s.Busy = m.pending.Len(), m.finished.Len(), m.bytes, m.busy
	s.Running = len(m.tasks) - s.Pending - s.Kept
	return s
}
