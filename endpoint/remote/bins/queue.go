package bins

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Defaults of [QueueOptions].
const (
	DefaultRedeliver  = 30 * time.Second
	DefaultDeliveries = 5
)

// QueueOptions configures a queue and the redelivery of unacknowledged items.
type QueueOptions struct {
	// Options sets the name and limits of the queue, as for bins.
	Options
	// Redeliver is the time after which an unacknowledged item is delivered to another puller. Zero means
	// DefaultRedeliver.
	Redeliver time.Duration
	// Deliveries is the maximum number of deliveries of an item, after which it is dropped. Zero means
	// DefaultDeliveries.
	Deliveries int
	// AddOnly opens the queue for Push only. It needs no right to take items, and Pull fails.
	AddOnly bool
}

// Queue delivers each item to one puller and keeps it until that puller acknowledges it. Items are delivered at least
// once, while the items of a bin are taken at most once. Its methods are safe for concurrent use. It borrows its
// connection and needs no Close.
type Queue struct {
	bodies
	opts     QueueOptions
	conn     *nats.Conn
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer // nil with AddOnly
	batches  *natslink.Batches
}

// OpenQueue opens a queue and creates it if it is missing. It borrows conn.
func OpenQueue(ctx context.Context, conn *nats.Conn, opts QueueOptions) (_ *Queue, err error) {
	opts.Options = opts.withDefaults()
	if opts.Redeliver == 0 {
		opts.Redeliver = DefaultRedeliver
	}
	if opts.Deliveries == 0 {
		opts.Deliveries = DefaultDeliveries
	}
	if err := opts.check(conn.MaxPayload()); err != nil {
		return nil, err
	}
	q, err := openQueue(ctx, conn, opts)
	if err == nil && !opts.AddOnly {
		// Pullers count deliveries. JetStream would also count items that a puller put back, and would leave an item
		// with no deliveries left in the stream.
		err = natslink.Ask(ctx, func(ctx context.Context) error {
			q.consumer, err = q.stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
				Durable: "pullers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: opts.Redeliver, MaxDeliver: -1, MaxAckPending: -1,
			})
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("open the queue %q: %w", opts.Namespace, err)
	}
	return q, nil
}

// openQueue opens a queue without its consumer.
func openQueue(ctx context.Context, conn *nats.Conn, opts QueueOptions) (_ *Queue, err error) {
	q := &Queue{opts: opts, conn: conn, batches: natslink.NewBatches(conn, "QUEUE_"+opts.Namespace)}
	if q.js, err = natslink.JetStream(conn); err != nil {
		return nil, err
	}
	if q.stream, err = openStream(ctx, q.js, jetstream.StreamConfig{
		Name: "QUEUE_" + opts.Namespace, Description: "sharedtensor queue", Subjects: []string{"queue." + opts.Namespace + ".>"},
		Retention: jetstream.WorkQueuePolicy, Storage: opts.storage(), Replicas: opts.Replicas, MaxBytes: opts.MaxBytes,
		Discard: jetstream.DiscardNew, Duplicates: duplicateWindow, AllowDirect: true,
	}); err != nil {
		return nil, err
	}
	q.bodies, err = openBodies(ctx, q.js, "QUEUE_"+opts.Namespace, opts.Options, conn.MaxPayload())
	return q, err
}

// Push adds an item under a topic. Topics follow the rules of bin names. While the queue is full, Push waits for
// pullers until ctx ends; then the error is [ErrFull]. Other errors are the same as for [Store.Append].
func (q *Queue) Push(ctx context.Context, topic string, v Value, opts ...WriteOption) (_ uint64, err error) {
	defer func() { err = wrapQueue("push to", q, err) }()
	if err := CheckName(topic); err != nil {
		return 0, err
	}
	if err := v.check(q.opts.Options); err != nil {
		return 0, err
	}
	o := newWrite(opts)
	if o.list {
		return 0, ErrNotList
	}
	subject := "queue." + q.opts.Namespace + "." + escape(topic)
	var full error
	for attempt := 0; ; attempt++ {
		sequence, err := q.send(ctx, q.js, q.stream, subject, opAppend, v, q.opts.Inline, o)
		if full != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, ErrOutcomeUnknown) {
			return 0, full // the reason of the wait that has ended
		}
		if err == nil || !isFull(err) || natslink.Pause(ctx, attempt) != nil {
			return sequence, err
		}
		full = err
	}
}

