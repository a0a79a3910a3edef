package bins

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Defaults of [QueueOptions].
const (
	DefaultRedeliver  = 30 * time.Second
	DefaultDeliveries = 5
)

// QueueOptions says which queue is opened and what becomes of items that nobody acknowledges.
type QueueOptions struct {
	// Options name the queue and bound it, as they do for bins.
	Options
	// Redeliver is how long a puller may take to acknowledge an item before another puller gets it. Zero stands for
	// DefaultRedeliver.
	Redeliver time.Duration
	// Deliveries is how often an item is delivered at most; then it is dropped. Zero stands for DefaultDeliveries.
	Deliveries int
}

// Queue hands each item to one puller and keeps it until that puller acknowledges it: items are delivered at least
// once, where the items of a bin are taken at most once. Its methods are safe for concurrent use. It borrows its
// connection and needs no Close.
type Queue struct {
	bodies
	opts     QueueOptions
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer
}

// OpenQueue opens a queue and makes it where it is missing. It borrows conn.
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
	defer func() {
		if err != nil {
			err = fmt.Errorf("open the queue %q: %w", opts.Namespace, err)
		}
	}()
	q := &Queue{opts: opts}
	if q.js, err = jetstream.New(conn); err != nil {
		return nil, err
	}
	if q.stream, err = openStream(ctx, q.js, jetstream.StreamConfig{
		Name: "QUEUE_" + opts.Namespace, Description: "sharedtensor queue", Subjects: []string{"queue." + opts.Namespace + ".>"},
		Retention: jetstream.WorkQueuePolicy, Storage: opts.storage(), Replicas: opts.Replicas, MaxBytes: opts.MaxBytes,
		Discard: jetstream.DiscardNew, Duplicates: duplicateWindow,
	}); err != nil {
		return nil, err
	}
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		q.consumer, err = q.stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: "pullers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: opts.Redeliver, MaxDeliver: opts.Deliveries, MaxAckPending: -1,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	q.bodies, err = openBodies(ctx, q.js, "QUEUE_"+opts.Namespace, opts.Options, conn.MaxPayload())
	return q, err
}

// Push adds an item under a topic, which is a name like that of a bin. While the queue is full it waits for pullers
// until ctx ends; then the error is [ErrFull]. Other errors are those of [Store.Append].
func (q *Queue) Push(ctx context.Context, topic string, v Value, opts ...WriteOption) (_ uint64, err error) {
	defer func() { err = wrapQueue("push to", q, err) }()
	if err := CheckName(topic); err != nil {
		return 0, err
	}
	if err := v.check(q.opts.Options); err != nil {
		return 0, err
	}
	o := writeOptions{}
	for _, set := range opts {
		set(&o)
	}
	if o.list {
		return 0, ErrNotList
	}
	if o.id == "" {
		o.id = nuid.Next()
	}
	subject := "queue." + q.opts.Namespace + "." + escape(topic)
	for attempt := 0; ; attempt++ {
		sequence, err := send(ctx, q.js, &q.bodies, subject, opAppend, v, q.opts.Inline, o)
		if err == nil || !isFull(err) || pause(ctx, attempt) != nil {
			return sequence, err
		}
	}
}

// Delivery is an item that this puller holds until it calls Ack, Release or Drop, or until the queue's Redeliver is
// over.
type Delivery struct {
	Item
	// Topic is what the item was pushed under.
	Topic string
	// Deliveries counts how often the item was delivered, this time included.
	Deliveries int

	queue  *Queue
	msg    jetstream.Msg
	object string
}

// Pull returns at least one and at most max items, and waits for the first until ctx ends.
func (q *Queue) Pull(ctx context.Context, max int) (_ []*Delivery, err error) {
	defer func() { err = wrapQueue("pull from", q, err) }()
	if max < 1 {
		return nil, fmt.Errorf("%d items asked for", max)
	}
	for attempt := 0; ; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		deliveries, err := q.pullOnce(ctx, max)
		if len(deliveries) == 0 && over(ctx) {
			return nil, context.DeadlineExceeded
		}
		if err == nil && len(deliveries) > 0 {
			return deliveries, nil
		}
		if err != nil && !isOutage(err) && !errors.Is(err, jetstream.ErrNoHeartbeat) {
			return nil, err
		}
		if err != nil {
			_ = pause(ctx, attempt)
			attempt++
		}
	}
}

