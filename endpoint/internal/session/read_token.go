package session

import (
	"sync/atomic"
	"time"
)

// Running a request of a few microseconds in another goroutine multiplies its cost: it wakes another processor, which
// then competes with the reader. Therefore the reader runs such requests inline. If a request runs too long, another
// goroutine takes over the read loop and the request continues on its own goroutine. Frames behind the request, including
// its cancellation, wait at most twice overdueAfter.

// overdueAfter is the interval of the timer that checks inline requests. The timer is stopped while there are none.
const overdueAfter = 2 * time.Millisecond

// readToken identifies the goroutine that owns a session's read loop.
type readToken struct {
	ses *Session

	// call is the number of the inline request that the reader is running, or 0 while it reads. The goroutine that swaps the
	// number for 0 becomes the reader.
	call atomic.Uint64
	last uint64 // last number used; owned by the reader

	watched atomic.Bool // timer is set, or its function is running
	timer   *time.Timer // created by the first call
	seen    uint64      // call that was running at the last tick; owned by the timer's function
}

// begin records that the reader runs a call, and returns the call's number.
func (t *readToken) begin() uint64 {
	t.last++
	n := t.last
	// From now on another goroutine may become the reader and begin a call. begin writes call and then reads watched;
	// overdue writes watched and then reads call. One must see the other's write, and with the race detector Store does
	// not guarantee that.
	t.call.Swap(n)
	if t.watched.Load() || !t.watched.CompareAndSwap(false, true) {
		return n
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(time.Hour, t.overdue)
	}
	t.timer.Reset(overdueAfter)
	return n
}

// handOff starts another reader if the current one is running a call.
func (t *readToken) handOff() {
	if n := t.call.Load(); n != 0 && t.call.CompareAndSwap(n, 0) {
		go t.ses.read()
	}
}

// end records the end of call n. It reports whether the goroutine is still the reader.
func (t *readToken) end(n uint64) bool { return t.call.CompareAndSwap(n, 0) }

// overdue is the timer's function. If the reader has been running the same call since the last tick, overdue takes over
// the read loop.
func (t *readToken) overdue() {
	n := t.call.Load()
	if n != 0 && n != t.seen {
		t.seen = n
		t.timer.Reset(overdueAfter)
		return
	}
	taken := n != 0 && t.call.CompareAndSwap(n, 0)
	t.watched.Swap(false)
	if taken {
		t.ses.read()
		return
	}
	// A call that began before watched became false is not watched yet.
	if t.call.Load() != 0 && t.watched.CompareAndSwap(false, true) {
		t.timer.Reset(overdueAfter)
	}
}
