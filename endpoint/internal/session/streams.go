package session

import (
	"context"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Credit is how many items a stream may still send.
type Credit struct {
	mu    sync.Mutex
	items uint64
	more  chan struct{} // has room for one
}

// newCredit is that of a stream which begins.
func newCredit() *Credit {
	return &Credit{items: message.StreamWindow, more: make(chan struct{}, 1)}
}

// add allows n items more, up to what a client can mean in earnest.
func (c *Credit) add(n uint64) {
	c.mu.Lock()
	c.items += min(n, 1<<32)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// Take waits until an item may be sent. Its error is the cause of ctx.
func (c *Credit) Take(ctx context.Context) error {
	for {
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

// Streams are the streams of a session that run, by the id of their request. Its methods are safe for concurrent use.
type Streams struct {
	mu  sync.Mutex
	all map[uint64]*Credit
}

// Begin notes a stream and returns its credit.
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

// End forgets a stream.
func (s *Streams) End(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// More lets a stream send n items more. One that has ended meanwhile needs no more.
func (s *Streams) More(id, n uint64) {
	s.mu.Lock()
	c := s.all[id]
	s.mu.Unlock()
	if c != nil {
		c.add(n)
	}
}

// HoldItem counts an item of a stream that is in memory for the client; the caller releases it.
func (ses *Session) HoldItem() HeldAnswer { return HeldAnswer{of: ses.answers.unread} }

// SendItem sends an item of the stream that a request asked for, with what goes beside it, all of which it borrows:
// descriptors to another process, storages within this one.
func (ses *Session) SendItem(request uint64, body []byte, files []*os.File, storages []*tensor.Storage) error {
	return ses.answers.sendFrame(ses.conn.Send, wire.KindEvent, request, body, files, storages)
}
