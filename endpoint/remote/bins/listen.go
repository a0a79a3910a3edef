package bins

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Event says that a bin changed.
type Event struct {
	// Bin is the name of the bin.
	Bin string
	// Items is how many items the bin has after the change.
	Items int
	// Sequence is that of the change; it orders all events of a namespace. An event after a gap has the sequence of the
	// gap's end.
	Sequence uint64
	// Op is "put", "append", "take" or "delete", or "" for an event after a gap: then several changes may be one event.
	Op string
}

// Listener hears of changes, also of those by its own process. It hears of a take or a delete of a bin, not of a Peek.
//
// Changes of one bin come in their order. While the connection is away nothing is heard; when it is back the listener
// gets an event for each bin whose number of items or newest item is not the one that it knew.
type Listener struct {
	store   *Store
	subject string
	pattern string
	reader  *reader       // of run
	read    uint64        // the message that it read last
	lost    chan struct{} // a reader was lost: what it was not told of has to be looked for
	stop    context.CancelFunc
	done    chan struct{}
	once    sync.Once

	events chan Event
	err    error // why events ended; set before events is closed
	mu     sync.Mutex
	counts map[string]int
	seen   uint64 // newest message that was passed on
	known  uint64 // messages up to here are in counts
}

// eventQueue is how many events wait for a slow listener. When it is full the server's messages wait in the stream.
const eventQueue = 256

// Listen hears of changes of the bins whose names match pattern ('*' is one part of a name, '>' at the end one or
// more), from now on: a change that begins after Listen returned is heard. The caller closes the listener; the end of
// ctx after Listen returned has no effect.
func (s *Store) Listen(ctx context.Context, pattern string) (_ *Listener, err error) {
	defer func() { err = wrap("listen to", pattern, err) }()
	escaped, err := escapePattern(pattern)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		store: s, pattern: pattern, subject: s.prefix() + escaped,
		events: make(chan Event, eventQueue), lost: make(chan struct{}, 1), done: make(chan struct{}),
	}
	// The connection's changes are asked for before the counts are, so that no outage is missed.
	changes := s.conn.StatusChanged(nats.CONNECTED)
	if l.read, err = l.snapshot(ctx); err == nil {
		err = l.subscribe(ctx)
	}
	if err != nil {
		s.conn.RemoveStatusListener(changes)
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.run(run, changes)
	return l, nil
}

// snapshot counts the bins and returns the sequence number after which changes are events.
func (l *Listener) snapshot(ctx context.Context) (uint64, error) {
	for {
		before, err := l.store.info(ctx)
		if err != nil {
			return 0, err
		}
		counts, err := l.store.List(ctx, l.pattern)
		if err != nil {
			return 0, err
		}
		after, err := l.store.info(ctx)
		if err != nil {
			return 0, err
		}
		l.counts = counts
		// Where others write all the time the counts may include changes that are heard again: one moment is as good as
		// another.
		if before.State.LastSeq == after.State.LastSeq || ctx.Err() != nil || time.Since(before.TimeStamp) > time.Second {
			return after.State.LastSeq, ctx.Err()
		}
	}
}

// subscribe reads on behind the message that was read last.
func (l *Listener) subscribe(ctx context.Context) (err error) {
	l.reader, err = l.store.newReader(ctx, jetstream.ConsumerConfig{
		FilterSubject: l.subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: l.read + 1,
	})
	return err
}

// Events are the events that no loop has taken yet, and those to come. An error is the last pair: the cause of ctx, or
// [ErrClosed] after Close. Leaving the loop does not close the listener: the next loop goes on behind the last event of
// this one.
func (l *Listener) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			event, err := l.next(ctx)
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// next returns the next event, or the cause of ctx, or [ErrClosed] after Close.
func (l *Listener) next(ctx context.Context) (Event, error) {
	select {
	case event, ok := <-l.events:
		if !ok {
			return Event{}, l.err
		}
		return event, nil
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// ErrClosed means that the listener was closed.
var ErrClosed = errors.New("the listener is closed")

// Close ends the listener. A second call does nothing.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.stop()
		<-l.done
	})
	return nil
}

// run passes messages on until the listener is closed. Each reconnection makes it look at the bins anew.
func (l *Listener) run(ctx context.Context, changes chan nats.Status) {
	defer close(l.done)
	defer l.store.conn.RemoveStatusListener(changes)
	var work sync.WaitGroup
	work.Go(func() { l.afterGaps(ctx, changes) })
	err := l.pass(ctx)
	l.stop()
	work.Wait()
	if ctx.Err() != nil {
		err = ErrClosed
	}
	l.err = err
	close(l.events)
}

