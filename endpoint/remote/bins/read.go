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
		messages, err := s.messages(ctx, bin)
		if err != nil {
			return nil, err
		}
		items, err := s.loadAll(ctx, messages)
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
	items := make([]Item, len(messages))
	for i, m := range messages {
		var err error
		if items[i], err = s.load(ctx, m); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// messages returns the messages of a bin's items, oldest first. What stands before an empty message or a value
// that was put is gone.
//
// While the server is away it asks again until ctx ends: reading twice changes nothing.
func (s *Store) messages(ctx context.Context, bin string) (messages []stored, err error) {
	err = again(ctx, func() error {
		messages, err = s.messagesOnce(ctx, bin)
		return err
	})
	return messages, err
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

func (s *Store) messagesOnce(ctx context.Context, bin string) (messages []stored, err error) {
	for next := uint64(1); ; {
		batch, more, err := s.batch(ctx, bin, next)
		if err != nil {
			return nil, err
		}
		for _, m := range batch {
			next = m.item.Sequence + 1
			switch {
			case m.empty():
				messages = nil
			case m.op == opPut:
				messages = []stored{m}
			default:
				messages = append(messages, m)
			}
		}
		if !more {
			return messages, nil
		}
	}
}

// batch returns messages of a bin from a sequence number on, as many as the server sends in one answer, and whether
// there are more. It speaks the batched direct get of JetStream (NATS ADR-31), for which the client library has no
// method: one request instead of one for each message.
func (s *Store) batch(ctx context.Context, bin string, from uint64) (messages []stored, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	inbox := s.conn.NewInbox()
	answers := make(chan *nats.Msg, batchMessages+1) // SubscribeSync would make room for 65,536
	sub, err := s.conn.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	ask, err := json.Marshal(map[string]any{
		"seq": from, "next_by_subj": s.subject(bin), "batch": batchMessages, "max_bytes": batchBytes,
	})
	if err != nil {
		return nil, false, err
	}
	if err := s.conn.PublishRequest("$JS.API.DIRECT.GET.BINS_"+s.opts.Namespace, inbox, ask); err != nil {
		return nil, false, err
	}
	pending := 0
	for {
		var msg *nats.Msg
		select {
		case msg = <-answers:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
		case "204", "404": // the end of the batch; no message
			pending, _ = strconv.Atoi(msg.Header.Get("Nats-Num-Pending"))
			return messages, pending > 0 && len(messages) > 0, nil
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

// scan reads the headers of all messages with a subject that are there when it begins, in order.
func (s *Store) scan(ctx context.Context, subject string, config jetstream.OrderedConsumerConfig, see func(jetstream.Msg) error) error {
	config.FilterSubjects, config.HeadersOnly = []string{subject}, true
	consumer, err := s.stream.OrderedConsumer(ctx, config)
	if err != nil {
		return err
	}
	if info := consumer.CachedInfo(); info != nil && info.NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		return err
	}
	defer messages.Stop()
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	for {
		msg, err := messages.Next()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		if err := see(msg); err != nil {
			return err
		}
		if meta, err := msg.Metadata(); err != nil || meta.NumPending == 0 {
			return err
		}
	}
}
