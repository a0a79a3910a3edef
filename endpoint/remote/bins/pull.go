package bins

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// putBackDelay is the time before an item that this puller could not load is delivered again. It doubles each time the
// item is put back, up to maxPutBackDelay.
const (
	putBackDelay    = time.Second
	maxPutBackDelay = time.Minute
)

// Delivery is an item that this puller holds until it calls Ack, Release or Drop, or until the queue's Redeliver time
// has passed.
type Delivery struct {
	Item
	// Topic is the topic of the item.
	Topic string
	// Deliveries is the number of deliveries of the item, including this one.
	Deliveries int

	queue *Queue
	letter
}

// letter is a message of the queue that this puller has received.
type letter struct {
	msg     jetstream.Msg
	stored  stored
	topic   string
	counted int // deliveries, including this one
	putBack int // times that the item was put back
}

// Pull returns at least one and at most max items. It waits for the first one until ctx ends. If ctx ends while it
// loads items, it returns the loaded ones and puts the others back. It also puts back items over the puller's
// MaxItemBytes. Damaged items and items with no deliveries left are removed.
func (q *Queue) Pull(ctx context.Context, max int) (_ []*Delivery, err error) {
	defer func() { err = wrapQueue("pull from", q, err) }()
	if max < 1 {
		return nil, fmt.Errorf("max must be at least 1, not %d", max)
	}
	if q.consumer == nil {
		return nil, errors.New("it was opened with AddOnly")
	}
	for attempt := 0; ; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		deliveries, err := q.pullOnce(ctx, max)
		switch {
		case len(deliveries) > 0:
			return deliveries, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case over(ctx):
			return nil, context.DeadlineExceeded
		case err != nil && !isOutage(err) && !errors.Is(err, jetstream.ErrNoHeartbeat):
			return nil, err
		case err != nil:
			_ = natslink.Pause(ctx, attempt)
			attempt++
		}
	}
}

// over reports whether the deadline of ctx has passed. The library refuses to wait shortly before ctx itself ends.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

func (q *Queue) pullOnce(ctx context.Context, max int) ([]*Delivery, error) {
	// Waiting items arrive at once. Pull waits only if the queue is empty.
	batch, err := q.consumer.FetchNoWait(max)
	if err != nil {
		return nil, err
	}
	deliveries, err := q.receive(ctx, batch)
	if err != nil || len(deliveries) > 0 {
		return deliveries, err
	}
	if batch, err = q.consumer.Fetch(1, jetstream.FetchContext(ctx)); err != nil {
		return nil, err
	}
	deliveries, err = q.receive(ctx, batch)
	if errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return deliveries, err
}

// receive loads the items of a batch. Each message is delivered, put back or removed.
func (q *Queue) receive(ctx context.Context, batch jetstream.MessageBatch) (list []*Delivery, err error) {
	for msg := range batch.Messages() {
		l, err := q.open(ctx, msg)
		var item Item
		if err == nil {
			item, err = q.load(ctx, l.stored)
		}
		if errors.Is(err, errBodyGone) {
			err = q.confirmGone(ctx, l, err)
		}
		switch {
		case err == nil:
			list = append(list, &Delivery{Item: item, Topic: l.topic, Deliveries: l.counted, queue: q, letter: l})
		case errors.Is(err, ErrCorrupt), errors.Is(err, errSpent):
			q.log.Warn("queue: removed an item", "queue", q.opts.Namespace, "error", err)
			if err := msg.TermWithReason(reasonOf(err)); err == nil {
				q.forget(l)
			}
		default:
			q.log.Debug("queue: put an item back", "queue", q.opts.Namespace, "error", err)
			q.returnItem(ctx, l, err)
		}
	}
	return list, batch.Error()
}

// errSpent means that an item was delivered as often as the queue allows.
var errSpent = errors.New("the item was delivered as often as the queue allows")

func reasonOf(err error) string {
	if errors.Is(err, errSpent) {
		return "delivered too often"
	}
	return "damaged"
}

