package bins

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Event describes a change of a bin.
type Event struct {
	// Bin is the name of the bin.
	Bin string
	// Items is the number of items after the change.
	Items int
	// Sequence is the sequence number of the change. It orders all events of a namespace. An event after a gap has the
	// sequence number of the end of the gap.
	Sequence uint64
	// Op is "put", "append", "take" or "delete". It is "" for an event after a gap, which may combine several changes.
	Op string
}

// Listener receives the changes of bins, including those by its own process. Take and Delete cause events, Peek does
// not.
//
// Changes of one bin arrive in order. The listener receives no events while the connection is down. After a
// reconnection it receives an event for each bin whose number of items or newest item has changed.
type Listener struct {
	store   *Store
	subject string
	pattern string
	reader  *reader       // used by run
	begin   uint64        // newest message before the first event
	read    uint64        // last message that it read
	lost    chan struct{} // signals that a reader was lost and the bins must be compared
	stop    context.CancelFunc
	done    chan struct{}
	once    sync.Once

	events chan Event
	err    error // why events ended; set before events is closed
	mu     sync.Mutex
	counts map[string]int
	writes map[string]writes
	seen   uint64 // newest message that was passed on
	known  uint64 // counts includes messages up to this one
}

// writes holds the messages of a bin that a later claim can refer to.
type writes struct {
	put   uint64 // newest message that replaced all items
	claim uint64 // newest claim
}

// maxWrites is the number of bins for which a listener keeps the writes of empty bins.
const maxWrites = 4096

// eventQueue is the number of events that can wait for a slow listener. When it is full, messages wait in the stream.
const eventQueue = 256

// Listen returns a listener for the bins whose names match pattern: '*' matches one part of a name, and a trailing '>'
// matches one or more parts. The listener receives every change that begins after Listen has returned. The caller
// closes the listener. ctx applies only until Listen returns.
func (s *Store) Listen(ctx context.Context, pattern string) (_ *Listener, err error) {
	defer func() { err = wrap("listen to", pattern, err) }()
	escaped, err := escapePattern(pattern)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		store: s, pattern: pattern, subject: s.bothPrefix() + escaped, writes: map[string]writes{},
		events: make(chan Event, eventQueue), lost: make(chan struct{}, 1), done: make(chan struct{}),
	}
	// Subscribing to the connection's status before counting ensures that no outage is missed.
	changes := s.conn.StatusChanged(nats.CONNECTED)
	if l.read, err = l.snapshot(ctx); err == nil {
		l.begin = l.read
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
		begin := time.Now()
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
		// With continuous writers, the counts may include changes that are also received as events. Any moment is a
		// valid start.
		if before.State.LastSeq == after.State.LastSeq || ctx.Err() != nil || time.Since(begin) > time.Second {
			return after.State.LastSeq, ctx.Err()
		}
	}
}

// subscribe starts reading after the last message that was read.
func (l *Listener) subscribe(ctx context.Context) (err error) {
	l.reader, err = l.store.newReader(ctx, jetstream.ConsumerConfig{
		FilterSubject: l.subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: l.read + 1,
	})
	return err
}

// Events returns the events that no earlier loop has received, and then waits for new ones. The last pair has an error:
// the cause of ctx, or [ErrClosed] after Close. Leaving the loop does not close the listener: the next loop continues
// after the last event of this one.
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

// next returns the next event, the cause of ctx, or [ErrClosed] after Close.
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

// Close closes the listener. A second call does nothing.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.stop()
		<-l.done
	})
	return nil
}

// run forwards messages until the listener is closed. It compares the bins after each reconnection.
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

// goOn continues with a new reader and has the bins compared, because a take meanwhile may have left no message.
func (l *Listener) goOn(ctx context.Context, lost error) error {
	l.store.log.Debug("bins: a listener continues with a new reader", "namespace", l.store.opts.Namespace, "bins", l.pattern, "error", lost)
	old := l.reader
	err := l.subscribe(ctx)
	if err != nil {
		l.reader = old
		return err
	}
	old.stop()
	l.recount()
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

// event applies a message to the count of its bin. It returns false if the message is not an event.
func (l *Listener) event(msg jetstream.Msg, meta *jetstream.MsgMetadata) (Event, bool) {
	name, ok := l.store.binOf(msg.Subject())
	if !ok {
		return Event{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	event := Event{Bin: name, Sequence: meta.Sequence.Stream, Op: msg.Headers().Get(headerOp)}
	l.seen = event.Sequence
	claim := strings.HasPrefix(msg.Subject(), claimRoot)
	removed := 0
	switch {
	case claim:
		removed, event.Op = l.claimed(name, parseClaim(msg.Headers(), event.Sequence, meta.Timestamp), msg.Headers())
		if event.Op != opTake && event.Op != opDelete {
			return Event{}, false
		}
	case event.Op == opPut:
		w := l.writes[name]
		w.put = event.Sequence
		l.writes[name] = w
	case event.Op != opAppend:
		return Event{}, false
	}
	switch {
	case event.Sequence <= l.known: // already counted after a gap
		event.Items = l.counts[name]
		return event, true
	case event.Op == opPut:
		event.Items = 1
	case event.Op == opAppend:
		event.Items = l.counts[name] + 1
	default:
		event.Items = max(0, l.counts[name]-removed)
	}
	l.set(name, event.Items)
	return event, true
}

// claimed records a claim or the message that settled it. It returns the number of items that the claim removed, and its
// operation if it is an event. If an earlier claim was not received, the bins are counted again.
func (l *Listener) claimed(name string, claim stored, header nats.Header) (removed int, op string) {
	w := l.writes[name]
	received := max(w.claim, l.begin)
	op, before := claim.op, claim.before
	if claim.op == opSettled { // before is the claim that it settled
		op = ""
		if since, err := strconv.ParseUint(header.Get(headerSince), 10, 64); err == nil && before > received && since <= received {
			op, before = header.Get(headerClaim), since // the settled claim is the only one that was not received
		}
	}
	if before > received {
		l.recount()
	}
	if claim.upTo >= w.put { // otherwise a put has already replaced the items
		if op != "" {
			removed = claim.items
		}
		w.put = 0
	}
	w.claim = claim.item.Sequence
	l.writes[name] = w
	if claim.op == opSettled && l.counts[name] == 0 && len(l.writes) > maxWrites {
		delete(l.writes, name) // a later claim on the bin causes a comparison
	}
	return max(0, removed), op
}

// recount triggers a comparison of the bins with the server's counts.
func (l *Listener) recount() {
	select {
	case l.lost <- struct{}{}:
	default: // a comparison is already pending
	}
}

func (l *Listener) set(name string, items int) {
	if items == 0 {
		delete(l.counts, name)
	} else {
		l.counts[name] = items
	}
}

// afterGaps compares the bins with the listener's counts after each reconnection or change of the reader, because takes
// during an outage leave no messages.
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
			if natslink.Pause(ctx, attempt) != nil {
				return
			}
			if errors.Is(err, errOvertaken) {
				continue
			}
			l.store.log.Debug("bins: counting after a gap failed", "namespace", l.store.opts.Namespace, "error", err)
		}
	}
}

// errOvertaken means that messages arrived while the bins were counted.
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
