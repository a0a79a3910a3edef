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

// messages returns the messages of a bin's items, oldest first. The newest message decides: behind an empty one there is nothing, and a value that was put stands alone.
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

func (s *Store) messagesOnce(ctx context.Context, bin string) ([]stored, error) {
	last, err := s.last(ctx, bin)
	if err != nil || last == nil || last.empty() {
		return nil, err
	}
	if last.op == opPut {
		return []stored{*last}, nil
	}
	var messages []stored
	for next := uint64(1); next <= last.item.Sequence; {
		batch, err := s.batch(ctx, bin, next)
		if err != nil {
			return nil, err
		}
		if len(batch) == 0 {
			break // replaced or taken since
		}
		for _, m := range batch {
			next = m.item.Sequence + 1
			switch {
			case m.item.Sequence > last.item.Sequence:
				return messages, nil
			case m.empty():
				messages = nil
			case m.op == opPut:
				messages = []stored{m}
			default:
				messages = append(messages, m)
			}
		}
	}
	return messages, nil
}

// last returns the newest message of a bin, or nil.
func (s *Store) last(ctx context.Context, bin string) (*stored, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	raw, err := s.stream.GetLastMsgForSubject(ctx, s.subject(bin))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := parseStored(raw.Header, raw.Data, raw.Sequence, raw.Time, s.opts.MaxItemBytes)
	return &m, err
}

// batch returns messages of a bin from a sequence number on, as many as the server sends in one answer. It speaks the batched direct get
// of JetStream (NATS ADR-31), for which the client library has no method: one request instead of one for each message.
func (s *Store) batch(ctx context.Context, bin string, from uint64) ([]stored, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	inbox := s.conn.NewInbox()
	sub, err := s.conn.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(2*batchMessages, 4*batchBytes); err != nil {
		return nil, err
	}
	ask, err := json.Marshal(map[string]any{
		"seq": from, "next_by_subj": s.subject(bin), "batch": batchMessages, "max_bytes": batchBytes,
	})
	if err != nil {
		return nil, err
	}
	if err := s.conn.PublishRequest("$JS.API.DIRECT.GET.BINS_"+s.opts.Namespace, inbox, ask); err != nil {
		return nil, err
	}
	var messages []stored
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
		case "204", "404": // the end of the batch; no message
			return messages, nil
		default:
			return nil, fmt.Errorf("the server refused to read: %s %s", status, msg.Header.Get("Description"))
		}
		m, err := s.parseDirect(msg)
		if err != nil {
			return nil, err
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
