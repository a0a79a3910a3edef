package task

import (
	"context"
	"strings"

	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// MaxMessageBytes is the maximum length of a report's message; longer ones are cut.
const MaxMessageBytes = 1024

// Report sets the progress of the task that ctx belongs to: done of total units, where total 0 means unknown, and a
// message for display. Without a task it does nothing. Reports are cheap and replace each other; watchers see the
// newest.
func Report(ctx context.Context, done, total int64, message string) {
	w := workerOf(ctx)
	if w == nil {
		return
	}
	if len(message) > MaxMessageBytes {
		message = strings.Clone(message[:MaxMessageBytes]) // a substring would retain the whole text
	}
	var left leftover
	works.Lock()
	w.report(&Progress{Done: done, Total: total, Message: strings.ToValidUTF8(message, "")}, &left)
	works.Unlock()
	left.do()
}

// report records progress. Reports of goroutines that outlive the task are ignored.
func (t *Task[V]) report(p *Progress, left *leftover) {
	t.m.mu.Lock()
	defer t.m.unlockTo(left)
	if t.status.State == Running {
		t.status.Progress = *p
		t.m.noteLocked(t)
	}
}

// Watch returns the status of the task once its Seq is above after: at once for 0, and at once if the task is in a
// terminal state. Calling it repeatedly with the returned Seq follows the task and may skip intermediate changes. If
// ctx ends first it returns the cause. It occupies no worker.
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
				return ended.Cause(ctx)
			}
		})
		if err != nil {
			return Status{}, err
		}
	}
}

// look returns the status, and a channel to wait for if Seq is not above after.
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

// noteLocked counts a change of t and notifies its watchers.
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

// Subscription collects changes of tasks between calls of Next: every change of state, and the newest progress between
// them. Its size is limited by the manager's capacity. Its methods are safe for concurrent use.
type Subscription[V any] struct {
	m      *Manager[V]
	filter Filter
	wake   func()

	// Guarded by the manager's lock.
	changes []Status
	latest  map[string]int // index in changes of a task's newest status
	lost    bool           // changes were lost
	awake   bool           // wake was called since the last Next
}

// Subscribe collects changes of the tasks that the filter selects by id, name and owner; its states are ignored,
// because leaving a state is a change too. wake, if not nil, is called when there are changes, and not again until
// [Subscription.Next] was called. It runs without locks on the goroutine that made the change, so it must return at
// once. Two calls may overlap, and one may arrive after Next or Close.
//
// Only later changes are collected. Subscribe first and list afterwards, so that no change is missed. The caller owns
// the subscription and closes it.
func (m *Manager[V]) Subscribe(filter Filter, wake func()) *Subscription[V] {
	s := &Subscription[V]{m: m, filter: filter, wake: wake, latest: make(map[string]int)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subs[s] = struct{}{}
	return s
}

// Next returns the changes since the last call, in order: the status of a task after each change of state, with its
// newest progress in that state. It includes tasks that the manager has dropped meanwhile. It never blocks. complete is
// false if changes were lost because there were too many; then [Manager.List] returns the current tasks.
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

// noteLocked records a change of t if the filter selects it.
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
