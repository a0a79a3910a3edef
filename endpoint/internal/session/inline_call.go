package session

import (
	"sync/atomic"
	"time"
)

// A call that takes a few microseconds costs several times as much in another goroutine: starting one wakes another
// processor, which then competes with the one that reads. So the reader runs such a call itself. Recent calls of the
// endpoint say which calls are short, but not how long this one will take. A call that does not end soon loses the
// reading to another goroutine and goes on by itself. Frames behind it, the one that cancels it included, wait no
// longer than twice overdueAfter.

const (
	// inlineTime is what calls may take to be run by the reader while others wait behind them: about what it costs to
	// hand them to another goroutine.
	inlineTime = 20 * time.Microsecond
	// briefTime is what they may take if nothing waits.
	briefTime = 50 * time.Microsecond
	// overdueAfter is how often the clock looks after a call that the reader runs. It does not tick while there are no
	// such calls.
	overdueAfter = 2 * time.Millisecond
)

// brief reports whether the reader should run the call itself.
func (w *work) brief() bool {
	switch recent := w.r.Callee.RecentTime.Get(); {
	case recent <= inlineTime:
		return true
	case recent <= briefTime:
		return !w.session.conn.Buffered()
	}
	return false
}

// reading is which goroutine reads a session's frames.
type reading struct {
	ses *Session

	// call numbers the call that the reader is running; 0 while it reads. The goroutine that swaps the number for 0
	// reads from then on.
	call atomic.Uint64
	last uint64 // the number given last; the reader's

	watched atomic.Bool // timer is set, or its function runs
	timer   *time.Timer // made by the first call
	seen    uint64      // the call that the timer's function found running before; that function's
}

// begin notes that the reader runs a call, and returns its number.
func (t *reading) begin() uint64 {
	t.last++
	n := t.last
	t.call.Store(n) // from here on another goroutine may read, and begin a call
	if t.watched.Load() || !t.watched.CompareAndSwap(false, true) {
		return n
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(time.Hour, t.overdue)
	}
	t.timer.Reset(overdueAfter)
	return n
}

// handOff has another goroutine read, where the reader runs a call.
func (t *reading) handOff() {
	if n := t.call.Load(); n != 0 && t.call.CompareAndSwap(n, 0) {
		go t.ses.read()
	}
}

// end notes that a call is over, and reports whether its goroutine still reads.
func (t *reading) end(n uint64) bool { return t.call.CompareAndSwap(n, 0) }

// overdue is called by the timer in a goroutine of its own. If the reader has been running the same call since the last
// time, it reads in its place.
func (t *reading) overdue() {
	n := t.call.Load()
	if n != 0 && n != t.seen {
		t.seen = n
		t.timer.Reset(overdueAfter)
		return
	}
	taken := n != 0 && t.call.CompareAndSwap(n, 0)
	t.watched.Store(false)
	if taken {
		t.ses.read()
		return
	}
	// A call that began before watched was false is not watched yet.
	if t.call.Load() != 0 && t.watched.CompareAndSwap(false, true) {
		t.timer.Reset(overdueAfter)
	}
}
