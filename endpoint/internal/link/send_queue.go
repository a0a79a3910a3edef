package link

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
)

// sendQueue has what a link sends without anybody waiting until it is sent: what is given back, cancelled or allowed.
// It may be used by whoever reads the link too: if that waited for room to send, the owner, which may wait for the
// same, would never make any.
//
// A frame is sent at once where there is room. A goroutine sends those for which there was none, in order, and is not
// there otherwise.
type sendQueue struct {
	mu      sync.Mutex
	waiting []queuedFrame
	bytes   int  // of those in waiting
	sending bool // the goroutine is there
	closed  bool
	work    sync.WaitGroup
}

// queuedFrame is a frame that waits.
type queuedFrame struct {
	kind wire.Kind
	id   uint64
	body []byte
}

const (
	// maxQueued is how many bytes may wait: an owner that reads nothing while so much is given back to it is cut off,
	// which gives it back too.
	maxQueued = 8 << 20
	// queuedFrameBytes is what it takes to keep a frame, beside its body.
	queuedFrameBytes = 64
)

// noTime is a context that has ended: for what must not wait.
var noTime = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// post sends a frame and returns at once. It borrows body. Where the link has ended, what the frame would have done has
// ended with it.
func (l *Link) post(kind wire.Kind, id uint64, body []byte) {
	o := &l.queue
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.sending {
		if err := l.conn.SendContext(noTime, kind, id, body); !errors.Is(err, wire.ErrNotSent) {
			return
		}
	}
	if o.closed {
		return
	}
	if o.bytes += len(body) + queuedFrameBytes; o.bytes > maxQueued {
		l.conn.Close() // its reader sees to the rest
		return
	}
	o.waiting = append(o.waiting, queuedFrame{kind, id, bytes.Clone(body)})
	if !o.sending {
		o.sending = true
		o.work.Go(l.sendQueued)
	}
}

// sendQueued sends what waits until nothing does.
func (l *Link) sendQueued() {
	for {
		list := l.queue.take()
		if len(list) == 0 {
			return
		}
		for _, p := range list {
			if l.conn.Send(p.kind, p.id, p.body) != nil {
				break // the link has ended, and so does the next send
			}
		}
	}
}

// take returns what waits; the goroutine that gets nothing ends.
func (o *sendQueue) take() []queuedFrame {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.waiting
	o.waiting, o.bytes = nil, 0
	o.sending = len(list) > 0
	return list
}

// close returns when the goroutine has ended. The connection has been closed before.
func (o *sendQueue) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.work.Wait()
}
