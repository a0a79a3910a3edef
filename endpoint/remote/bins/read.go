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

// maxBodyGone is the number of attempts of a reader to find a missing body.
const maxBodyGone = 8

// Peek returns the items of a bin without removing them. The error for an empty bin is [ErrNotFound].
//
// With several replicas, any of them may answer, and it may not have the newest items yet.
func (s *Store) Peek(ctx context.Context, bin string) (_ []Item, err error) {
	defer func() { err = wrap("peek at", bin, err) }()
	if err := CheckName(bin); err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		content, err := s.content(ctx, bin, 0)
		if err != nil {
			return nil, err
		}
		items, err := s.loadAll(ctx, content.messages, nil)
		if !errors.Is(err, errBodyGone) {
			return items, err
		}
		if attempt >= maxBodyGone {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if err := natslink.Pause(ctx, 0); err != nil {
			return nil, err
		}
	}
}

// loadAll loads the bodies of messages. skip, which may be nil, reports whether an item with an error is left out.
func (s *Store) loadAll(ctx context.Context, messages []stored, skip func(m stored, err error) bool) ([]Item, error) {
	if len(messages) == 0 {
		return nil, ErrNotFound
	}
	items := make([]Item, 0, len(messages))
	for _, m := range messages {
		item, err := s.load(ctx, m)
		all := append(items, item)
		if err == nil && m.list {
			all, err = appendElements(items, item)
		}
		switch {
		case err == nil:
			items = all
		case skip == nil || !skip(m, err):
			return nil, err
		}
	}
	return items, nil
}

// content is the state of a bin after all its messages.
type content struct {
	messages []stored // items, oldest first
	gone     []stored // taken items that are still in the stream
	lastItem uint64   // newest message on the item subject; 0 if there is none
	claim    stored   // newest claim; zero if there is none
}

// apply applies the next message. A claim removes the items up to its upTo. A value that was put replaces all earlier
// items.
func (c *content) apply(m stored) {
	if m.claim {
		for len(c.messages) > 0 && c.messages[0].item.Sequence <= m.upTo {
			c.gone = append(c.gone, c.messages[0])
			c.messages = c.messages[1:]
		}
		c.claim = m
		return
	}
	c.lastItem = m.item.Sequence
	if m.item.Sequence <= c.claim.upTo { // the claim was requested before the item was read
		c.gone = append(c.gone, m)
		return
	}
	if m.op == opPut {
		c.messages, c.gone = nil, nil
	}
	c.messages = append(c.messages, m)
}

// newest returns the sequence number of the newest item, or 0 for an empty bin.
func (c *content) newest() uint64 {
	if len(c.messages) == 0 {
		return 0
	}
	return c.messages[len(c.messages)-1].item.Sequence
}

// unfinished reports whether the newest claim of c is older than grace and its taker has not removed its items.
func (s *Store) unfinished(ctx context.Context, c content, grace time.Duration) bool {
	if c.claim.upTo == 0 || c.claim.op == opSettled {
		return false
	}
	age, err := s.clock.Since(ctx, c.claim.item.Time)
	return err == nil && age > grace
}

// content reads a bin, or its oldest items until there are enough; 0 means all. It repeats the request during an outage
// until ctx ends. This is safe because reading changes nothing.
func (s *Store) content(ctx context.Context, bin string, enough int) (c content, err error) {
	err = again(ctx, func() error {
		c, err = s.contentOnce(ctx, bin, enough)
		return err
	})
	if err == nil && s.unfinished(ctx, c, takenGrace) {
		s.background.start(func(ctx context.Context) { s.finishTake(ctx, bin, c.claim, c.gone) })
	}
	return c, err
}

// again repeats a read during an outage, or while the client's quota is used up, until ctx ends.
func again(ctx context.Context, read func() error) error {
	for attempt := 0; ; attempt++ {
		err := read()
		if err == nil || !isOutage(err) && !natslink.OverQuota(err) || natslink.Pause(ctx, attempt) != nil {
			return err
		}
	}
}

// contentOnce reads the messages that exist when it begins, and perhaps later ones of the last batch. Continuous writers
// therefore cannot keep it from ending. If it reads only the oldest items, claims may follow them in the stream, so it
// requests the newest claim.
func (s *Store) contentOnce(ctx context.Context, bin string, enough int) (c content, err error) {
	left := -1 // messages of the bin when the first batch was read; -1 before
	for next := uint64(1); ; {
		batch, pending, err := readBatch(ctx, s.batches, s.bothPrefix()+escape(bin), next)
		if err != nil {
			return content{}, err
		}
		for _, m := range batch {
			c.apply(m.stored)
			next = m.item.Sequence + 1
		}
		first := left < 0
		if first {
			left = len(batch) + pending
		}
		if left -= len(batch); left <= 0 || pending == 0 || len(batch) == 0 {
			return c, nil
		}
		if enough > 0 && first {
			claim, err := s.newestClaim(ctx, bin)
			if err != nil {
				return content{}, err
			}
			if claim.item.Sequence > c.claim.item.Sequence {
				c.apply(claim)
			}
		}
		if enough > 0 && len(c.messages) >= enough {
			return c, nil
		}
	}
}

// subjectMessage is a message with its subject.
type subjectMessage struct {
	stored
	subject string
}

// readBatch returns the messages from a sequence number on whose subjects match a pattern, up to the limit of one answer,
// and the number of further ones.
func readBatch(ctx context.Context, batches *natslink.Batches, pattern string, from uint64) (messages []subjectMessage, pending int, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	batch, pending, err := batches.Read(ctx, pattern, from)
	if err != nil {
		return nil, 0, err
	}
	messages = make([]subjectMessage, len(batch))
	for i, msg := range batch {
		if messages[i], err = parseDirect(msg); err != nil {
			return nil, 0, err
		}
	}
	return messages, pending, nil
}

// parseDirect parses a message of a batch. Its headers contain its position in the stream.
func parseDirect(msg *nats.Msg) (subjectMessage, error) {
	sequence, err := natslink.Sequence(msg)
	if err != nil {
		return subjectMessage{}, err
	}
	at, err := time.Parse(time.RFC3339Nano, msg.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return subjectMessage{}, fmt.Errorf("the server sent message %d without a time", sequence)
	}
	subject := msg.Header.Get(jetstream.SubjectHeader)
	return subjectMessage{parseMessage(subject, msg.Header, msg.Data, sequence, at), subject}, nil
}
