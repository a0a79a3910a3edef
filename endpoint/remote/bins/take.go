package bins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// TakeOptions says what Take does with a bin that is empty.
type TakeOptions struct {
	// Wait makes Take wait for an item until its context ends. Otherwise an empty bin is [ErrNotFound].
	Wait bool
	// Max is how many items are taken at most, the oldest first; 0 for all. A list that was put by [AsList] is one.
	Max int
}

// Take returns all items of a bin, or the oldest ones, and removes them in one step: each item goes to one taker, and
// of several that take all, one gets them all. Errors: [ErrNotFound], [ErrOutcomeUnknown] when the server did not say
// whether the items were removed: then another taker may get them.
func (s *Store) Take(ctx context.Context, bin string, opts TakeOptions) (_ []Item, err error) {
	defer func() { err = wrap("take from", bin, err) }()
	if err := CheckName(bin); err != nil {
		return nil, err
	}
	if opts.Max < 0 {
		return nil, fmt.Errorf("%d items asked for", opts.Max)
	}
	items, err := s.takeNow(ctx, bin, opts.Max)
	if !opts.Wait || !errors.Is(err, ErrNotFound) {
		return items, err
	}
	events, err := s.Listen(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	announced := false
	for attempt := 0; ; attempt++ {
		items, err := s.takeNow(ctx, bin, opts.Max) // what came before Listen began is not announced
		if !errors.Is(err, ErrNotFound) {
			return items, err
		}
		if announced, err = awaitItems(ctx, events, announced, attempt); err != nil {
			return nil, err
		}
	}
}

// awaitItems waits until an event says that there are items. Where one has said so, and none was found, it waits a
// moment only: the replica that was asked may not have yet what the event is about.
func awaitItems(ctx context.Context, events *Listener, announced bool, attempt int) (bool, error) {
	for {
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if announced {
			waiting, cancel = context.WithTimeout(ctx, min(50*time.Millisecond<<min(attempt, 5), time.Second))
		}
		event, err := events.next(waiting)
		over := waiting.Err() != nil
		cancel()
		switch {
		case err == nil && event.Items > 0:
			return true, nil
		case err == nil:
			announced = false
		case over && ctx.Err() == nil:
			return announced, nil
		default:
			return false, err
		}
	}
}

func (s *Store) takeNow(ctx context.Context, bin string, most int) ([]Item, error) {
	for attempt := 0; ; attempt++ {
		items, err := s.takeOnce(ctx, bin, most)
		if !errors.Is(err, ErrConflict) && !errors.Is(err, errBodyGone) {
			return items, err
		}
		// Somebody wrote or took meanwhile. Whoever came first has made progress, so this ends.
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, errBodyGone) && attempt >= maxBodyGone {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
}

func (s *Store) takeOnce(ctx context.Context, bin string, most int) ([]Item, error) {
	c, err := s.content(ctx, bin)
	if err != nil {
		return nil, err
	}
	messages := c.messages
	some := most > 0 && most < len(messages)
	if some {
		messages = messages[:most]
	}
	// The bodies come first: a taker that cannot read them removes nothing.
	items, err := s.loadAll(ctx, messages)
	if err != nil {
		return nil, err
	}
	if some {
		err = s.takeSome(ctx, bin, messages, c)
	} else {
		err = s.empty(ctx, bin, opTake, c.last)
	}
	if errors.Is(err, errRepeated) {
		err = s.settleTake(ctx, bin, messages[0].item.Sequence, err)
	}
	if err != nil {
		return nil, err
	}
	s.dropBodies(messages)
	return items, nil
}

// settleTake is for a take of which an attempt was not answered, and of which the server knows nothing. If the oldest
// item is there still, it was not made, and the conflict is another's. Else it may be that the server was restarted,
// and what the take left is over.
func (s *Store) settleTake(ctx context.Context, bin string, oldest uint64, conflict error) error {
	c, err := s.content(ctx, bin)
	if err == nil && len(c.messages) > 0 && c.messages[0].item.Sequence <= oldest {
		return conflict
	}
	return fmt.Errorf("%w: a server did not answer, and the items are gone", ErrOutcomeUnknown)
}

// takeSome takes the oldest items of a bin, unless anything was written since it was read.
//
// The message that says so stays the bin's newest until another is written: were it removed, the bin would look to a
// slower taker as it did before, and that one would take the same items.
func (s *Store) takeSome(ctx context.Context, bin string, messages []stored, c content) error {
	if err := s.announceTakes(ctx); err != nil {
		return err
	}
	upTo := messages[len(messages)-1].item.Sequence
	msg := nats.NewMsg(s.subject(bin))
	msg.Header.Set(headerOp, opTakeSome)
	msg.Header.Set(headerItems, strconv.Itoa(len(messages)))
	msg.Header.Set(headerUpTo, strconv.FormatUint(upTo, 10))
	if _, err := publish(ctx, s.js, msg, writeOptions{id: nuid.Next(), expect: &c.last}); err != nil {
		return err
	}
	if c.taken != nil && c.taken.item.Sequence == c.last {
		c.stale = append(c.stale, c.last)
	}
	s.finishTake(ctx, bin, upTo, c.stale)
	return nil
}

// finishTake removes items that were taken, and then messages of older takes. The items are taken already: what cannot
// be removed now, the next reader removes that comes later than a request may last.
func (s *Store) finishTake(ctx context.Context, bin string, upTo uint64, stale []uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.subject(bin)), jetstream.WithPurgeSequence(upTo+1))
	for _, sequence := range stale {
		if err == nil {
			err = s.stream.DeleteMsg(ctx, sequence)
		}
		if apiCode(err) != 0 { // somebody else has removed it
			err = nil
		}
	}
	if err != nil {
		s.log.Debug("bins: items that were taken stay until the next read", "namespace", s.opts.Namespace, "bin", bin, "error", err)
	}
}