// Len returns the number of items, both waiting and delivered but unacknowledged.
func (q *Queue) Len(ctx context.Context) (int, error) {
	var info *jetstream.StreamInfo
	err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
		info, err = q.stream.Info(ctx)
		return err
	})
	if err != nil {
		return 0, wrapQueue("count", q, err)
	}
	return int(info.State.Msgs), nil
}

// Purge removes the items whose topic matches pattern, including delivered ones. In a pattern, '*' matches one part,
// and a trailing '>' matches one or more. Their bodies are removed in the background.
func (q *Queue) Purge(ctx context.Context, pattern string) error {
	escaped, err := escapePattern(pattern)
	if err != nil {
		return wrapQueue("purge", q, err)
	}
	subject, names, beside := "queue."+q.opts.Namespace+"."+escaped, []string{}, false
	err = natslink.Ask(ctx, func(ctx context.Context) (err error) {
		beside, err = q.objects.InUse(ctx)
		return err
	})
	if err == nil && beside {
		names, err = q.bodiesOf(ctx, subject)
	}
	if err == nil {
		err = natslink.Ask(ctx, func(ctx context.Context) error {
			return q.stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
		})
	}
	if err == nil {
		q.dropBodies(names...)
	}
	return wrapQueue("purge", q, err)
}

// bodiesOf returns the names of the bodies that messages of a subject reference.
func (q *Queue) bodiesOf(ctx context.Context, subject string) (names []string, err error) {
	for next, more := uint64(1), true; more; {
		var batch []subjectMessage
		err = again(ctx, func() error {
			pending := 0
			batch, pending, err = readBatch(ctx, q.batches, subject, next)
			more = pending > 0 && len(batch) > 0
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, m := range batch {
			next = m.item.Sequence + 1
			if m.object != "" {
				names = append(names, m.object)
			}
		}
	}
	return names, nil
}

// Sweep removes bodies that no item references and that are older than grace, as [Store.Sweep] does. It returns the
// number of removed bodies.
func (q *Queue) Sweep(ctx context.Context, grace time.Duration) (removed int, err error) {
	removed, err = q.objects.Sweep(ctx, grace, func(ctx context.Context) (map[string]bool, error) {
		list, err := q.bodiesOf(ctx, "queue."+q.opts.Namespace+".>")
		names := make(map[string]bool, len(list))
		for _, name := range list {
			names[name] = true
		}
		return names, err
	})
	if err == nil {
		err = q.forgetPutBack(ctx)
	}
	return removed, wrapQueue("sweep", q, err)
}

// SweepQueue sweeps a queue by name. It does not change the settings of the queue's consumer.
func SweepQueue(ctx context.Context, conn *nats.Conn, opts Options, grace time.Duration) (removed int, err error) {
	q, err := openQueue(ctx, conn, QueueOptions{Options: opts.withDefaults()})
	if err != nil {
		return 0, fmt.Errorf("open the queue %q: %w", opts.Namespace, err)
	}
	return q.Sweep(ctx, grace)
}

func wrapQueue(op string, q *Queue, err error) error {
	if err == nil {
		return nil
	}
	if isFull(err) {
		return fmt.Errorf("%s the queue %q: %w: %w", op, q.opts.Namespace, ErrFull, err)
	}
	return fmt.Errorf("%s the queue %q: %w", op, q.opts.Namespace, err)
}
