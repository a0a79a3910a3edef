package client

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
)

// sendQueue sends releases, cancellations and stream credit without blocking the caller. Goroutines that read the
// connection use it too: if they waited for the owner to read while the owner waited for them, neither would continue.
//
// A frame is sent at once if the socket has room. Otherwise it is queued, and a goroutine sends the queue in order and
// ends when it is empty.
type sendQueue struct {
	mu      sync.Mutex
	waiting []queuedFrame
	bytes   int  // total size of the queue
	sending bool // the goroutine is running
	closed  bool
	work    sync.WaitGroup
}

// queuedFrame is a frame in the queue.
type queuedFrame struct {
	kind wire.Kind
	id   uint64
	body []byte
}

const (
	// maxQueued is the maximum size of the queue in bytes. If an owner does not read that much, the connection is
	// closed, which releases the client's resources too.
	maxQueued = 8 << 20
	// queuedFrameBytes is the memory of a queued frame in addition to its body.
	queuedFrameBytes = 64
)

// noTime is a context that has ended, for sends that must not wait.
var noTime = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// post sends or queues a frame and returns at once. It borrows body. It ignores errors: the end of the connection also
// has the effect of these frames.
func (c *Conn) post(kind wire.Kind, id uint64, body []byte) {
	o := &c.queue
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.sending {
		if err := c.transport.SendContext(noTime, kind, id, body); !errors.Is(err, wire.ErrNotSent) {
			return
		}
	}
	if o.closed {
		return
	}
	if o.bytes += len(body) + queuedFrameBytes; o.bytes > maxQueued {
		c.transport.Close() // the reader then ends the connection
		return
	}
	o.waiting = append(o.waiting, queuedFrame{kind, id, bytes.Clone(body)})
	if !o.sending {
		o.sending = true
		o.work.Go(c.sendQueued)
	}
}

// sendQueued sends queued frames until the queue is empty.
func (c *Conn) sendQueued() {
	for {
		list := c.queue.take()
		if len(list) == 0 {
			return
		}
		for _, p := range list {
			if c.transport.Send(p.kind, p.id, p.body) != nil {
				break // the connection has ended; the next send fails too
			}
		}
	}
}

// take removes and returns all queued frames. It marks the goroutine as ended if there are none.
func (o *sendQueue) take() []queuedFrame {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.waiting
	o.waiting, o.bytes = nil, 0
	o.sending = len(list) > 0
	return list
}

// close returns when the goroutine has ended. The caller has closed the connection.
func (o *sendQueue) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.work.Wait()
}
