package wire

import (
	"context"
	"sync"
	"time"
)

// interrupt ends reads of a connection when a context ends. Registering with a context costs several allocations, and a
// caller often makes many calls with one context, so the registration is kept between reads.
type interrupt struct {
	conn *Conn
	done <-chan struct{} // of the context
	stop func() bool

	mu      sync.Mutex
	reading bool // a goroutine reads for a caller with this context
	set     bool // the read deadline was set because the context ended
}

// newInterrupt registers with ctx, which must be cancellable. The caller calls stop when it is no longer needed.
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
		_ = i.conn.SetReadDeadline(time.Unix(1, 0)) // a time in the past; a closed connection also ends the read
	}
}

// begin allows interrupts. A read that begins after the context has ended is not interrupted, so the caller checks the
// context first.
func (i *interrupt) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reading = true
}

// end disallows interrupts and removes the deadline. A nil interrupt does nothing.
func (i *interrupt) end() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reading = false
	if i.set {
		i.set = false
		_ = i.conn.SetReadDeadline(time.Time{}) // on a closed connection the next read fails
	}
}
