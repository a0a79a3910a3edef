package wire

import (
	"context"
	"sync"
	"time"
)

// interrupt lets the end of a context interrupt reads of a connection. To register with a context costs several
// allocations, and callers mostly make one call after the other with the same one, so it stays registered from one read
// to the next.
type interrupt struct {
	conn *Conn
	done <-chan struct{} // of the context
	stop func() bool

	mu      sync.Mutex
	reading bool // somebody reads for a caller with that context
	set     bool // the read deadline has passed because the context ended
}

// newInterrupt registers with ctx, which can end. The caller calls stop when it is of no use any more.
func newInterrupt(ctx context.Context, c *Conn) *interrupt {
	i := &interrupt{conn: c, done: ctx.Done()}
	i.stop = context.AfterFunc(ctx, i.fire)
	return i
}

// fire is called when the context has ended.
func (i *interrupt) fire() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reading {
		i.set = true
		_ = i.conn.SetReadDeadline(time.Unix(1, 0)) // long ago; a connection that is closed ends the read too
	}
}

// begin lets reads be interrupted from now on. One that begins after the context has ended is not: the caller asks the
// context first.
func (i *interrupt) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reading = true
}

// end lets nothing be interrupted from now on, whatever was before. A nil interrupt has nothing to end.
func (i *interrupt) end() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reading = false
	if i.set {
		i.set = false
		_ = i.conn.SetReadDeadline(time.Time{}) // a connection that is closed tells the next read
	}
}
