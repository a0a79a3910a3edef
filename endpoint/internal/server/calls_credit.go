package server

import (
	"context"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// credit is the number of items that a stream may still send.
type credit struct {
	mu    sync.Mutex
	items uint64
	more  chan struct{} // capacity 1
}

// newCredit returns the initial credit of a stream.
func newCredit() *credit {
	return &credit{items: message.StreamWindow, more: make(chan struct{}, 1)}
}

// add allows n more items. It limits n so that the sum does not overflow.
func (c *credit) add(n uint64) {
	c.mu.Lock()
	c.items += min(n, 1<<32)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// take waits until an item may be sent. It fails with the cause of ctx if ctx has ended, even if there is credit: an
// ended stream sends no items.
func (c *credit) take(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.mu.Lock()
		ok := c.items > 0
		if ok {
			c.items--
		}
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// streams holds the running streams of a session by request id. Its methods are safe for concurrent use.
type streams struct {
	mu  sync.Mutex
	all map[uint64]*credit
}

// begin registers a stream and returns its credit.
func (s *streams) begin(id uint64) *credit {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uint64]*credit{}
	}
	c := newCredit()
	s.all[id] = c
	return c
}

// end removes a stream.
func (s *streams) end(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// allow allows a stream to send n more items. It does nothing if the stream has ended.
func (s *streams) allow(id, n uint64) {
	s.mu.Lock()
	c := s.all[id]
	s.mu.Unlock()
	if c != nil {
		c.add(n)
	}
}
