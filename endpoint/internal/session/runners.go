package session

import (
	"sync"
	"time"
)

// runners are goroutines that run requests beside the readers of sessions. One that has run a request waits a while for
// the next one, of whatever session: a new goroutine grows its stack anew, which takes longer than a small call.
type runners struct {
	mu     sync.Mutex
	idle   []chan runnable // of those that wait, the one that has waited for the shortest time last
	least  int             // how many there were at least since the timer fired last
	timer  *time.Timer     // made with the first that waits
	armed  bool
	closed bool
}

// runnable is what a runner runs: a request.
type runnable interface{ apart() }

const (
	// idleRunners is how many wait at most.
	idleRunners = 64
	// runnerTime is how often those end that were not needed since the last time.
	runnerTime = 100 * time.Millisecond
)

// run runs a request in a goroutine of its own.
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
	r.least = min(r.least, last)
	r.mu.Unlock()
	next <- w // has room
}

// loop is a runner.
func (r *runners) loop(w runnable) {
	next := make(chan runnable, 1)
	for w != nil {
		w.apart()
		if !r.wait(next) {
			return
		}
		w = <-next
	}
}

// wait has the next request sent to next, or nil for the end. It is false where enough others wait.
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
	r.armed, r.least = true, 0
	return true
}

// trim ends the runners that have waited since it was called last.
func (r *runners) trim() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(r.least)
	r.least = len(r.idle)
	if r.armed = r.least > 0; r.armed {
		r.timer.Reset(runnerTime)
	}
}

// endLocked ends those n that have waited longest.
func (r *runners) endLocked(n int) {
	for _, next := range r.idle[:n] {
		next <- nil // has room
	}
	r.idle = append(r.idle[:0], r.idle[n:]...)
	clear(r.idle[len(r.idle):cap(r.idle)])
	r.least = min(r.least, len(r.idle)) // the timer may have fired already
}

// close ends those that wait, and the others when they have run their requests. Nothing is run any more.
func (r *runners) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.endLocked(len(r.idle))
	if r.timer != nil {
		r.timer.Stop()
	}
}
