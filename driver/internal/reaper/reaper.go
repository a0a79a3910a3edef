// Package reaper gives back what the garbage collector found without an owner. The runtime runs all cleanups of a
// process on goroutines that it shares among them; what may wait for a device, or for the kernel to take many pages
// away, must not run there.
package reaper

import "sync"

// Queue runs functions one after the other on a goroutine of its own, which is there only while there are some. The
// zero value is ready.
type Queue struct {
	mu      sync.Mutex
	todo    []func()
	running bool
}

// Add queues f and returns at once. It may be called from a cleanup.
func (q *Queue) Add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.todo = append(q.todo, f)
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *Queue) run() {
	for {
		q.mu.Lock()
		if len(q.todo) == 0 {
			q.running, q.todo = false, nil
			q.mu.Unlock()
			return
		}
		f := q.todo[0]
		q.todo[0], q.todo = nil, q.todo[1:]
		q.mu.Unlock()
		f()
	}
}
