package session

import (
	"context"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Credit is the number of items that a stream may still send.
type Credit struct {
	mu    sync.Mutex
	items uint64
	more  chan struct{} // capacity 1
}

// newCredit returns the initial credit of a stream.
func newCredit() *Credit {
	return &Credit{items: message.StreamWindow, more: make(chan struct{}, 1)}
}

// add allows n more items. It limits n so that the sum does not overflow.
func (c *Credit) add(n uint64) {
	c.mu.Lock()
	c.items += min(n, 1<<32)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// Take waits until an item may be sent. It fails with the cause of ctx if ctx has ended, even if there is credit: an
// ended stream sends no items.
func (c *Credit) Take(ctx context.Context) error {
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

// Streams holds the running streams of a session by request id. Its methods are safe for concurrent use.
type Streams struct {
	mu  sync.Mutex
	all map[uint64]*Credit
}

// Begin registers a stream and returns its credit.
func (s *Streams) Begin(id uint64) *Credit {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uint64]*Credit{}
	}
	c := newCredit()
	s.all[id] = c
	return c
}

// End removes a stream.
func (s *Streams) End(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// More allows a stream to send n more items. It does nothing if the stream has ended.
func (s *Streams) More(id, n uint64) {
	s.mu.Lock()
	c := s.all[id]
	s.mu.Unlock()
	if c != nil {
		c.add(n)
	}
}

// HoldItem returns the charge for a stream item in memory. The caller releases it.
func (ses *Session) HoldItem() HeldAnswer { return HeldAnswer{of: ses.answers.unread} }

// SendItem sends an item of a stream with descriptors to another process, or with storages within this one. It borrows
// all arguments.
func (ses *Session) SendItem(request uint64, body []byte, files []*os.File, storages []*tensor.Storage) error {
	return ses.answers.sendFrame(ses.conn.Send, wire.KindEvent, request, body, files, storages)
}