func (l *Listener) pass(ctx context.Context) error {
	defer func() { l.reader.stop() }()
	for {
		msg, meta, err := l.reader.next(ctx)
		if err == nil {
			l.read = meta.Sequence.Stream
			if event, ok := l.event(msg, meta); ok && !l.put(ctx, event) {
				return ErrClosed
			}
			continue
		}
		if isOutage(err) {
			err = l.goOn(ctx, err)
		}
		if ctx.Err() != nil {
			return ErrClosed
		}
		if err != nil {
			return fmt.Errorf("listen to the bins %q: %w", l.pattern, err)
		}
	}
}

// goOn reads on by another server, and has the bins compared: of a take meanwhile there may be nothing to read.
func (l *Listener) goOn(ctx context.Context, lost error) error {
	l.store.log.Debug("bins: a listener reads on", "namespace", l.store.opts.Namespace, "bins", l.pattern, "error", lost)
	old := l.reader
	err := l.subscribe(ctx)
	if err != nil {
		l.reader = old
		return err
	}
	old.stop()
	select {
	case l.lost <- struct{}{}:
	default: // it will be looked
	}
	return nil
}

func (l *Listener) put(ctx context.Context, event Event) bool {
	select {
	case l.events <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// event counts what a message does to its bin.
func (l *Listener) event(msg jetstream.Msg, meta *jetstream.MsgMetadata) (Event, bool) {
	name, ok := l.store.binOf(msg.Subject())
	if !ok {
		return Event{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	event := Event{Bin: name, Sequence: meta.Sequence.Stream, Op: msg.Headers().Get(headerOp)}
	l.seen = event.Sequence
	switch {
	case event.Sequence <= l.known: // counted after a gap
		event.Items = l.counts[name]
		if event.Op == opTakeSome {
			event.Op = opTake
		}
		return event, true
	case event.Op == opPut:
		event.Items = 1
	case event.Op == opAppend:
		event.Items = l.counts[name] + 1
	case event.Op == opTake, event.Op == opDelete:
	case event.Op == opTakeSome:
		n, err := strconv.Atoi(msg.Headers().Get(headerItems))
		if err != nil || n < 0 {
			return Event{}, false
		}
		event.Items = max(0, l.counts[name]-n)
		event.Op = opTake
	default:
		return Event{}, false
	}
	l.set(name, event.Items)
	return event, true
}

func (l *Listener) set(name string, items int) {
	if items == 0 {
		delete(l.counts, name)
	} else {
		l.counts[name] = items
	}
}

// afterGaps compares the bins with what the listener knows whenever the connection is back or another server is read
// from: takes during an outage leave nothing that could be read later.
func (l *Listener) afterGaps(ctx context.Context, changes <-chan nats.Status) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-changes:
			if !ok {
				return
			}
		case <-l.lost:
		}
		for attempt := 0; ; attempt++ {
			err := l.compare(ctx)
			if err == nil {
				break
			}
			if pause(ctx, attempt) != nil {
				return
			}
			if errors.Is(err, errOvertaken) {
				continue
			}
			l.store.log.Debug("bins: counting after a gap failed", "namespace", l.store.opts.Namespace, "error", err)
		}
	}
}

// errOvertaken means that messages came while the bins were counted.
var errOvertaken = errors.New("overtaken")

func (l *Listener) compare(ctx context.Context) error {
	info, err := l.store.info(ctx)
	if err != nil {
		return err
	}
	counts, err := l.store.List(ctx, l.pattern)
	if err != nil {
		return err
	}
	var changed []Event
	l.mu.Lock()
	if l.seen > info.State.LastSeq {
		l.mu.Unlock()
		return errOvertaken
	}
	for name, items := range counts {
		if l.counts[name] != items {
			changed = append(changed, Event{Bin: name, Items: items, Sequence: info.State.LastSeq})
		}
	}
	for name := range l.counts {
		if counts[name] == 0 {
			changed = append(changed, Event{Bin: name, Sequence: info.State.LastSeq})
		}
	}
	l.counts, l.known = counts, info.State.LastSeq
	l.mu.Unlock()
	for _, event := range changed {
		if !l.put(ctx, event) {
			return nil
		}
	}
	return nil
}
