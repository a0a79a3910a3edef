package stream

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// credit is the number of bytes that a sender may send. The receiver grants more as it processes them.
type credit struct {
	mu    sync.Mutex
	bytes uint64
	err   error         // why no more credit will arrive
	more  chan struct{} // closed on each change
}

func newCredit() *credit { return &credit{more: make(chan struct{})} }

// grant adds bytes.
func (c *credit) grant(bytes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes += bytes; c.bytes < bytes { // saturate on overflow
		c.bytes = ^uint64(0)
	}
	c.wakeLocked()
}

// end makes waiting and future calls of take fail with err.
func (c *credit) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.wakeLocked()
}

func (c *credit) wakeLocked() {
	close(c.more)
	c.more = make(chan struct{})
}

// take waits until n bytes may be sent. It fails if no credit arrives for stall.
func (c *credit) take(ctx context.Context, n int, stall time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.bytes < uint64(n) {
		if c.err != nil {
			return c.err
		}
		more := c.more
		c.mu.Unlock()
		err := wait(ctx, more, stall)
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
	c.bytes -= uint64(n)
	return nil
}

func wait(ctx context.Context, more <-chan struct{}, stall time.Duration) error {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case <-more:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("%w: it granted no credit for %v", ErrStalled, stall)
	}
}
