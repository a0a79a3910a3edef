// Package reaper releases resources that became unreachable without Close. The runtime runs all cleanups of a process
// on shared goroutines. A release that waits for a device, or for the kernel to unmap many pages, must not run there.
package reaper

import "sync/atomic"

// Queue runs functions in order on a goroutine that exists only while there are some. The zero value is ready for use.
type Queue struct {
	added   atomic.Pointer[entry] // newest first
	running atomic.Bool
}

type entry struct {
	f    func()
	next *entry
}

// Add queues f and returns at once. A cleanup may call it, because it takes no lock.
func (q *Queue) Add(f func()) {
	e := &entry{f: f}
	for {
		e.next = q.added.Load()
		if q.added.CompareAndSwap(e.next, e) {
			break
		}
	}
	if q.running.CompareAndSwap(false, true) {
		go q.run()
	}
}

func (q *Queue) run() {
	for {
		for e := reversed(q.added.Swap(nil)); e != nil; e = e.next {
			e.f()
		}
		q.running.Store(false)
		// An Add that saw the goroutine running depends on this check.
		if q.added.Load() == nil || !q.running.CompareAndSwap(false, true) {
			return
		}
	}
}

func reversed(e *entry) *entry {
	var first *entry
	for e != nil {
		next := e.next
		e.next = first
		first, e = e, next
	}
	return first
}
