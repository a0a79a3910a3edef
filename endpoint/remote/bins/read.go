package bins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	batchMessages = 512     // asked for at once
	batchBytes    = 8 << 20 // of an answer; the rest is asked for again
	maxBodyGone   = 8       // times that a reader begins anew because a body went while it read
)

// Peek returns the items of a bin and leaves them. Errors: [ErrNotFound] for an empty bin.
//
// With several replicas any of them may answer, and one may not have the newest items yet.
func (s *Store) Peek(ctx context.Context, bin string) (_ []Item, err error) {
	defer func() { err = wrap("peek at", bin, err) }()
	if err := CheckName(bin); err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		content, err := s.content(ctx, bin)
		if err != nil {
			return nil, err
		}
		items, err := s.loadAll(ctx, content.messages)
		if errors.Is(err, errBodyGone) && attempt < maxBodyGone {
			continue
		}
		return items, err
	}
}

func (s *Store) loadAll(ctx context.Context, messages []stored) ([]Item, error) {
	if len(messages) == 0 {
		return nil, ErrNotFound
	}
	items := make([]Item, 0, len(messages))
	for _, m := range messages {
		item, err := s.load(ctx, m)
		if err == nil && m.list {
			items, err = appendElements(items, item)
		} else {
			items = append(items, item)
		}
		if err != nil {
			return nil, err
		}
	}
	return items, nil
}

// content is what a bin holds.
type content struct {
	messages []stored // of its items, oldest first
	last     uint64   // of all its messages, also those that are no items; 0 where it has none
	taken    *stored  // the newest message of a take of some items
	gone     int      // items that it has taken and that are stored still
	stale    []uint64 // such messages that are not the bin's newest, and can be removed
}

// see adds the next message: what stands before an empty message or a value that was put is gone, and so is what was
// taken.
func (c *content) see(m stored) {
	if c.taken != nil && c.taken.item.Sequence == c.last {
		c.stale = append(c.stale, c.last)
	}
	c.last = m.item.Sequence
	switch {
	case m.op == opTakeSome:
		for len(c.messages) > 0 && c.messages[0].item.Sequence <= m.upTo {
			c.messages = c.messages[1:]
			c.gone++
		}
		c.taken = &m
	case m.empty():
		*c = content{last: c.last}
	case m.op == opPut:
		*c = content{last: c.last, messages: []stored{m}}
	default:
		c.messages = append(c.messages, m)
	}
}

// newest is the sequence number of the newest item; 0 for an empty bin.
func (c *content) newest() uint64 {
	if len(c.messages) == 0 {
		return 0
	}
	return c.messages[len(c.messages)-1].item.Sequence
}

// content reads a bin. While the server is away it asks again until ctx ends: reading twice changes nothing.
func (s *Store) content(ctx context.Context, bin string) (c content, err error) {
	err = again(ctx, func() error {
		c, err = s.contentOnce(ctx, bin)
		return err
	})
	if err == nil && c.gone > 0 && time.Since(c.taken.item.Time) > requestTimeout {
		s.finishTake(ctx, bin, c.taken.upTo, c.stale) // whoever began it was killed
	}
	return c, err
}

// again repeats a read while the server is away and ctx goes on.
func again(ctx context.Context, read func() error) error {
	for attempt := 0; ; attempt++ {
		err := read()
		if err == nil || !isOutage(err) || pause(ctx, attempt) != nil {
			return err
		}
	}
}

func (s *Store) contentOnce(ctx context.Context, bin string) (c content, err error) {
	for next := uint64(1); ; next = c.last + 1 {
		batch, more, err := s.batch(ctx, bin, next)
		if err != nil {
			return content{}, err
		}
		for _, m := range batch {
			c.see(m)
		}
		if !more {
			return c, nil
		}
	}
}

// batch returns messages of a bin from a sequence number on, as many as the server sends in one answer, and whether
// there are more. It speaks the batched direct get of JetStream (NATS ADR-31), for which the client library has no
// method: one request instead of one for each message.
func (s *Store) batch(ctx context.Context, bin string, from uint64) (messages []stored, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	box, err := s.inboxes.get()
	if err != nil {
		return nil, false, err
	}
	whole := false
	defer func() { s.inboxes.put(box, whole) }()
	ask, err := json.Marshal(batchRequest{Sequence: from, Subject: s.subject(bin), Batch: batchMessages, MaxBytes: batchBytes})
	if err != nil {
		return nil, false, err
	}
	if err := s.conn.PublishRequest("$JS.API.DIRECT.GET.BINS_"+s.opts.Namespace, box.subject, ask); err != nil {
		return nil, false, err
	}
	for {
		var msg *nats.Msg
		select {
		case msg = <-box.answers:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
		case "204", "404": // the end of the batch; no message
			whole = true
			pending, _ := strconv.Atoi(msg.Header.Get("Nats-Num-Pending"))
			return messages, pending > 0 && len(messages) > 0, nil
		case "503": // no server has the stream to read from now, as while its replicas find each other
			return nil, false, nats.ErrNoResponders
		default:
			return nil, false, fmt.Errorf("the server refused to read: %s %s", status, msg.Header.Get("Description"))
		}
		m, err := s.parseDirect(msg)
		if err != nil {
			return nil, false, err
		}
		messages = append(messages, m)
	}
}

// batchRequest is a batched direct get.
type batchRequest struct {
	Sequence uint64 `json:"seq"`
	Subject  string `json:"next_by_subj"`
	Batch    int    `json:"batch"`
	MaxBytes int    `json:"max_bytes"`
}

// parseDirect reads a message of a batch, whose headers say where it lies in the stream.
func (s *Store) parseDirect(msg *nats.Msg) (stored, error) {
	sequence, err := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return stored{}, fmt.Errorf("%w: a message without its place in the stream", ErrCorrupt)
	}
	at, err := time.Parse(time.RFC3339Nano, msg.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return stored{}, fmt.Errorf("%w: message %d without its time", ErrCorrupt, sequence)
	}
	return parseStored(msg.Header, msg.Data, sequence, at, s.opts.MaxItemBytes)
}
