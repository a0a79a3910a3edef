package bins

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// idleInboxes is the maximum number of idle inboxes.
const idleInboxes = 4

// inboxes is a pool of inboxes for the answers of batched reads. A new subscription for each read would cost the server
// more than the read itself, because it invalidates the server's routing cache.
type inboxes struct {
	conn *nats.Conn

	mu   sync.Mutex
	idle []*inbox
}

// inbox receives the answers of one read at a time.
type inbox struct {
	subject string
	answers chan *nats.Msg
	sub     *nats.Subscription
}

// get returns an inbox that receives only the answers to later requests. The caller returns it with put.
func (b *inboxes) get() (*inbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		box := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return box, nil
	}
	box := &inbox{subject: b.conn.NewInbox(), answers: make(chan *nats.Msg, batchMessages+1)}
	sub, err := b.conn.ChanSubscribe(box.subject, box.answers)
	box.sub = sub
	return box, err
}

// put returns an inbox to the pool. whole reports that its read was completed; otherwise the inbox is closed, because
// late answers may arrive.
func (b *inboxes) put(box *inbox, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if whole && len(b.idle) < idleInboxes && box.sub.IsValid() {
		b.idle = append(b.idle, box)
		return
	}
	_ = box.sub.Unsubscribe()
}

// close closes the idle inboxes.
func (b *inboxes) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, box := range b.idle {
		_ = box.sub.Unsubscribe()
	}
	b.idle = nil
}
