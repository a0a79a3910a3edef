package session

import (
	"sync"
	"time"
)

// runners is a pool of goroutines that execute requests of all sessions. Reusing a goroutine avoids growing a new
// stack, which costs more than a small call: BenchmarkRunners compares both.
type runners struct {
	mu      sync.Mutex
	idle    []chan runnable // idle runners, most recently used last
	minIdle int             // minimum of len(idle) since the last trim
	timer   *time.Timer     // created with the first idle runner
	armed   bool
	closed  bool
}

// runnable is a unit of work for a runner: a request.
type runnable interface{ runAsync() }

const (
	// idleRunners is the maximum number of idle runners.
	idleRunners = 64
	// runnerTime is the interval at which unused runners are ended.
	runnerTime = 100 * time.Millisecond
)

// run executes w in a runner.
func (r *runners) run(w runnable) {
	r.mu.Lock()
	last := len(r.idle) - 1
	if last < 0 {
		r.mu.Unlock()
		go r.loop(w)
		return
	}
	next := r.idle[last]
	r.idle = r.idle[:last]
	r.minIdle = min(r.minIdle, last)
	r.mu.Unlock()
	next <- w // never blocks: the channel is empty
}

// loop is the body of a runner.
func (r *runners) loop(w runnable) {
	next := make(chan runnable, 1)
	for w != nil {
		w.runAsync()
		if !r.wait(next) {
			return
		}
		w = <-next
	}
}

// wait puts a runner on the idle list. The runner then receives its next request from next, or nil if it shall end.
// wait returns false if the pool is full or closed.
func (r *runners) wait(next chan runnable) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.idle) == idleRunners {
		return false
	}
	r.idle = append(r.idle, next)
	switch {
	case r.armed:
		return true
	case r.timer == nil:
		r.timer = time.AfterFunc(runnerTime, r.trim)
	default:
		r.timer.Reset(runnerTime)
	}
	r.armed, r.minIdle = true, 0
	return true
}

// trim ends the runners that were idle since the last trim.
func (r *runners) trim() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(r.minIdle)
	r.minIdle = len(r.idle)
	if r.armed = r.minIdle > 0; r.armed {
		r.timer.Reset(runnerTime)
	}
}

// endLocked ends the n least recently used runners.
func (r *runners) endLocked(n int) {
	for _, next := range r.idle[:n] {
		next <- nil // never blocks: the channel is empty
	}
	r.idle = append(r.idle[:0], r.idle[n:]...)
	clear(r.idle[len(r.idle):cap(r.idle)])
	r.minIdle = min(r.minIdle, len(r.idle)) // the timer may have fired already
}

// close ends the idle runners now and the others when their requests complete. run must not be called afterwards.
func (r *runners) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.endLocked(len(r.idle))
	if r.timer != nil {
		r.timer.Stop()
	}
}
