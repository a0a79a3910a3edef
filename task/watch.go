package task

import (
	"context"
	"strings"
)

// MaxMessageBytes is the longest message of a progress report; a longer one is cut.
const MaxMessageBytes = 1024

// Report says how far the task is that ctx belongs to: done of total units, 0 if the total is not known, and a message
// in words. Without a task it does nothing. Reports are cheap and replace each other; watchers see the newest.
func Report(ctx context.Context, done, total int64, message string) {
	w := workerOf(ctx)
	if w == nil {
		return
	}
	if len(message) > MaxMessageBytes {
		message = strings.Clone(message[:MaxMessageBytes]) // a part of a text would keep all of it in memory
	}
	var left leftover
	works.Lock()
	w.report(Progress{Done: done, Total: total, Message: strings.ToValidUTF8(message, "")}, &left)
	works.Unlock()
	left.do()
}

// report notes progress. A goroutine that the task left behind reports in vain.
func (t *Task[V]) report(p Progress, left *leftover) {
	t.m.mu.Lock()
	defer t.m.unlockTo(left)
	if t.status.State == Running {
		t.status.Progress = p
		t.m.noteLocked(t)
	}
}

// Watch returns the status of the task as soon as its Seq is above after: at once for 0, and at once if the task is in
// a terminal state, for then nothing more will change. Calling it again with the Seq it returned follows the task,
// skipping what changed in between. When ctx ends first it returns the cause. It occupies no worker.
func (t *Task[V]) Watch(ctx context.Context, after uint64) (Status, error) {
	for {
		status, changed := t.look(after)
		if changed == nil {
			return status, nil
		}
		err := Blocking(ctx, func() error {
			select {
			case <-changed:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			return Status{}, err
		}
	}
}

// look returns the status, and what to wait for if it is not news.
func (t *Task[V]) look(after uint64) (Status, <-chan struct{}) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.status.Seq > after || t.status.State.Terminal() {
		return t.status, nil
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.status, t.changed
}

// noteLocked counts a change of t and tells its watchers.
func (m *Manager[V]) noteLocked(t *Task[V]) {
	t.status.Seq++
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	for s := range m.subs {
		s.noteLocked(t)
	}
}

// Subscription collects what happens to tasks, until somebody looks: every change of state, and of the progress in
// between the newest. What it holds is bounded by the manager's capacity. Its methods are safe for concurrent use.
type Subscription[V any] struct {
	m      *Manager[V]
	filter Filter
	wake   func()

	// Guarded by the manager's lock.
	changes []Status
	latest  map[string]int // where in changes the newest of a task is
	lost    bool           // some changes
	awake   bool           // wake was called and Next was not
}

// Subscribe collects changes of the tasks that the filter selects by id, name and owner; its states are not looked at,
// for leaving a state is news too. wake, if not nil, is called when there are changes and is not called again until
// [Subscription.Next] has been: without locks, on the goroutine that made the change, so it must return at once. Two
// calls may overlap, and one may come late, after Next or Close.
//
// Only changes from now on are collected. Subscribe first and list afterwards: then nothing falls between the two. The
// caller owns the subscription and closes it.
func (m *Manager[V]) Subscribe(filter Filter, wake func()) *Subscription[V] {
	s := &Subscription[V]{m: m, filter: filter, wake: wake, latest: make(map[string]int)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subs[s] = struct{}{}
	return s
}

// Next returns what has happened since it was last called, in the order in which it did: the tasks as they were after
// each change of state, with their newest progress in that state; also those that the manager has dropped meanwhile. It
// never blocks. complete is false when there was so much that some of it was lost: then [Manager.List] tells what there
// is.
func (s *Subscription[V]) Next() (changes []Status, complete bool) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	changes, complete = s.changes, !s.lost
	s.lost, s.awake = false, false
	s.clearLocked()
	return changes, complete
}

func (s *Subscription[V]) clearLocked() {
	s.changes = nil
	clear(s.latest)
}

// Close ends the subscription. A second Close does nothing.
func (s *Subscription[V]) Close() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	delete(s.m.subs, s)
	s.clearLocked()
}

// noteLocked notes a change of t, if it is wanted.
func (s *Subscription[V]) noteLocked(t *Task[V]) {
	if !s.filter.match(&t.status) {
		return
	}
	now := t.status
	at, known := s.latest[now.ID]
	if known && s.changes[at].State == now.State && s.changes[at].Cancelling == now.Cancelling {
		s.changes[at] = now
	} else {
		if len(s.changes) >= s.m.opts.Capacity {
			s.clearLocked()
			s.lost = true
		}
		s.latest[now.ID] = len(s.changes)
		s.changes = append(s.changes, now)
	}
	if !s.awake && s.wake != nil {
		s.awake = true
		s.m.wakes = append(s.m.wakes, s.wake)
	}
}