// over reports that the deadline of ctx has passed, which nats.go refuses to wait for a moment before ctx itself ends.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

func (q *Queue) pullOnce(ctx context.Context, max int) ([]*Delivery, error) {
	// What is there comes at once; only an empty queue is waited for.
	batch, err := q.consumer.FetchNoWait(max)
	if err != nil {
		return nil, err
	}
	deliveries, err := q.deliveries(ctx, batch)
	if err != nil || len(deliveries) > 0 {
		return deliveries, err
	}
	if batch, err = q.consumer.Fetch(1, jetstream.FetchContext(ctx)); err != nil {
		return nil, err
	}
	deliveries, err = q.deliveries(ctx, batch)
	if errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return deliveries, err
}

func (q *Queue) deliveries(ctx context.Context, batch jetstream.MessageBatch) (list []*Delivery, err error) {
	for msg := range batch.Messages() {
		d, err := q.delivery(ctx, msg)
		if err != nil {
			// Nobody can read it, or its body was dropped with an acknowledgement that was lost.
			q.log.Warn("queue: an item is dropped", "queue", q.opts.Namespace, "error", err)
			_ = msg.TermWithReason("unreadable")
			continue
		}
		list = append(list, d)
	}
	return list, batch.Error()
}

func (q *Queue) delivery(ctx context.Context, msg jetstream.Msg) (*Delivery, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	m, err := parseStored(msg.Headers(), msg.Data(), meta.Sequence.Stream, meta.Timestamp, q.opts.MaxItemBytes)
	if err != nil {
		return nil, err
	}
	text := strings.TrimPrefix(msg.Subject(), "queue."+q.opts.Namespace+".")
	topic, ok := unescape(text)
	if !ok || m.op != opAppend {
		return nil, fmt.Errorf("%w: message %d is no item of a queue", ErrCorrupt, m.item.Sequence)
	}
	item, err := q.load(ctx, m)
	if err != nil {
		return nil, err
	}
	return &Delivery{Item: item, Topic: topic, Deliveries: int(meta.NumDelivered), queue: q, msg: msg, object: m.object}, nil
}

// Ack says that the item is done with, and waits until the server knows. Without an answer the item may be delivered
// again.
func (d *Delivery) Ack(ctx context.Context) error {
	if err := natslink.Ask(ctx, d.msg.DoubleAck); err != nil {
		return wrapQueue("acknowledge an item of", d.queue, err)
	}
	d.dropBody()
	return nil
}

// Release gives the item to the next puller after delay.
func (d *Delivery) Release(delay time.Duration) error {
	return wrapQueue("release an item of", d.queue, d.msg.NakWithDelay(delay))
}

// Drop removes the item though nobody used it; reason is for the server's advisories.
func (d *Delivery) Drop(reason string) error {
	if err := d.msg.TermWithReason(reason); err != nil {
		return wrapQueue("drop an item of", d.queue, err)
	}
	d.dropBody()
	return nil
}

// Extend starts the time until redelivery anew. A puller that works long on an item calls it now and then.
func (d *Delivery) Extend() error { return wrapQueue("extend an item of", d.queue, d.msg.InProgress()) }

func (d *Delivery) dropBody() {
	if d.object != "" {
		d.queue.dropBody(d.object)
	}
}

// Len returns how many items wait or are held by pullers.
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

// Purge removes the items whose topic matches pattern ('*' is one part, '>' at the end one or more), delivered ones
// too.
func (q *Queue) Purge(ctx context.Context, pattern string) error {
	escaped, err := escapePattern(pattern)
	if err == nil {
		err = natslink.Ask(ctx, func(ctx context.Context) error {
			return q.stream.Purge(ctx, jetstream.WithPurgeSubject("queue."+q.opts.Namespace+"."+escaped))
		})
	}
	return wrapQueue("purge", q, err)
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
