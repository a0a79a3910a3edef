package natslink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Limits of one answer to a batched request.
const (
	batchMessages = 512
	batchBytes    = 8 << 20
)

// Batches reads the messages of a stream with the batched direct get of JetStream (NATS ADR-31), which the client library
// does not support. It needs one request for many messages. Its methods are safe for concurrent use. It borrows its
// connection and needs no Close.
type Batches struct {
	conn    *nats.Conn
	stream  string
	inboxes *inboxes // must not reference the Batches: its subscriptions end when that is unreachable
}

// NewBatches returns a reader of a stream.
func NewBatches(conn *nats.Conn, stream string) *Batches {
	b := &Batches{conn, stream, &inboxes{conn: conn}}
	runtime.AddCleanup(b, (*inboxes).close, b.inboxes)
	return b
}

// Read returns the messages from a sequence number on whose subjects match a pattern, up to the limit of one answer, and
// the number of further ones. [Sequence] returns the sequence number of a message. Read does not repeat its request.
func (b *Batches) Read(ctx context.Context, pattern string, from uint64) (batch []*nats.Msg, pending int, err error) {
	box, err := b.inboxes.get()
	if err != nil {
		return nil, 0, err
	}
	whole := false
	defer func() {
		b.inboxes.put(box, whole)
		runtime.KeepAlive(b) // its cleanup closes the inboxes
	}()
	request, err := json.Marshal(batchRequest{Sequence: from, Subject: pattern, Batch: batchMessages, MaxBytes: batchBytes})
	if err != nil {
		return nil, 0, err
	}
	if err := b.conn.PublishRequest(api+"DIRECT.GET."+b.stream, box.subject, request); err != nil {
		return nil, 0, err
	}
	for {
		var msg *nats.Msg
		select {
		case msg = <-box.answers:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
			batch = append(batch, msg)
		case "204", "404": // end of the batch; no message
			whole = true
			pending, _ := strconv.Atoi(msg.Header.Get("Nats-Num-Pending"))
			return batch, pending, nil
		case "503": // no replica can read yet, for example after a start
			return nil, 0, nats.ErrNoResponders
		default:
			whole = true
			code, _ := strconv.Atoi(status)
			return nil, 0, fmt.Errorf("the server refused to read: %w", &jetstream.APIError{Code: code, Description: msg.Header.Get("Description")})
		}
	}
}

// Sequence returns the sequence number of a message of a batch.
func Sequence(msg *nats.Msg) (uint64, error) {
	sequence, err := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return 0, errors.New("the server sent a message without a sequence number")
	}
	return sequence, nil
}

// batchRequest is a batched direct get.
type batchRequest struct {
	Sequence uint64 `json:"seq"`
	Subject  string `json:"next_by_subj"`
	Batch    int    `json:"batch"`
	MaxBytes int    `json:"max_bytes"`
}

// idleInboxes is the maximum number of idle inboxes.
const idleInboxes = 4

// inboxes is a pool of inboxes for the answers of batched requests. A new subscription for each request would cost the
// server more than the request itself, because it invalidates the server's routing cache.
type inboxes struct {
	conn *nats.Conn

	mu   sync.Mutex
	idle []*inbox
}

// inbox receives the answers of one request at a time.
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

// put returns an inbox to the pool. whole reports that its request was answered completely; otherwise the inbox is
// closed, because late answers may arrive.
func (b *inboxes) put(box *inbox, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if whole && len(b.idle) < idleInboxes && box.sub.IsValid() {
		b.idle = append(b.idle, box)
		return
	}
	_ = box.sub.Unsubscribe()
}

// close closes the idle inboxes when their Batches is unreachable, so that no reader uses them. The connection may be
// blocked by its socket, and other cleanups must not wait for that.
func (b *inboxes) close() {
	go func() {
		for _, box := range b.idle {
			_ = box.sub.Unsubscribe()
		}
	}()
}
