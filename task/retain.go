package task

import (
	"context"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// keepLocked keeps a finished task according to the options, and drops tasks over the limits.
func (m *Manager[V]) keepLocked(t *Task[V]) {
	t.at = m.finished.PushBack(t)
	limit := max(0, m.opts.Retain)
	if m.dead {
		limit = 0
	}
	for m.finished.Len() > limit {
		m.dropLocked(m.finished.Front().Value.(*Task[V]))
	}
	for at := m.finished.Front(); at != nil && m.opts.Bytes > 0 && m.bytes > m.opts.Bytes; at = at.Next() {
		at.Value.(*Task[V]).releaseLocked()
	}
	m.armLocked()
}

// leastLocked returns the finished task to drop first: one whose result was discarded, otherwise the one that finished
// first.
func (m *Manager[V]) leastLocked() *Task[V] {
	for at := m.finished.Front(); at != nil; at = at.Next() {
		if t := at.Value.(*Task[V]); t.released {
			return t
		}
	}
	return m.finished.Front().Value.(*Task[V])
}

// dropLocked removes a finished task.
func (m *Manager[V]) dropLocked(t *Task[V]) {
	if t.dropped {
		return
	}
	t.dropped = true
	delete(m.tasks, t.status.ID)
	m.finished.Remove(t.at)
	t.at = nil
	t.releaseLocked()
}

// armLocked sets the timer for the task that finished first, if it is not set. The TTL is the same for all tasks, so
// that one expires first. A timer that fires for a removed task is set again for the next.
func (m *Manager[V]) armLocked() {
	first := m.finished.Front()
	if m.opts.TTL < 0 || m.timer != nil || first == nil {
		return
	}
	m.timer = time.AfterFunc(time.Until(m.expiryOf(first.Value.(*Task[V]))), m.expire)
}

// expiryOf returns the time when a finished task expires.
func (m *Manager[V]) expiryOf(t *Task[V]) time.Time { return t.status.FinishedAt.Add(m.opts.TTL) }

// expire drops expired tasks. It runs on the timer's goroutine.
func (m *Manager[V]) expire() {
	m.mu.Lock()
	defer m.unlock()
	now := time.Now()
	for first := m.finished.Front(); first != nil; first = m.finished.Front() {
		t := first.Value.(*Task[V])
		if now.Before(m.expiryOf(t)) {
			break
		}
		m.dropLocked(t)
		m.stats.Expired++
	}
	m.timer = nil
	m.armLocked()
}

// Shutdown refuses new tasks, except those that running tasks submit. It waits until all tasks have finished, including
// pending ones, and then drops them. If ctx ends first, it cancels the rest with the cause [ErrShutdown] and returns the
// cause of ctx without waiting for functions that do not return; their results are released when they do. A second
// Shutdown waits for those.
//
// Results can be fetched until Shutdown returns.
func (m *Manager[V]) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	m.closing = true
	m.signalIdleLocked()
	m.mu.Unlock()

	select {
	case <-m.quiet:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.unlock()
	m.dead = true
	m.cancelAllLocked(ErrShutdown)
	for m.finished.Len() > 0 {
		m.dropLocked(m.finished.Front().Value.(*Task[V]))
	}
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
	if m.active > 0 {
		return fmt.Errorf("shut down tasks: %d still running: %w", m.active, ended.Cause(ctx))
	}
	return nil
}

// signalIdleLocked signals Shutdown when the last task has ended.
func (m *Manager[V]) signalIdleLocked() {
	if !m.closing || m.active > 0 || m.pending.Len() > 0 {
		return
	}
	select {
	case <-m.quiet:
	default:
		close(m.quiet)
	}
}