// announceTakes notes in the stream that messages of takes of some items may be in it, which counting has to know.
func (s *Store) announceTakes(ctx context.Context) error {
	if s.takesSome.Load() {
		return nil
	}
	err := natslink.Ask(ctx, func(ctx context.Context) error {
		info, err := s.stream.Info(ctx)
		if err != nil || takesSome(info) {
			return err
		}
		config := info.Config
		config.Metadata = maps.Clone(config.Metadata)
		if config.Metadata == nil {
			config.Metadata = make(map[string]string, 1)
		}
		config.Metadata[metaTakesSome] = "1"
		_, err = s.js.UpdateStream(ctx, config)
		return err
	})
	if err == nil {
		s.takesSome.Store(true)
	}
	return err
}

// metaTakesSome is the metadata of a stream with messages of takes of some items.
const metaTakesSome = "sharedtensor-takes-some"

func takesSome(info *jetstream.StreamInfo) bool { return info.Config.Metadata[metaTakesSome] != "" }

// empty ends a bin whose newest message is last: an empty message replaces all items, unless anything was written
// since.
func (s *Store) empty(ctx context.Context, bin, op string, last uint64) error {
	msg := nats.NewMsg(s.subject(bin))
	msg.Header.Set(headerOp, op)
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	msg.Header.Set(jetstream.MsgTTLHeader, tombstoneTTL.String())
	_, err := publish(ctx, s.js, msg, writeOptions{id: nuid.Next(), expect: &last})
	return err
}

func (s *Store) dropBodies(messages []stored) {
	for _, m := range messages {
		if m.object != "" {
			s.dropBody(m.object)
		}
	}
}

// Delete removes all items of a bin. An empty bin is no error, and is not announced.
func (s *Store) Delete(ctx context.Context, bin string) (err error) {
	defer func() { err = wrap("delete", bin, err) }()
	if err := CheckName(bin); err != nil {
		return err
	}
	for {
		c, err := s.content(ctx, bin)
		if err != nil || len(c.messages) == 0 {
			return err
		}
		err = s.empty(ctx, bin, opDelete, c.last)
		if errors.Is(err, ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			s.dropBodies(c.messages)
		}
		return err
	}
}
