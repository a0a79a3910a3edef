package bins

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// TakeOptions says what Take does with a bin that is empty.
type TakeOptions struct {
	// Wait makes Take wait for an item until its context ends. Otherwise an empty bin is [ErrNotFound].
	Wait bool
}

// Take returns all items of a bin and removes them in one step: of several takers one gets them all. Errors:
// [ErrNotFound], [ErrOutcomeUnknown] when the server did not say whether the items were removed: then another taker may
// get them.
func (s *Store) Take(ctx context.Context, bin string, opts TakeOptions) (_ []Item, err error) {
	defer func() { err = wrap("take from", bin, err) }()
	if err := CheckName(bin); err != nil {
		return nil, err
	}
	items, err := s.takeNow(ctx, bin)
	if !opts.Wait || !errors.Is(err, ErrNotFound) {
		return items, err
	}
	events, err := s.Listen(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	for {
		items, err := s.takeNow(ctx, bin) // what came before Listen began is not announced
		if !errors.Is(err, ErrNotFound) {
			return items, err
		}
		for {
			event, err := events.Next(ctx)
			if err != nil {
				return nil, err
			}
			if event.Items > 0 {
				break
			}
		}
	}
}

func (s *Store) takeNow(ctx context.Context, bin string) ([]Item, error) {
	for attempt := 0; ; attempt++ {
		items, err := s.takeOnce(ctx, bin)
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

func (s *Store) takeOnce(ctx context.Context, bin string) ([]Item, error) {
	messages, err := s.messages(ctx, bin)
	if err != nil {
		return nil, err
	}
	// The bodies come first: a taker that cannot read them removes nothing.
	items, err := s.loadAll(ctx, messages)
	if err != nil {
		return nil, err
	}
	if err := s.empty(ctx, bin, opTake, messages[len(messages)-1].item.Sequence); err != nil {
		return nil, err
	}
	s.dropBodies(messages)
	return items, nil
}

// empty ends a bin whose newest item is last: an empty message replaces all items, unless anything was written since.
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
		messages, err := s.messages(ctx, bin)
		if err != nil || len(messages) == 0 {
			return err
		}
		err = s.empty(ctx, bin, opDelete, messages[len(messages)-1].item.Sequence)
		if errors.Is(err, ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			s.dropBodies(messages)
		}
		return err
	}
}
