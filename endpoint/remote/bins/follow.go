package bins

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

const (
	// readerBeat is how often a server says that it is there while there is nothing to read. After two that do not come
	// the reader is over.
	readerBeat = time.Second
	// readerIdle is after how long a server forgets a consumer whose reader is gone.
	readerIdle = 30 * time.Second
)

// reader reads messages of the stream in their order, their headers only. It lives with one server: where that is lost
// its reading ends with an error, and a new one has to begin behind what was read.
//
// The library has consumers of this kind that are made anew when they are lost, but each time under one name, again and
// again. In a cluster a name belongs to the server that it was given to first, and that may be the one that was lost,
// which is not known for a minute: then nobody answers until it comes back.
type reader struct {
	messages jetstream.MessagesContext
	pending  uint64 // messages that there were to read when it began
	read     uint64
}

// newReader makes a reader for the messages that config selects, by subject and place. The caller stops it. Each attempt
// has another name.
func (s *Store) newReader(ctx context.Context, config jetstream.ConsumerConfig) (*reader, error) {
	config.AckPolicy, config.MemoryStorage, config.Replicas = jetstream.AckNonePolicy, true, 1
	config.HeadersOnly, config.InactiveThreshold = true, readerIdle
	var consumer jetstream.Consumer
	err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
		config.Name = nuid.Next()
		consumer, err = s.stream.CreateConsumer(ctx, config)
		return err
	})
	if err != nil {
		return nil, err
	}
	r := &reader{pending: consumer.CachedInfo().NumPending}
	r.messages, err = consumer.Messages(
		jetstream.PullHeartbeat(readerBeat), jetstream.PullExpiry(30*time.Second), jetstream.WithMessagesErrOnMissingHeartbeat(true),
	)
	return r, err
}

// next waits for the next message until ctx ends. Where the server is lost, or a message of it, the error is an outage.
func (r *reader) next(ctx context.Context) (jetstream.Msg, *jetstream.MsgMetadata, error) {
	msg, err := r.messages.Next(jetstream.NextContext(ctx))
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, jetstream.ErrConnectionClosed) {
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the server that is read from is lost: %w: %w", nats.ErrTimeout, err)
	}
	meta, err := msg.Metadata()
	if err != nil {
		return nil, nil, err
	}
	if r.read++; meta.Sequence.Consumer != r.read {
		return nil, nil, fmt.Errorf("message %d of those that are read was lost: %w", r.read, nats.ErrTimeout)
	}
	return msg, meta, nil
}

// stop ends reading. The server forgets the rest.
func (r *reader) stop() { r.messages.Stop() }

// scan reads the headers of all messages with a subject that are there when it begins, in order.
func (s *Store) scan(ctx context.Context, subject string, config jetstream.ConsumerConfig, see func(jetstream.Msg, *jetstream.MsgMetadata) error) error {
	config.FilterSubject = subject
	r, err := s.newReader(ctx, config)
	if err != nil {
		return err
	}
	defer r.stop()
	if r.pending == 0 {
		return nil
	}
	for {
		msg, meta, err := r.next(ctx)
		if err != nil {
			return err
		}
		if err := see(msg, meta); err != nil || meta.NumPending == 0 {
			return err
		}
	}
}
