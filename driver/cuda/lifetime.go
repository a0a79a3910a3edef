package cuda

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
)

// lifetime records the uses of an object, and so decides when it can be released. It counts the calls in flight, and
// records the last use in each stream. A use never blocks, which rules out deadlocks between calls and Closes.
type lifetime struct {
	calls   atomic.Int64 // calls in flight, plus closing once a closer is waiting or the object is released
	exposed atomic.Bool  // an address or a handle was returned, and its users are not recorded
	wide    bool         // the address is also known outside of this package; set before the object is returned
	pending atomic.Int32 // postponed releases of objects that were made from this one

	mu      sync.Mutex
	changed sync.Cond
	closer  bool // a closer is between begin and end or retry
	ended   bool // the release has run or is postponed
	last    []lastUse
	reach   []*primary // contexts of other devices in which the object's address is valid
}

// closing is a bit of lifetime.calls. It changes only under the lock.
const closing = 1 << 62

// lastUse is the number of the last operation in a stream that uses an object.
type lastUse struct {
	stream *track
	number uint64
}

func newLifetime() *lifetime {
	l := &lifetime{}
	l.changed.L = &l.mu
	return l
}

// use keeps the object from being released until done. It fails with [os.ErrClosed] once closing has begun.
func (l *lifetime) use() error {
	if l.calls.Add(1) >= closing {
		l.done()
		return os.ErrClosed
	}
	return nil
}

func (l *lifetime) done() {
	if l.calls.Add(-1) == closing { // a closer may be waiting for this call
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	}
}

// begin refuses new uses and returns when no calls are in flight. It returns false if the object is released already. A
// second closer waits for the first. If begin returns true, end or retry must follow.
func (l *lifetime) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.closer {
		l.changed.Wait()
	}
	if l.ended {
		return false
	}
	l.closer = true
	if l.calls.Load() < closing {
		l.calls.Add(closing)
	}
	for l.calls.Load() > closing {
		l.changed.Wait()
	}
	return true
}

// end makes the object usable again if it was not released.
func (l *lifetime) end(released bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended, l.closer = released, false
	if !released {
		l.calls.Add(-closing)
	}
	l.changed.Broadcast()
}

// retry ends an attempt that has released a part of the object. Uses are refused, and begin can be called again.
func (l *lifetime) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closer = false
	l.changed.Broadcast()
}

// mark records a use in a stream. Entries of completed work are dropped when a stream is added.
func (l *lifetime) mark(t *track, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.last {
		if l.last[i].stream == t {
			l.last[i].number = max(l.last[i].number, number)
			return
		}
	}
	l.last = slices.DeleteFunc(l.last, func(u lastUse) bool { return u.stream.completed(u.number) })
	l.last = append(l.last, lastUse{t, number})
}

// reachedFrom records that the object's address is valid in the context of another device.
func (l *lifetime) reachedFrom(p *primary) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.reach, p) {
		l.reach = append(l.reach, p)
	}
}

func (l *lifetime) uses() ([]lastUse, []*primary) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.last), slices.Clone(l.reach)
}

// wait returns when the queued work that uses an object of p is done. It waits for each recorded stream. If the
// object's address was exposed, it waits for all streams of the contexts that can use it. If one of these streams
// captures, wait fails with [ErrCapturing] and does not disturb the capture. The thread's capture mode must be relaxed.
func (l *lifetime) wait(p *primary) error {
	if l.pending.Load() > 0 {
		return ErrCapturing
	}
	last, reach := l.uses()
	if l.exposed.Load() || l.wide {
		for _, q := range append(reach, p.peers()...) {
			if err := q.waitIfOpen(q.waitAll); err != nil {
				return err
			}
		}
		if err := p.waitIfOpen(p.waitAll); err != nil {
			return err
		}
	}
	for _, u := range last {
		if err := u.stream.wait(u.number); err != nil {
			return err
		}
	}
	return nil
}
