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
	// readerBeat is the interval of the server's heartbeats while there are no messages. The reader fails after two
	// missed heartbeats.
	readerBeat = time.Second
	// scanIdle is the time without a message after which a scan checks whether messages remain.
	scanIdle = 300 * time.Millisecond
	// readerIdle is the time after which a server removes a consumer without a reader.
	readerIdle = 30 * time.Second
)

// reader reads the headers of messages in stream order. It depends on one server: if that is lost, reading fails, and a
// new reader must continue after the last message.
//
// The library's ordered consumers recreate themselves, but always under the same name. In a cluster, a name belongs to
// the server that it was first assigned to. If that server is lost, which takes a minute to detect, requests for the
// name are not answered until it restarts.
type reader struct {
	conn     *nats.Conn
	consumer jetstream.Consumer
	messages jetstream.MessagesContext
	pending  uint64 // messages to read at creation
	read     uint64
}

// newReader creates a reader for the messages that config selects by subject and position. The caller stops it. Each
// attempt uses a different name.
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
	r := &reader{conn: s.conn, consumer: consumer, pending: consumer.CachedInfo().NumPending}
	r.messages, err = consumer.Messages(
		jetstream.PullHeartbeat(readerBeat), jetstream.PullExpiry(30*time.Second), jetstream.WithMessagesErrOnMissingHeartbeat(true),
	)
	return r, err
}

// next waits for the next message until ctx ends. If the server or a message is lost, the error is an outage.
func (r *reader) next(ctx context.Context) (jetstream.Msg, *jetstream.MsgMetadata, error) {
	msg, err := r.messages.Next(jetstream.NextContext(ctx))
	if err != nil && ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, jetstream.ErrConnectionClosed) {
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("lost the server of the reader: %w: %w", nats.ErrTimeout, err)
	}
	meta, err := msg.Metadata()
	if err != nil {
		return nil, nil, err
	}
	if r.read++; meta.Sequence.Consumer != r.read {
		return nil, nil, fmt.Errorf("the reader missed message %d: %w", r.read, nats.ErrTimeout)
	}
	return msg, meta, nil
}

// over reports whether no messages remain. The last ones may have been removed since the reader began.
func (r *reader) over(ctx context.Context) (bool, error) {
	var info *jetstream.ConsumerInfo
	err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
		info, err = r.consumer.Info(ctx)
		return err
	})
	return err == nil && info.NumPending == 0 && info.Delivered.Consumer == r.read, err
}

// stop ends reading. The server discards the remaining messages.
func (r *reader) stop() {
	r.messages.Stop()
	info := r.consumer.CachedInfo()
	// Best effort: the server removes a consumer without pulls after readerIdle. Nothing waits for the answer.
	_ = r.conn.PublishRequest("$JS.API.CONSUMER.DELETE."+info.Stream+"."+info.Name, r.conn.NewInbox(), nil)
}

// scan reads the headers of all messages on a subject that exist when it begins, in order.
func (s *Store) scan(ctx context.Context, subject string, config jetstream.ConsumerConfig, apply func(jetstream.Msg, *jetstream.MsgMetadata) error) error {
	config.FilterSubject = subject
	r, err := s.newReader(ctx, config)
	if err != nil {
		return err
	}
	defer r.stop()
	if r.pending == 0 {
		return nil
	}
	progress := time.Now()
	for {
		waiting, cancel := context.WithTimeout(ctx, scanIdle)
		msg, meta, err := r.next(waiting)
		idle := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		if err != nil && idle {
			if over, err := r.over(ctx); over || err != nil {
				return err
			}
			if time.Since(progress) > 3*readerBeat {
				return fmt.Errorf("the server sends no more messages: %w", nats.ErrTimeout)
			}
			continue
		}
		if err != nil {
			return err
		}
		progress = time.Now()
		if err := apply(msg, meta); err != nil || meta.NumPending == 0 {
			return err
		}
	}
}
