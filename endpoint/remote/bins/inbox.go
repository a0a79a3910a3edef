package bins

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// idleInboxes is how many inboxes wait for the next reads.
const idleInboxes = 4

// inboxes are where answers of batched reads arrive. They are used again: a subscription for each read costs the server
// more than the read itself, because it changes whom all its messages go to.
type inboxes struct {
	conn *nats.Conn

	mu   sync.Mutex
	idle []*inbox
}

// inbox is one of them, for one read at a time.
type inbox struct {
	subject string
	answers chan *nats.Msg
	sub     *nats.Subscription
}

// get returns an inbox that receives only the answers to requests made from now on. The caller returns it by put.
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

// put takes an inbox back. One whose read was broken off ends: late answers may come.
func (b *inboxes) put(box *inbox, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if whole && len(b.idle) < idleInboxes && box.sub.IsValid() {
		b.idle = append(b.idle, box)
		return
	}
	_ = box.sub.Unsubscribe()
}

// close ends those that wait.
func (b *inboxes) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, box := range b.idle {
		_ = box.sub.Unsubscribe()
	}
	b.idle = nil
}