// open parses the headers of a message. Its error is [ErrCorrupt], [errSpent] or the cause of ctx.
func (q *Queue) open(ctx context.Context, msg jetstream.Msg) (letter, error) {
	l := letter{msg: msg}
	meta, err := msg.Metadata()
	if err != nil {
		return l, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	l.stored = parseStored(msg.Headers(), msg.Data(), meta.Sequence.Stream, meta.Timestamp)
	l.counted = int(meta.NumDelivered)
	topic, ok := unescape(strings.TrimPrefix(msg.Subject(), "queue."+q.opts.Namespace+"."))
	if l.topic = topic; !ok || l.stored.op != opAppend {
		return l, fmt.Errorf("%w: message %d is not an item of a queue", ErrCorrupt, meta.Sequence.Stream)
	}
	if meta.NumDelivered > 1 {
		known := false
		if l.putBack, known = q.timesPutBack(ctx, meta.Sequence.Stream); known {
			l.counted = max(1, l.counted-l.putBack)
			if l.counted > q.opts.Deliveries {
				return l, fmt.Errorf("item %d: %w", meta.Sequence.Stream, errSpent)
			}
		}
	}
	if ctx.Err() != nil {
		return l, context.Cause(ctx)
	}
	return l, nil
}

// confirmGone returns [ErrCorrupt] if the leader of the object store does not have the body either. A replica may lack
// the newest objects.
func (q *Queue) confirmGone(ctx context.Context, l letter, gone error) error {
	missing, err := q.objects.Missing(ctx, l.stored.object)
	switch {
	case err != nil:
		return err
	case missing:
		return fmt.Errorf("%w: %w", ErrCorrupt, gone)
	}
	return gone
}

// putBackSubject returns the subject that records how often an item was put back. It is in the stream of the bodies,
// because each message of the queue's stream is an item.
func (q *Queue) putBackSubject(sequence string) string {
	return q.objects.PieceSubject("put-back." + sequence)
}

// timesPutBack returns how often an item was put back. It returns false if no server answers.
func (q *Queue) timesPutBack(ctx context.Context, sequence uint64) (int, bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	msg, err := natslink.LeaderMessage(ctx, q.conn, q.objects.Stream(), natslink.MessageQuery{
		LastBySubject: q.putBackSubject(strconv.FormatUint(sequence, 10)),
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, true
	}
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(msg.Data))
	return n, err == nil
}

// returnItem returns an item to the queue for the next puller and records that this delivery does not count. It sends
// two messages without waiting for answers. If they are lost, the item is delivered again after Redeliver, and the
// delivery counts.
func (q *Queue) returnItem(ctx context.Context, l letter, reason error) {
	delay := min(putBackDelay<<min(l.putBack, 10), maxPutBackDelay)
	if ctx.Err() != nil && !errors.Is(reason, ErrTooLarge) {
		delay = 0
	}
	record := nats.NewMsg(q.putBackSubject(strconv.FormatUint(l.stored.item.Sequence, 10)))
	record.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	record.Data = strconv.AppendInt(nil, int64(l.putBack+1), 10)
	err := q.conn.PublishMsg(record)
	if delay == 0 {
		err = errors.Join(err, l.msg.Nak())
	} else {
		err = errors.Join(err, l.msg.NakWithDelay(delay))
	}
	if err != nil {
		q.log.Debug("queue: an item waits for its redelivery", "queue", q.opts.Namespace, "error", err)
	}
}

// forget removes the bodies and records of a removed item in the background.
func (q *Queue) forget(l letter) {
	if l.stored.object == "" && l.putBack == 0 {
		return
	}
	q.background.start(func(ctx context.Context) {
		if l.stored.object != "" {
			q.removeBodies(ctx, []string{l.stored.object})
		}
		if l.putBack > 0 {
			_ = q.objects.PurgeSubject(ctx, q.putBackSubject(strconv.FormatUint(l.stored.item.Sequence, 10))) // best effort: Sweep removes the record
		}
	})
}

// forgetPutBack removes the records of items that are no longer in the queue.
func (q *Queue) forgetPutBack(ctx context.Context) error {
	var info *jetstream.StreamInfo
	subjects := map[string]uint64{}
	err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
		if subjects, err = q.objects.Subjects(ctx, q.putBackSubject("*")); err == nil && len(subjects) > 0 {
			info, err = q.stream.Info(ctx)
		}
		return err
	})
	for subject := range subjects {
		sequence, _ := strconv.ParseUint(strings.TrimPrefix(subject, q.putBackSubject("")), 10, 64)
		if err == nil && sequence < info.State.FirstSeq {
			err = natslink.Ask(ctx, func(ctx context.Context) error { return q.objects.PurgeSubject(ctx, subject) })
		}
	}
	return err
}

// Ack acknowledges that the item is processed and waits until the server has recorded it. If the server does not
// answer, the item may be delivered again.
func (d *Delivery) Ack(ctx context.Context) error {
	if err := natslink.Ask(ctx, d.msg.DoubleAck); err != nil {
		return wrapQueue("acknowledge an item of", d.queue, err)
	}
	d.queue.forget(d.letter)
	return nil
}

// Release returns the item to the queue for the next puller after delay. The delivery counts.
func (d *Delivery) Release(delay time.Duration) error {
	return wrapQueue("release an item of", d.queue, d.msg.NakWithDelay(delay))
}

// Drop removes an item that was not processed. The server includes reason in its advisory.
func (d *Delivery) Drop(reason string) error {
	if err := d.msg.TermWithReason(reason); err != nil {
		return wrapQueue("drop an item of", d.queue, err)
	}
	d.queue.forget(d.letter)
	return nil
}

// Extend restarts the time until redelivery. Call it periodically while an item takes long to process.
func (d *Delivery) Extend() error { return wrapQueue("extend an item of", d.queue, d.msg.InProgress()) }
